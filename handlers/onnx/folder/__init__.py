"""Reading an exported folder. Of handlers/onnx, validate may import only this package and `graphs`."""
