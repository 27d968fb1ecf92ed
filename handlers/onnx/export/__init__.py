"""The onnx stage and its chain of fallbacks."""
