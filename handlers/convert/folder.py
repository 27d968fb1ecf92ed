"""Converts a folder: pickled weights become safetensors under the names that transformers gives them, everything else is copied.

Each file is read without running anything, written tensor by tensor from a mapping of its source, and read again by the library
safetensors: shapes, dtypes and bytes of all tensors must be those of the source. Called by `python -m handlers.convert`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from daemon.contract.disk.files import fsync_file
from daemon.contract.disk.placing import duplicate
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.processes.conversion import Conversion, ConvertedFile
from handlers.convert import pickles
from handlers.merge.plan.output_layout import Output, build_header
from handlers.merge.weights.unpacked_base import header_dtype
from handlers.models.files import read_json
from handlers.models.left_out import TRAINING_STEMS

if TYPE_CHECKING:
    import torch

PICKLED = (".bin", ".pt", ".pth", ".ckpt")
INDEX = ".index.json"
TRAINING = re.compile(rf"{TRAINING_STEMS}|rng_state.*|random_states_.*|training_args|train_state|loss_scaler")
"""Stems of pickled files that hold the state of a training."""
SKIPPED = (".git", ".cache", "__pycache__")
BLOCK = 64 << 20

Said = Callable[[float, str], None]


def convert(source: Path, target: Path, said: Said) -> Conversion:
    """Fill the empty folder `target`. `said` is told which share is done, and what is done now.

    Raises Permanent for what can't be converted, OSError as it comes.
    """
    there = sorted(_files(source))
    files = [path for path in there if (source / path).is_file()]
    left_out = {str(path): "it is no file, or a link to nothing" for path in there if path not in files}
    left_out |= {str(path): "the state of a training" for path in files if path.suffix in PICKLED and TRAINING.fullmatch(path.stem)}
    weights = [path for path in files if path.suffix in PICKLED and str(path) not in left_out]
    if not weights:
        cause, remedy = f"there is no file of weights that ends in {', '.join(PICKLED)}", "give a folder with such a file"
        if any(path.suffix == ".safetensors" for path in files):
            cause, remedy = "its weights are safetensors already", "to export the model, name variants with --to"
        raise Permanent(FaultCode.NOTHING_TO_CONVERT, pickles.OPERATION, cause, remedy, path=source)
    targets = _targets(source, weights, files)
    indexes = [path for path in files if path.name.endswith(INDEX) and path.with_name(path.name.removesuffix(INDEX)).suffix in PICKLED]
    plain = [path for path in files if path not in targets and path not in indexes and str(path) not in left_out]
    total = sum((source / path).stat().st_size for path in (*weights, *plain)) or 1
    done, converted, holds = 0, list[ConvertedFile](), dict[Path, set[str]]()
    for path in plain:
        said(done / total, f"copying {path}")
        duplicate(Path(os.path.realpath(source / path)), target / path)
        done += (source / path).stat().st_size
    for path, new in targets.items():
        said(done / total, f"converting {path}")
        table = pickles.read(source / path)
        (target / new).parent.mkdir(parents=True, exist_ok=True)
        metadata = {"format": "pt", **table.metadata}
        _write(table.tensors, metadata, target / new)
        said((done + (source / path).stat().st_size / 2) / total, f"comparing {new} with {path}")
        _compare(table.tensors, target / new)
        left_out |= {f"{path}: {key}": why for key, why in table.left_out.items()}
        size = (target / new).stat().st_size
        converted.append(ConvertedFile(source=str(path), target=str(new), tensors=len(table.tensors), size_bytes=size, metadata=metadata))
        holds[path] = set(table.tensors)
        done += (source / path).stat().st_size
    for path in indexes:
        _rewrite(source, path, targets, holds, target)
    return Conversion(
        source=str(source), target=str(target), converted=tuple(converted), copied=tuple(map(str, plain)), left_out=left_out
    )  # fmt: skip


def _files(source: Path) -> Iterator[Path]:
    """Yield all that is no folder, by its path in the folder; links are followed to files and not to folders."""
    for folder, names, files in os.walk(source):
        names[:] = [name for name in names if name not in SKIPPED]
        yield from (Path(folder, name).relative_to(source) for name in files)


def _targets(source: Path, weights: list[Path], files: list[Path]) -> dict[Path, Path]:
    """File → its new name: transformers' own for its own."""
    targets: dict[Path, Path] = {}
    for path in weights:
        stem = re.sub(r"^pytorch_model", "model", path.stem) if path.suffix == ".bin" else path.stem
        new = path.with_name(f"{stem}.safetensors")
        other = new if new in files else next((earlier for earlier, known in targets.items() if known == new), None)
        if other is not None:
            raise Permanent(
                FaultCode.NAME_TAKEN, pickles.OPERATION, f"{path} would become {new}, which {other} is or becomes too",
                "move one of the two out of the folder", path=source,
            )  # fmt: skip
        targets[path] = new
    return targets


def _write(tensors: dict[str, torch.Tensor], metadata: dict[str, str], path: Path) -> None:
    """Write a file tensor by tensor. Larger elements come first, so that every tensor lies at a multiple of its element's size."""
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    outputs = [Output(name, path.name, header_dtype(tensors[name].dtype), tuple(tensors[name].shape)) for name in order]
    with open(path, "xb") as stream:
        stream.write(build_header(outputs, metadata))
        for name in order:
            data = _bytes(tensors[name]).numpy()
            for at in range(0, len(data), BLOCK):
                stream.write(data[at : at + BLOCK].data)
        stream.flush()
    fsync_file(path)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return what a tensor holds, as uint8 (n,), in the order of its elements."""
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _compare(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Read the file as others do, and compare all of it with its source."""
    import torch
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        same = set(file.keys()) == set(tensors)
        for name, wanted in tensors.items() if same else ():
            read = file.get_tensor(name)
            equal = torch.equal(_bytes(read), _bytes(wanted))
            same = same and equal and read.dtype == wanted.dtype and read.shape == wanted.shape
    if not same:
        raise Permanent(
            FaultCode.CONVERSION_DIFFERS, pickles.OPERATION, "what was written differs from its source",
            "try again; if it happens again, check the disk and the memory of this machine", path=path,
        )  # fmt: skip


def _rewrite(source: Path, path: Path, targets: dict[Path, Path], holds: dict[Path, set[str]], target: Path) -> None:
    """Write the index of several files anew, with their new names; what else it says stays."""
    said = read_json(source / path, "read the index of the weights")
    known = said.get("weight_map")
    if not isinstance(known, dict):
        raise Permanent(
            FaultCode.BAD_INDEX, pickles.OPERATION, "it has no weight_map", "restore the file from its source", path=source / path
        )
    for name, file in known.items():
        place = path.with_name(str(file))
        if name not in holds.get(place, set()):
            raise Permanent(
                FaultCode.BAD_INDEX, pickles.OPERATION, f"it says that {name} is in {file}, which does not have it",
                "restore the model's files", path=source / path,
            )  # fmt: skip
    stem = re.sub(r"^pytorch_model", "model", path.name.removesuffix(INDEX).removesuffix(".bin"))
    renamed = {name: targets[path.with_name(str(file))].name for name, file in known.items()}
    new = target / path.with_name(f"{stem}.safetensors{INDEX}")
    new.write_text(json.dumps({**said, "weight_map": renamed}, indent=2) + "\n", encoding="utf-8")
    fsync_file(new)
