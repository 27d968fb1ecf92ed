"""Folders with pickled weights (`.bin`, `.pt`, `.pth`, `.ckpt`) as folders with safetensors."""
