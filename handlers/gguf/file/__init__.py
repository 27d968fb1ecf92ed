"""What a GGUF file says, and how it is written: architecture, vocabulary, weights."""
