"""Models that PyTorch and transformers run: the live model with PEFT, the merged one, and both layer by layer."""
