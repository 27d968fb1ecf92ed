"""Graphs that a runtime of their own runs, from the folders in which they are published."""
