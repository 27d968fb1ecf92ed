"""Graphs with activations."""
