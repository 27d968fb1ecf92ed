"""The ONNX stages: `stage` exports a merged model as one graph with KV cache, `int8` turns its weights into int8."""
