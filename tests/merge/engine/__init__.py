"""How weights are read, computed and checked."""
