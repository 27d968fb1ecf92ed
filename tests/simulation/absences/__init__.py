"""A world that moves away what exports read, and brings it back, another one now and then, or never."""
