"""Does an onnx-activations folder keep its contract? `python -m handlers.onnx.activations.check FOLDER`.

For users, who get one line for each violation and the exit code 1, and for the stages that write such folders. Names, types, axes, sizes
and digests are compared, and the graph is run over a few calls: shapes must be as the contract says, values must be finite, and attention
weights must sum to 1. Free of torch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from daemon.contract.faults.errors import CkptdError
from handlers.graphs import graphset
from handlers.graphs.comparison import GraphMismatchError
from handlers.graphs.graph_file import MODEL_FILE
from handlers.graphs.sessions import open_session
from handlers.onnx.activations.calls import Call, calls_of, outputs_of, real_rows, step_masks
from handlers.onnx.activations.contract import MEANINGS, ActivationOutput, Contract, content_version, hosted, read

_ORT_TYPES = {"float32": "tensor(float)", "float16": "tensor(float16)"}
SUM_TOLERANCE = {"float32": 1e-4, "float16": 5e-3}
"""How far a row of attention weights may be from 1."""


def contract_violations(folder: Path, threads: int = 1) -> list[str]:
    """The violations of a folder's contract, one sentence each; Permanent when there is no contract or no graphs.json."""
    agreed, graphs = read(folder), graphset.read(folder)
    violations = _of_files(folder, agreed)
    if violations:
        return violations  # a damaged graph may not even load
    try:
        session = open_session(folder / MODEL_FILE, threads)
    except RuntimeError as error:
        return [f"onnxruntime does not take the graph: {str(error).strip().splitlines()[0]}"]
    violations += _of_ports(agreed, {value.name: (value.type, tuple(value.shape)) for value in session.get_outputs()})
    if violations:
        return violations
    for call in calls_of(folder, graphs):
        try:
            steps = outputs_of(session, call, [output.name for output in agreed.outputs])
        except GraphMismatchError as error:
            return [str(error)]
        violations += _of_values(agreed, call, steps)
    return list(dict.fromkeys(violations))


def _of_files(folder: Path, agreed: Contract) -> list[str]:
    violations = []
    for promise in agreed.files:
        path = folder / promise.file
        if not path.is_file():
            violations.append(f"{promise.file} is missing")
        elif path.stat().st_size != promise.size:
            violations.append(f"{promise.file} has {path.stat().st_size:,} bytes, not {promise.size:,}")
        elif hosted(path) != promise:
            violations.append(f"{promise.file} has other content than the contract says, or its hosting name does not match its content")
    if content_version(agreed.outputs, agreed.files) != agreed.content:
        violations.append(f"the content version {agreed.content} is not that of the outputs and files listed")
    return violations


def _of_ports(agreed: Contract, ports: dict[str, tuple[str, tuple[int | str, ...]]]) -> list[str]:
    violations = []
    for output in agreed.outputs:
        if output.name not in ports:
            violations.append(f"the graph has no output {output.name}")
            continue
        kind, shape = ports[output.name]
        if kind != _ORT_TYPES[output.dtype]:
            violations.append(f"{output.name} is a {kind}, not {output.dtype}")
        if shape != output.shape:
            violations.append(f"{output.name} has the shape {list(shape)}, not {list(output.shape)}")
    named = {name for name in ports if name.split(".")[0] in MEANINGS}
    return violations + [
        f"the graph gives {name}, which is not in the contract" for name in sorted(named - {output.name for output in agreed.outputs})
    ]


def _of_values(agreed: Contract, call: Call, steps: Sequence[dict[str, np.ndarray]]) -> list[str]:
    violations = []
    past = 0
    for step, mask in zip(steps, step_masks(call), strict=True):
        rows, tokens = mask.shape
        sizes = {"batch": rows, "sequence": tokens, "total": past + tokens}
        for output in agreed.outputs:
            value = step[output.name]
            wanted = tuple(sizes.get(axis, -1) if isinstance(axis, str) else axis for axis in output.shape)
            if value.shape != wanted:
                violations.append(f"{output.name} comes out as {value.shape} for {rows} rows of {tokens} tokens after {past}, not {wanted}")
            elif not np.isfinite(real_rows(output.name, value, mask)).all():
                violations.append(f"{output.name} holds values that are not finite")
            elif output.kind == "attentions":
                violations += _of_sums(output, value, mask)
        past += tokens
    return violations


def _of_sums(output: ActivationOutput, value: np.ndarray, mask: np.ndarray) -> list[str]:
    sums = real_rows(output.name, value.astype(np.float32), mask).sum(-1)
    off = float(np.abs(sums - 1).max(initial=0.0))
    return [f"rows of {output.name} sum to 1 but for {off:.2g}"] if off > SUM_TOLERANCE[output.dtype] else []


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the folder that the command line names: 0 when all is kept, 1 when not, 2 when there is nothing to check."""
    parser = argparse.ArgumentParser(prog="python -m handlers.onnx.activations.check", description="Check a folder of onnx-activations.")
    parser.add_argument("folder", type=Path, help="folder with activations.json")
    folder = parser.parse_args(arguments).folder
    try:
        broken = contract_violations(folder)
    except CkptdError as error:
        print(error, file=sys.stderr)
        return 2
    for promise in broken:
        print(f"broken: {promise}")
    if not broken:
        agreed = read(folder)
        print(f"kept: {len(agreed.outputs)} outputs, content {agreed.content}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
