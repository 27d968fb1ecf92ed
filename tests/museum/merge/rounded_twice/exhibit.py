"""A merge that rounds the delta, and then the sum."""

from __future__ import annotations

import shutil
from pathlib import Path

from safetensors.torch import load_file

from daemon.contract.jobs.options import MergeOptions
from handlers.merge.api import merge_adapter
from tests.museum.exhibit import Exhibit, Source
from tests.museum.makers import Tensors, weights


def _make(models: Source, variant: str, target: Path) -> None:
    shutil.copytree(models.made("sound", variant), target)
    (exact := target.with_name("exact")).mkdir()
    merge_adapter(models.pin, models.base, exact, MergeOptions(dtype="float32"))
    base, whole = (load_file(folder / "model.safetensors") for folder in (models.base, exact))

    def round_twice(tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            delta = whole[name] - base[name].float()
            tensors[name] = (base[name].float() + delta.to(tensor.dtype).float()).to(tensor.dtype)

    weights(round_twice)(target)


EXHIBIT = Exhibit(
    bug="OpenAgentsInc/openagents#9456",
    name="a merge that rounds twice",
    happened="The adapter's delta was computed in fp32 and cast to bf16 before it was added to the base, and the sum was rounded again.",
    mutant="each delta is rounded to bf16 before the sum is",
    hall="chat, merged",
    variant="pytorch",
    make=_make,
    check="finding: merge",
    words=r"the merge is not the one that PEFT makes",
    merge=True,
    quick=True,
)
