"""Snapshots of checkpoints, and of the adapters that are merged beside them."""
