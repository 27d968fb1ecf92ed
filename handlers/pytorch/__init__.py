"""The pytorch stage."""
