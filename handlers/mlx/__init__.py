"""The formats `mlx…`: a folder of weights in MLX's layout, which mlx-lm runs on Apple's processors."""
