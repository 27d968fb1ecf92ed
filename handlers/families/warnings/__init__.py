"""What the libraries and the tracer say while a model is exported, and what becomes of it."""
