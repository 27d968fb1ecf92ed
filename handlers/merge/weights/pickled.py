"""What a file of torch's pickles holds, read without running anything. Called for adapters, full fine-tunes and by `ckptd convert`."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path
from typing import Any

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.child import foreign


def read_pickle(path: Path, operation: str, noun: str = "model", *, mapped: bool = True) -> Any:
    """Return what a pickled file holds, its tensors `mapped` where its format allows it. Permanent when it would have to run anything.

    `noun`: what is to be saved again.
    """
    import pickle

    import torch

    if not path.is_file():
        raise Permanent(FaultCode.FILE_MISSING, operation, "the file does not exist", "check that the folder is complete", path=path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a program of TorchScript is warned of and then refused
            # Files from before torch 1.6 are no archives and can't be mapped.
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped and zipfile.is_zipfile(path))
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        said = foreign.in_words(error)
        raise Permanent(
            FaultCode.UNSAFE_PICKLE,
            operation,
            f"the file holds more than tensors, or is truncated ({said})",
            f"save the {noun} with safe_serialization=True; pickled code is never executed",
            path=path,
        ) from None
