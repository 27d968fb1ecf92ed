"""The ONNX formats: `export` makes graphs of a merged model; `quantize` and `mixed` make other forms; `activations`, `genai`."""
