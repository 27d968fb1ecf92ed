"""The smaller forms of the merged model for PyTorch, each made in memory for a few layers, whatever the model's size."""
