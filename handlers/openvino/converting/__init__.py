"""ONNX graphs and tokenizers as OpenVINO's models, and smaller forms of them."""
