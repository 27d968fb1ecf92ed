"""Is it a checkpoint, whole, which one, wanted; its pin; its base model."""
