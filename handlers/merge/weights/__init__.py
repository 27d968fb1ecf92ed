"""Reading and writing tensors, whatever form they are stored in."""
