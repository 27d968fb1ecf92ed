"""Bases as they are stored, and what lies beside an adapter."""
