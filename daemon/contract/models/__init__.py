"""What the files of a model say: configurations and headers of safetensors, held against their types."""
