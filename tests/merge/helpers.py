"""Real adapters on real pico bases, and the reference that PEFT itself gives."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.jobs.messages import CheckpointRef, ChildLimits, StageContext
from daemon.contract.jobs.options import ExportOptions, MergeOptions, ValidateOptions, Work
from handlers.child.progress import Reporter
from handlers.merge import Execution

ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def settings(**values: Any) -> tuple[MergeOptions, Execution]:
    """What is asked of a merge, and how it is run, from the fields of both."""
    options = {name: value for name, value in values.items() if name in MergeOptions.model_fields}
    return MergeOptions(**options), Execution(**{name: value for name, value in values.items() if name not in options})


def make_adapter(
    base: Path, folder: Path, *, cls: Any = None, seed: int = 3, std: float = 0.05, copies: bool | str = "auto", **options: Any
) -> Path:
    """An adapter saved by PEFT whose every trainable parameter is random, so that no delta is zero; `copies`: of embeddings."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = (cls or AutoModelForCausalLM).from_pretrained(base, dtype=torch.float32)
    defaults: dict[str, Any] = {"r": 4, "lora_alpha": 12, "target_modules": ALL_LINEAR, "task_type": "CAUSAL_LM"}
    model = get_peft_model(model, LoraConfig(**{**defaults, **options}))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            if "magnitude" in name or "modules_to_save" in name:
                parameter.data.mul_(1 + std * torch.randn_like(parameter))
            else:
                torch.nn.init.normal_(parameter, std=std * 4)
    model.save_pretrained(folder, save_embedding_layers=copies)
    return folder


def edit_config(folder: Path, **values: Any) -> None:
    """Change keys of adapter_config.json."""
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def rewrite(file: Path, change: Any) -> None:
    """Load a safetensors file, let `change` alter the table of tensors, and save it."""
    from safetensors.torch import load_file, save_file

    table = load_file(file)
    change(table)
    save_file(table, file, metadata={"format": "pt"})


def stored(folder: Path) -> dict[str, Any]:
    """All tensors of a model folder, as they are stored."""
    from safetensors.torch import load_file

    table: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        table.update(load_file(path))
    return table


def reference(base: Path, adapter: Path, dtype: str) -> dict[str, Any]:
    """State dict of PEFT's own merge_and_unload with the base loaded in `dtype`."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, dtype))
    return dict(PeftModel.from_pretrained(model, adapter).merge_and_unload().state_dict())


def live_logits(base: Path, adapter: Path, ids: Any) -> Any:
    """Logits of base + adapter, not merged, in fp32."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with torch.no_grad():
        return PeftModel.from_pretrained(model, adapter).eval()(input_ids=ids).logits


def logits(folder: Path, ids: Any) -> Any:
    """Logits in fp32 of the model that transformers loads from a folder."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()(input_ids=ids).logits


def context(folder: Path, pin: Path, base: Path | None, *, method: str = "LORA", **inputs: Path) -> StageContext:
    """A job file's content for one attempt, with its folders made below `folder`."""
    for name in ("staging", "temporary", "cache"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    reference = CheckpointRef(root="r", run="run", step=4, path=str(pin), layout="trainer-adapter", digest="0" * 64, method=method)
    return StageContext(
        job="j", stage="merge", entry="handlers.merge.stage:run", attempt=1,
        checkpoint=reference, pin=str(pin), base=None if base is None else str(base),
        inputs={name: str(path) for name, path in inputs.items()}, staging=str(folder / "staging"), result=str(folder / "result.json"),
        temporary=str(folder / "temporary"), cache=str(folder / "cache"), work=Work(export=ExportOptions(), validation=ValidateOptions()),
        limits=ChildLimits(nice=0, idle=False),
    )  # fmt: skip


def miscompute(patch: pytest.MonkeyPatch) -> None:
    """Let the engine write one wrong value in each block, as a broken processor or memory would."""
    from handlers.merge.engine import streaming

    prepare = streaming.prepare

    def prepared_wrongly(operation: Any, read: Any) -> Any:
        prepared = prepare(operation, read)

        def fill(first: int, weights: Any, out: Any) -> None:
            prepared.fill(first, weights, out)
            out[0, 0] += 0.5

        return replace(prepared, fill=fill)

    patch.setattr(streaming, "prepare", prepared_wrongly)


def reporter() -> Reporter:
    """A reporter that nobody listens to."""
    return Reporter(io.StringIO())


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Relative path → (size, mtime_ns) of all files: what must not change."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
