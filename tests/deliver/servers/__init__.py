"""Servers that answer with a model, and stubs of them that misbehave in each way that is known."""
