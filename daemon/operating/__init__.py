"""Composition root and what people look at."""
