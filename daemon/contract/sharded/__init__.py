"""Checkpoints whose tensors lie in pieces or in pickles: what they hold and where its bytes are, read without torch and without running
anything."""
