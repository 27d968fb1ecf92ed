"""Optimization of exported graphs, each step proved against the graph before it: `run.optimize`."""
