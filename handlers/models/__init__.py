"""A model's folder: weights and configuration, tokenizer, code, task; and the prompts that models are run on."""
