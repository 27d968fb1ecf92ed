"""The composition root, and what operators see: status, logs, metrics, explanations."""
