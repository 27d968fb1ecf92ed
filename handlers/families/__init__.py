"""Kinds of models: how a decoder, an encoder-decoder, an encoder or a chain of blocks becomes graphs, and is compared with them."""
