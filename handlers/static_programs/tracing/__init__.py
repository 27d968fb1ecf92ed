"""The parts of a model that become programs, and their cache of fixed length."""
