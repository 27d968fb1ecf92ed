"""A model's folder: weights and configuration, tokenizer, code, task."""
