"""The tensors of a base as the merge takes them, in whatever form they are stored: unpacked, or as a training saw them."""
