"""Runs attempts by a scheduler of other machines. Everything that is hard is here, once; a scheduler is one folder below, and a port of
four verbs (`port.py`) is all that it gives."""
