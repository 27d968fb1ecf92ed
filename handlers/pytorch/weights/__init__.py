"""Whether the weights of the smaller PyTorch forms are those of the merged model."""
