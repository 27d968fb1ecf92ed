"""The log: its lines for people and for programs, and reading it back."""
