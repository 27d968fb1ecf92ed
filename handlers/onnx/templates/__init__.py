"""Graphs without weights, made once for an architecture and filled for each checkpoint."""
