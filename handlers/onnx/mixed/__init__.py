"""`onnx-mixed`: weights in 4, 8 or 32 bits, chosen layer by layer by what each layer's precision costs the model."""
