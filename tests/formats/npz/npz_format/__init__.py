"""A format of somebody else's: weights as numpy's .npz."""
