"""ONNX graphs as a form: what their operators store and multiply, by the specification."""
