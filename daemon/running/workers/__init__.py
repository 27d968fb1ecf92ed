"""One attempt as a local process (behind executor.py)."""
