"""Files of ONNX graphs: names, weights, sessions of ONNX Runtime, rewriting, comparison. Knows no kind of model and no variant."""
