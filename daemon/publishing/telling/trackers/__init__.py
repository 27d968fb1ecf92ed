"""Experiment trackers: what an export's report says, written as TensorBoard events, to MLflow, or to W&B."""
