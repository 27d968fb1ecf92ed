"""Attention over a KV cache in one operator of onnxruntime's, and back."""
