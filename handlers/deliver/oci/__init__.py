"""The delivery to an OCI registry: an export as a model artifact (CNCF ModelPack), or a GGUF file as Ollama's registries keep it."""
