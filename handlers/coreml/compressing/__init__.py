"""Smaller forms of packages."""
