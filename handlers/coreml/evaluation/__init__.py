"""A package read from disk, and evaluated operator by operator."""
