"""The formats `gguf-…`: one file with weights, vocabulary and settings, which llama.cpp, Ollama, LM Studio and others run."""
