"""How speeds are measured."""
