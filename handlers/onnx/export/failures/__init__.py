"""Attempts at an export that fail: why, and what is left for who looks into it."""
