"""Environments of their own for exporters."""
