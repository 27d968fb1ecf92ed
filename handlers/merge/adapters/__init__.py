"""An adapter on disk, its keys, and the parameters that it changes."""
