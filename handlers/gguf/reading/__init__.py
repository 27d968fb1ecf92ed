"""GGUF files as they lie on the disk, read by their specification."""
