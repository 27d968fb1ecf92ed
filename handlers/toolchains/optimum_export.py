"""optimum's ONNX export of a merged model: another engine for a model that ours can't export. Runs inside the toolchain `optimum`.

    handlers.toolchains.use.run_module(folder, "handlers.toolchains.optimum_export",
        {"source": merged, "target": new_folder, "task": "text-generation", "opset": 18, "cache": 1,
         "scratch": new_folder}, temporary, Exported)

Always fp32. `cache` 0 leaves the KV cache out where the task decodes. An error names its type. Files: model.onnx, or encoder_model.onnx,
decoder_model.onnx and, with a cache, decoder_with_past_model.onnx; each with its weights beside it where they are large. config.json is
the caller's to copy: what optimum writes is of its older transformers.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from handlers.models.tasks import BY_NAME
from handlers.toolchains import inside, older_config

KEPT = (".onnx", ".onnx_data")
LIBRARIES = ("optimum-onnx", "optimum", "transformers", "torch", "onnx")


class ExportError(Exception):
    """What was exported is not what was asked for."""


def _load(source: Path, auto: str) -> Any:
    """The model in fp32; every weight must be read, and none left over."""
    import torch
    import transformers

    wanted = json.loads((source / "config.json").read_text(encoding="utf-8"))
    model, info = getattr(transformers, auto).from_pretrained(
        source, dtype=torch.float32, output_loading_info=True, local_files_only=True, trust_remote_code=False
    )
    lost = {key: sorted(info[key])[:5] for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[key]}
    if lost:
        raise ExportError(f"transformers {transformers.__version__} reads these weights differently: {lost}")
    older_config.check_read_back(wanted, lambda name: getattr(model.config, name, None))
    return model.eval()


@dataclass(frozen=True)
class Exported:
    """What was written."""

    files: list[str]
    opset: int
    task: str
    """Name in `handlers.models.tasks`."""
    seconds: float
    """That exporting took."""
    versions: dict[str, str]


def export(options: argparse.Namespace) -> Exported:
    """Export to `options.target`, a new folder. Raises ExportError, or whatever optimum raises."""
    import onnx
    import torch
    from optimum.exporters.onnx.convert import onnx_export_from_model

    torch.manual_seed(0)
    task, started = BY_NAME[options.task], time.monotonic()
    model = _load(older_config.readable_copy(options.source, options.scratch / "readable"), task.auto)
    name = f"{task.name}-with-past" if options.cache and task.kind != "encoder" else task.name
    # Folded, a tied embedding would be written a second time, turned.
    onnx_export_from_model(
        model, options.target, opset=options.opset, task=name, do_validation=False, no_post_process=task.kind == "seq2seq", device="cpu",
        do_constant_folding=False,
    )  # fmt: skip
    files = []
    for path in sorted(options.target.iterdir()):
        if not path.name.endswith(KEPT):
            path.unlink()
            continue
        files.append(path.name)
        if path.suffix == ".onnx":
            imports = onnx.load(path, load_external_data=False).opset_import
            opset = next(row.version for row in imports if row.domain in ("", "ai.onnx"))
            if opset != options.opset:
                raise ExportError(f"{path.name} has opset {opset}, and {options.opset} was asked for")
    return Exported(files, options.opset, task.name, round(time.monotonic() - started, 3), inside.versions(LIBRARIES))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, required=True, help="Folder of the merged model.")
    parser.add_argument("--target", type=Path, required=True, help="New folder of the graphs.")
    parser.add_argument("--scratch", type=Path, required=True, help="Empty folder for what is not kept.")
    parser.add_argument("--task", choices=sorted(BY_NAME), required=True)
    parser.add_argument("--opset", type=int, required=True)
    parser.add_argument("--cache", type=int, choices=(0, 1), default=1, help="Whether a decoder keeps its KV cache.")
    return parser


if __name__ == "__main__":
    inside.main(_parser(), export)
