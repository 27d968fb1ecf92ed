"""Puts the pieces of a sharded checkpoint together to what the merge reads: an adapter's folder or a model's."""
