"""A model in a process of its own, and how it is driven."""
