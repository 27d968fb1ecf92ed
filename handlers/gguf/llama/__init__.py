"""llama.cpp by way of llama-cpp-python."""
