"""Whether a graph is the model that its own stored weights give: read here by the operators' specification, and computed by PyTorch."""
