"""activations.json: the contract of an onnx-activations folder, which lists the extra outputs of its graph and what each of them means.

Written by the onnx-activations stages, read by `handlers.onnx.activations.check` and by programs that display the activations. Free of
torch and onnx.

Names: `hidden_states.{i}`, `attentions.{i}`, `mlp.{i}` and `embeddings`, with layers counted from 0. `hidden_states.{i}` is what layer i
gives, before any norm that follows the last layer; transformers counts `embeddings` as its hidden state 0, so its number is one more,
and its last one is normed. Rows of padding tokens hold numbers that mean nothing.

Hosting: a graph names the files of its weights, so files keep their names here. `hosted_as` is a name with the start of the
content's digest in it: served under that name a file never changes, and may be cached without an expiry date. `content` is the version of
the whole: it changes when a file or an output does. A page asks for activations.json first, then for the files as they are hosted;
onnxruntime-web takes the weights' files with `externalData: [{path: file, data: <address of hosted_as>}]`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.values import Frozen, digest_of

FILE = "activations.json"
DIGITS = 12
"""Hexadecimal digits of a digest in a name: 48 bits."""

Kind = Literal["hidden_states", "attentions", "embeddings", "mlp"]

MEANINGS: dict[Kind, str] = {
    "hidden_states": "what layer {layer} gives; a norm that follows the last layer is not in it",
    "attentions": "attention weights of layer {layer}: how much the token of a row takes from the token of a column; each row sums to 1",
    "embeddings": "what the first layer is given",
    "mlp": "what the feed-forward part of layer {layer} gives, before it is added to anything",
}


class ActivationOutput(Frozen):
    """One extra output of the graph."""

    name: str
    kind: Kind
    layer: int | None = None
    module: str
    """The module of transformers' model whose value it is."""
    dtype: str
    """As numpy names it."""
    shape: tuple[int | str, ...]
    """Sizes; a dynamic axis has its name: batch, sequence, total (past + sequence)."""
    meaning: str


class HostedFile(Frozen):
    """One file of the model; `size` in bytes."""

    file: str
    size: int
    sha256: str
    hosted_as: str


class Contract(Frozen):
    """The whole file."""

    version: int = 1
    content: str
    task: str
    layers: int
    """Layers that the model has, of which some or all are among the outputs."""
    outputs: tuple[ActivationOutput, ...]
    files: tuple[HostedFile, ...]

    def write(self, folder: Path) -> None:
        """Write activations.json."""
        (folder / FILE).write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")


def hosted(path: Path) -> HostedFile:
    """A file with its digest and the name under which it may be cached without an expiry date."""
    with open(path, "rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    name, dot, ending = path.name.partition(".")
    return HostedFile(file=path.name, size=path.stat().st_size, sha256=sha256, hosted_as=f"{name}-{sha256[:DIGITS]}{dot}{ending}")


def content_version(outputs: Iterable[ActivationOutput], files: Iterable[HostedFile]) -> str:
    """The version of one state of outputs and files."""
    made_of = [[output.model_dump(mode="json") for output in outputs], [[file.file, file.sha256] for file in files]]
    return digest_of(made_of)[:DIGITS]


def contract(folder: Path, files: Iterable[str], outputs: Iterable[ActivationOutput], *, task: str, layers: int) -> Contract:
    """The contract of a folder whose files are written; reads them all once for their digests."""
    listed, promised = tuple(hosted(folder / name) for name in files), tuple(outputs)
    return Contract(content=content_version(promised, listed), task=task, layers=layers, outputs=promised, files=listed)


def read(folder: Path) -> Contract:
    """The contract of a folder; Permanent when there is none, or one that can't be understood."""
    path = folder / FILE
    try:
        return Contract.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        cause = f"it holds no {FILE}"
    except (ValidationError, OSError) as error:
        cause = f"its {FILE} can't be read ({str(error).splitlines()[0]})"
    raise Permanent(FaultCode.GRAPH_UNREADABLE, "read what activations a folder gives", cause, "export onnx-activations again", path=folder)
