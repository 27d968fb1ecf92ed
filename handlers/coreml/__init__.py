"""The formats `coreml…`: a Core ML package for Apple's devices, whose program is evaluated operator by operator to check it."""
