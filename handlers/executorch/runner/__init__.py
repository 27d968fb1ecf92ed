"""ExecuTorch's own runner for language models, tried on a folder."""
