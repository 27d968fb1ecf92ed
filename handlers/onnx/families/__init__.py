"""Kinds of models."""
