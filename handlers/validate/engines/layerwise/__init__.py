"""Engines of language models that are larger than the memory: their weights are read part by part, for many texts at once.

`lockstep.py` lets passes over many texts advance together, `parts.py` brings the weights of one part and takes them away again,
`skeleton.py` builds a model without weights, `engines.py` are the engines. Imported only inside workers.
"""
