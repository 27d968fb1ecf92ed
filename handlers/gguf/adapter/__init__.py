"""The variant `gguf-adapter`: the LoRA alone."""
