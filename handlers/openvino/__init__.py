"""The formats `openvino…`: the ONNX graphs as OpenVINO's own files, which OpenVINO, OpenVINO GenAI and optimum-intel run."""
