"""Published exports that are made by hand, small and true: every file is in the manifest with its digest, and the report has verdicts."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SMALL = {
    "README.md": b"# An export\n",
    "pytorch/config.json": b'{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}',
    "pytorch/model.safetensors": 150_000,
    "pytorch/empty.txt": b"",
    "onnx/model.onnx": 40_000,
    "onnx/model.onnx_data": 90_000,
    "onnx/tokenizer für 日本語 #1 100%.json": b'{"version": "1.0"}',
    "onnx/deep/er/vocab.txt": b"a\nb\n",
}
"""Contents, or so many bytes of noise, by path."""


@dataclass(frozen=True)
class Export:
    """A published export."""

    folder: Path
    run: str
    step: int
    digests: Mapping[str, str]
    """SHA-256 by path, the manifest not among them."""

    @property
    def size(self) -> int:
        return sum((self.folder / path).stat().st_size for path in self.digests)


def make(
    folder: Path,
    run: str = "run-a",
    step: int = 100,
    files: Mapping[str, bytes | int] = SMALL,
    seed: int | None = None,
    own: bool = False,
    **verdicts: str,
) -> Export:
    """Write an export. Noise depends on `seed`, by default the step, so that another step has other weights and the same small files;
    `own`: those differ too, and from those of all
    other runs."""
    digests, entries = {}, []
    for path, contents in files.items():
        noise = random.Random(f"{path} {step if seed is None else seed}" + (f" {run} {step}" if own else ""))
        data = noise.randbytes(contents) if isinstance(contents, int) else contents
        if own and data and not isinstance(contents, int):
            data += f" {run} {step} {seed}".encode()
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
        digests[path] = hashlib.sha256(data).hexdigest()
        entries.append({"path": path, "size": len(data), "sha256": digests[path]})
    variants = sorted({path.split("/")[0] for path in files if "/" in path})
    report = {
        "schema_version": 1, "checkpoint": {"run": run, "step": step},
        "artifacts": [{"variant": name, "verdict": verdicts.get(name.replace("-", "_"), "passed")} for name in variants],
    }  # fmt: skip
    (folder / "report.json").write_text(json.dumps(report))
    data = (folder / "report.json").read_bytes()
    digests["report.json"] = hashlib.sha256(data).hexdigest()
    entries.append({"path": "report.json", "size": len(data), "sha256": digests["report.json"]})
    manifest = {"manifest_version": 1, "ckptd": "1.0.0", "run": run, "step": step, "export_id": f"{run}/{step}", "files": entries}
    (folder / "MANIFEST.json").write_text(json.dumps(manifest, indent=1))
    return Export(folder, run, step, digests)


def report(export: Export, **more: object) -> None:
    """Put more into an export's report, and the report into its manifest."""
    path = export.folder / "report.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | more))
    data, manifest = path.read_bytes(), json.loads((export.folder / "MANIFEST.json").read_text())
    for entry in manifest["files"]:
        if entry["path"] == path.name:
            entry |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (export.folder / "MANIFEST.json").write_text(json.dumps(manifest, indent=1))
