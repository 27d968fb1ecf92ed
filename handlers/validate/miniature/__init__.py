"""A miniature: the same structure as a model that is too large to be held, small enough to be held, to prove how that one is read."""
