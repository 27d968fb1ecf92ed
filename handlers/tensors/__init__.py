"""Stored tensors as bytes: ranges of files, and sources that give a tensor's values row by row. What a tensor means is decided elsewhere.

The one thing that the merge, which makes a model, shares with the checks, which judge it.
"""
