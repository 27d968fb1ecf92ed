"""The formats `tensorrt…`: bundles that a machine with an NVIDIA GPU builds and verifies, engines, and checkpoints of TensorRT-LLM."""
