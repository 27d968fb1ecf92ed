"""Onnxruntime-genai folders."""
