"""Commands and terminal output."""
