"""What turns the nodes and weights of a graph into quantized ones."""
