"""An epsilon that is fixed."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.museum.exhibit import Exhibit, Source, damaged
from tests.museum.makers import config
from tests.validate import artifacts


def _with_another_epsilon(models: Source, variant: str, target: Path) -> None:
    other = target.with_name("pytorch")
    damaged(config(rms_norm_eps=1e-5))(models, "pytorch", other)
    artifacts.export_onnx(other, target)
    shutil.copyfile(models.made("sound", "pytorch") / "config.json", target / "config.json")


EXHIBIT = Exhibit(
    bug="nomic-ai/gpt4all#1946",
    name="an epsilon that is fixed",
    happened="The epsilon of the norms was written into the code (1e-5), and the model's own (1e-12) was not read.",
    mutant="the graph is of the model with another epsilon",
    hall="chat",
    variant="onnx",
    make=_with_another_epsilon,
    check="limit: merged",
    words=r"differs from the merged",
    quick=True,
)
