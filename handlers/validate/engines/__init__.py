"""A model as its users load it."""
