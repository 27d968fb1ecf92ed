"""Whether an optimized graph is the same and faster, and is taken."""
