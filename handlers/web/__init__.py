"""The formats `web…`: the ONNX graphs as transformers.js loads them in a web page, run in a browser by their check."""
