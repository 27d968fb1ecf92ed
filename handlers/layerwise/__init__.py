"""Language models that are larger than the memory, run by torch: their weights are read part by part, for all passes that wait for them.

`lockstep.py` lets passes advance together, `parts.py` brings the weights of one part and takes them away again, `skeleton.py` builds a
model without weights, `adapters.py` lets PEFT wrap it, `passes.py` runs work that knows nothing of all this. The engines of validation that
are made of it are `handlers/validate/engines/pytorch/layerwise.py`.
"""
