"""An adapter as it lies on disk, its keys, what it changes."""
