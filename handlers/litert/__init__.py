"""The formats `litert…`: the model as one file for LiteRT (TensorFlow Lite), the runtime of Android and of small devices."""
