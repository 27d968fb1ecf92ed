"""Smaller forms: int8, static int8, fp16, 4 and 8 bits."""
