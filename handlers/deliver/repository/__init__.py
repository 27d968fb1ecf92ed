"""The delivery to a folder from which servers load models by a layout of their own: Triton, and programs over onnxruntime-genai."""
