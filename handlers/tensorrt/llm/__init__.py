"""The format `tensorrt-llm`: checkpoints for the releases of TensorRT-LLM that build engines."""
