"""Base models: where they are, and how large their layers are."""
