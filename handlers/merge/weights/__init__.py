"""Reading and writing the tensors of a model, in whatever form they are stored."""
