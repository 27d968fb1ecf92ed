"""A decoder as a chain of graphs."""
