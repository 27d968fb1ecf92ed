"""A model folder: files, code, task, prompts."""
