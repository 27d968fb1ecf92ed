"""The format `pytorch-adapter`: the adapter alone, for servers that load many adapters over one base.

`stage.py` writes the folder, `config.py` and `base.py` what it says of itself and of its base, `weights.py` its tensors, `servers.py` which
servers can use it; `engine.py` loads it for the check, and so imports torch and PEFT.
"""
