"""Verbs and terminal output."""
