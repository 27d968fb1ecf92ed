"""The formats `torchscript` and `pt2`: the model as a program that torch runs without transformers and without the model's own code."""
