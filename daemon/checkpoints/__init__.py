"""Checkpoints: recognition, completeness, identity, selection, pins and base models."""
