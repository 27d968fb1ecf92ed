"""Encoders of pictures and sounds."""
