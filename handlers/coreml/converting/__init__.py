"""From a program of torch.export to a package."""
