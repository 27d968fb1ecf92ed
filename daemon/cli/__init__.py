"""The verbs of the command line, each a thin function; what they print is in `views/`."""
