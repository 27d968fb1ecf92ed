"""Graph files: names, weights, sessions, rewriting, derivation, comparison."""
