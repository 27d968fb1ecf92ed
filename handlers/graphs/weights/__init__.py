"""The weights of graphs: where they lie, how they are shared, turned and rounded."""
