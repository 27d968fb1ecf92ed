"""Ways to trace a model into a graph."""
