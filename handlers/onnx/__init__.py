"""The ONNX formats: `export` makes graphs of a merged model, `quantize` and `mixed` other forms of them, `activations` and `genai` others."""
