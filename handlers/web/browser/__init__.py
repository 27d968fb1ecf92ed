"""A browser without a window that a check asks: started, talked to, and ended here. Nothing of it reaches the network."""
