"""The delivery to a running Ollama."""
