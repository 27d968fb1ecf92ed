"""Mixtures of experts through the whole `ckptd export`: verified, published, and with the weights of stock PEFT's merge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests import models
from tests.merge.experts import moe_zoo
from tests.merge.experts.test_moe import load, stock_peft
from tests.merge.interrupted import ROOT

pytestmark = pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")
WAYS = {
    "qwen3-moe": "all-linear", "qwen2-moe": "alpha of experts", "mixtral": "all-linear", "olmoe": "rank of experts",
    "deepseek-v3": "all-linear", "granite-moe": "expressions", "gpt-oss": "router by its module", "llama4": "rsLoRA",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("form", ["safetensors", "bin"])
@pytest.mark.parametrize("family", moe_zoo.FAMILIES)
def test_an_export_of_a_mixture_of_experts_is_verified_and_is_what_stock_peft_merges(family: str, form: str, tmp_path: Path) -> None:
    tokenizer = models.make_tokenizer()
    base = moe_zoo.make(family, tmp_path / "base", "float32", form, vocab_size=len(tokenizer), max_position_embeddings=256)
    tokenizer.save_pretrained(base)
    checkpoint = moe_zoo.adapt(family, base, tmp_path / "runs" / family / "checkpoint-4", **moe_zoo.ways(family)[WAYS[family]])
    tokenizer.save_pretrained(checkpoint)
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": 4}))
    environment = {
        **os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "CKPTD_EXPORT__VARIANTS": "pytorch", "CKPTD_VALIDATE__SAMPLES": "2",
        "CKPTD_VALIDATE__NEW_TOKENS": "4", "CKPTD_VALIDATE__SPEED_TOKENS": "0", "CKPTD_LIMITS__DISK_RESERVE": "0",
    }  # fmt: skip
    command = [sys.executable, "-m", "daemon", "export", str(checkpoint), "--output", str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (published,) = (path.parent for path in (tmp_path / "out").glob("*/*/MANIFEST.json") if not path.parent.is_symlink())
    report = json.loads((published / "report.json").read_bytes())
    assert [(one["variant"], one["verdict"]) for one in report["artifacts"]] == [("pytorch", "passed")]
    job = {"base": str(base), "adapter": str(checkpoint), "output": str(tmp_path / "peft"), "dtype": "float32",
           "auto": "AutoModelForCausalLM", "example": "ids"}  # fmt: skip
    stock_peft([job], tmp_path)
    stock, mine = load_file(tmp_path / "peft" / "merged.safetensors"), load(published / "pytorch", "float32").state_dict()
    assert stock.keys() == mine.keys()
    assert [name for name in stock if not torch.allclose(stock[name], mine[name], rtol=1e-6, atol=1e-7)] == []
