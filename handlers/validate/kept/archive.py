"""The file of kept answers: written by the stage `reference`, published beside the variants, read by `ckptd verify --deep`.

A zip archive with the reference's record, the rows of outputs that `selection` chose, and what the checkpoint's files say. The same
reference gives the same bytes. What is read may come from anywhere: nothing in it is run, and its sizes are bounded.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np

from daemon.contract.disk.export_layout import ANSWERS_FILE
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.validate import record
from handlers.validate.checks.live.reference import Reference
from handlers.validate.files.expected import FILE as EXPECTED
from handlers.validate.kept.rows import packed, unpacked
from handlers.validate.kept.selection import select

MOST = 32 << 20
"""Bytes of outputs that an export keeps: nearly all positions of six prompts of 60 with 32,000 tokens, a sixth of them with 150,000."""
LARGEST = 2 << 30
"""Bytes that an archive may unpack to."""
MOST_FILES = 10_000
"""That it may hold."""
VERSION = 1
_ABOUT = "about.json"
_STEPS, _SCALE = ".steps.npy", ".scale.npy"
_OPERATION = "read the live model's answers"


def write(folder: Path, reference: Reference, most: int = MOST) -> Path:
    """Write the answers of a reference into `folder`; give the file. Its logits and its `files` must be there."""
    selection = select(reference, most)
    kept = replace(selection.reference, warnings=[], fallbacks=[], bases=None)
    about = {"version": VERSION, "positions": selection.positions, "of": sum(len(sample.keep) for sample in reference.samples)}
    folder.mkdir()
    path = folder / ANSWERS_FILE
    with zipfile.ZipFile(path, "w") as archive:
        _put(archive, _ABOUT, json.dumps(about).encode())
        _put(archive, record.REFERENCE, json.dumps(record.written(kept), ensure_ascii=False, allow_nan=False).encode())
        for file, rows in selection.rows.items():
            _put_rows(archive, f"{record.LOGITS}/{file.name}", np.load(file), rows)
        for picture in (Path(sample.prompt.picture) for sample in reference.media if sample.prompt is not None):
            _put(archive, f"{record.LOGITS}/{picture.name}", picture.read_bytes())
        for file in sorted(reference.files.iterdir()) if reference.files is not None else ():
            _put(archive, f"{record.KNOWN}/{file.name}", file.read_bytes())
    return path


def _put(archive: zipfile.ZipFile, name: str, data: bytes, *, small: bool = True) -> None:
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.compress_type = zipfile.ZIP_DEFLATED if small else zipfile.ZIP_STORED
    archive.writestr(entry, data)


def _put_rows(archive: zipfile.ZipFile, name: str, outputs: np.ndarray, rows: list[int]) -> None:
    """Put rows of outputs in: in 16 bits where that is possible, else as they are."""
    halves = packed(outputs[rows])
    parts = {name: outputs[rows]} if halves is None else {name + _STEPS: halves[0], name + _SCALE: halves[1]}
    for part, values in parts.items():
        stream = io.BytesIO()
        np.save(stream, values, allow_pickle=False)
        _put(archive, part, stream.getvalue(), small=False)  # of outputs it would save a twentieth


def unpack(path: Path, folder: Path, *, foreign: bool = False) -> tuple[int, int]:
    """Make of kept answers a stage's output in `folder`, as `record.read_reference` reads it. `foreign`: the artifact comes from another
    program (`Expected.foreign`).

    Give the positions of the prompts that were kept, and of how many these are. Raises Permanent where it can't be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > LARGEST:
                raise ValueError(f"it unpacks to more than {LARGEST >> 30} GiB")
            if len(archive.infolist()) > MOST_FILES:
                raise ValueError(f"it holds more than {MOST_FILES:,} files")
            about = json.loads(_read(archive, _ABOUT))
            if about.get("version") != VERSION:
                raise ValueError(f"it is of version {about.get('version')!r}, and this ckptd knows {VERSION}: use a newer one")
            for name in (record.LOGITS, record.KNOWN):
                (folder / name).mkdir(parents=True)
            for name in archive.namelist():
                _take(archive, name, folder)
        _adapt(folder, foreign=foreign)
        return int(about["positions"]), int(about["of"])
    except (
        OSError,
        ValueError,
        KeyError,
        zipfile.BadZipFile,
        AttributeError,
        TypeError,
        NotImplementedError,
        RuntimeError,
        MemoryError,
        zlib.error,
    ) as error:
        said = f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        remedy = "run `ckptd verify` on the export; if it is sound, export the checkpoint again"
        raise Permanent(FaultCode.BAD_RECORD, _OPERATION, said, remedy, path=path) from None


def _take(archive: zipfile.ZipFile, name: str, folder: Path) -> None:
    parts = PurePosixPath(name).parts
    if name == record.REFERENCE or (len(parts) == 2 and parts[0] == record.KNOWN):
        (folder / name).write_bytes(_read(archive, name))
    elif len(parts) == 2 and parts[0] == record.LOGITS and name.endswith(_STEPS):
        place = name.removesuffix(_STEPS)
        np.save(folder / place, unpacked(_array(archive, name), _array(archive, place + _SCALE)))
    elif len(parts) == 2 and parts[0] == record.LOGITS and not name.endswith(_SCALE):
        np.save(folder / name, _array(archive, name))


def _read(archive: zipfile.ZipFile, name: str) -> bytes:
    """Give what an entry holds. No more of it is unpacked than it says, which `ZipFile.read` finds out once it has unpacked all."""
    entry = archive.getinfo(name)
    with archive.open(entry) as stream:
        return stream.read(entry.file_size)


def _array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    values: np.ndarray = np.load(io.BytesIO(_read(archive, name)), allow_pickle=False)
    return values


def _adapt(folder: Path, *, foreign: bool) -> None:
    """Put the places of this machine into the record."""
    path = folder / record.REFERENCE
    said = json.loads(path.read_bytes())
    for sample in said.get("media", ()):
        if sample.get("prompt"):
            sample["prompt"]["picture"] = str(folder / record.LOGITS / Path(sample["prompt"]["picture"]).name)
    path.write_text(json.dumps(said), encoding="utf-8")
    known = folder / record.KNOWN / EXPECTED
    if foreign and known.is_file():
        known.write_text(json.dumps({**json.loads(known.read_bytes()), "foreign": True}, ensure_ascii=False), encoding="utf-8")
