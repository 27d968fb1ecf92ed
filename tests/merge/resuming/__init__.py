"""Merges that were interrupted."""
