"""The smallest reproduction of a failed export: a tiny configuration of the same architecture and a script, for the user or a bug report.

Written beside the attempt's log when all strategies have failed; the user runs it. For a language model the script stands alone:
torch, transformers, onnxscript and onnxruntime are all that it needs. For other models it goes through this package.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from handlers.families.base import OPERATION
from handlers.families.tiny_config import shrunk
from handlers.models.files import read_json
from handlers.onnx.export.failures.attempts import StrategyFailure
from handlers.onnx.tracing.strategies import STRATEGIES, Strategy

SCRIPT = "reproduce.py"
FOLDER = "reproduction"

_HEAD = '''\
"""Fails as the export of {architecture} to ONNX did, with a tiny model of random weights.

    python {script}

What failed: {strategy}: {reason}
If this works, the failure needs the model's real weights or sizes. Versions: {versions}.
"""
'''

_ALONE = """\
from pathlib import Path

import numpy as np
import onnxruntime
import torch
import transformers

EXPORTER, ATTENTION, EXPERTS, OPSET = {exporter!r}, {attention!r}, {experts!r}, {opset}

torch.manual_seed(0)
here = Path(__file__).resolve().parent
config = transformers.AutoConfig.from_pretrained(here)
model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION).float().eval().requires_grad_(False)
if EXPERTS:
    model.set_experts_implementation(EXPERTS)
names = ["input_ids", "attention_mask"]
if "position_ids" in model.forward.__code__.co_varnames or "position_ids" in str(__import__("inspect").signature(model.forward)):
    names.append("position_ids")


class FlatCache(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model

    def forward(self, *tensors):
        past = tensors[len(names):]
        cache = transformers.DynamicCache(list(zip(past[::2], past[1::2])))
        out = self.model(**dict(zip(names, tensors)), past_key_values=cache, use_cache=True)
        return (out.logits, *(tensor for layer in out.past_key_values.layers for tensor in (layer.keys, layer.values)))


def inputs(rows, new, past):
    ids = torch.randint(0, config.get_text_config().vocab_size, (rows, new))
    mask = torch.ones(rows, past + new, dtype=torch.long)
    if past:
        mask[0, :2] = 0
    positions = [torch.arange(past, past + new).repeat(rows, 1)] if "position_ids" in names else []
    return [ids, mask, *positions, *(torch.randn(rows, heads, past, size) for heads, size in sizes)]


with torch.no_grad():
    cache = model(torch.tensor([[1, 2]]), use_cache=True).past_key_values
sizes = [(tensor.shape[1], tensor.shape[3]) for layer in cache.layers for tensor in (layer.keys, layer.values)]
given = names + [f"past_key_values.{{i}}.{{kind}}" for i in range(len(sizes) // 2) for kind in ("key", "value")]
taken = ["logits"] + [f"present.{{i}}.{{kind}}" for i in range(len(sizes) // 2) for kind in ("key", "value")]
axes = {{name: {{0: "batch", 2: "past"}} for name in given}}
axes |= {{name: {{0: "batch", 1: "sequence"}} for name in names}} | {{"attention_mask": {{0: "batch", 1: "total"}}}}
path = here / "reproduced.onnx"
with torch.no_grad():
    if EXPORTER == "dynamo":
        dynamic = tuple(dict.fromkeys(axes[name], torch.export.Dim.DYNAMIC) for name in given)
        torch.onnx.export(
            FlatCache().eval(), tuple(inputs(2, 3, 5)), str(path), dynamo=True, input_names=given, output_names=taken,
            dynamic_shapes=(dynamic,), opset_version=OPSET,
        )
    else:
        axes |= {{name: {{0: "batch", 2: "total"}} for name in taken}} | {{"logits": {{0: "batch", 1: "sequence"}}}}
        torch.onnx.export(
            FlatCache().eval(), tuple(inputs(2, 3, 5)), str(path), dynamo=False, input_names=given, output_names=taken,
            dynamic_axes=axes, opset_version=OPSET, do_constant_folding=False,
        )
session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
assert [value.name for value in session.get_inputs()] == given, "inputs are missing from the graph"
for rows, new, past in ((1, 1, 0), (3, 7, 0), (3, 1, 9), (1, 23, 9), (1, 1, 40)):
    feeds = inputs(rows, new, past)
    with torch.no_grad():
        wanted = FlatCache()(*feeds)[0].numpy()
    found = session.run(["logits"], {{name: value.numpy() for name, value in zip(given, feeds)}})[0]
    error = np.abs(found - wanted)[:, -1].max() / np.abs(wanted).max()
    assert error < 1e-3, f"{{rows}} rows, {{new}} new tokens after {{past}}: the graph differs from torch by {{error:.2g}}"
print("the export works with random weights and these sizes")
"""

_THROUGH = """\
from pathlib import Path

from handlers.onnx.export.replay import replay

replay(Path(__file__).resolve().parent, {strategy!r}, {opset})
print("the export works with random weights and these sizes")
"""


def write(target: Path, source: Path, failures: Sequence[StrategyFailure], opset: int, kind: str, versions: str) -> Path | None:
    """Write configuration and script into `target`; gives the script, or None when there is no attempt to reproduce."""
    table = {strategy.name: strategy for strategy in STRATEGIES}
    reproducible = [failure for failure in failures if failure.strategy in table and failure.diagnosis.code != "not-installed"]
    if not reproducible:
        return None
    plain = [failure for failure in reproducible if _standalone(table[failure.strategy])]
    alone = kind == "causal" and bool(plain)
    failure = (plain if alone else reproducible)[0]
    strategy = table[failure.strategy]
    config = read_json(source / "config.json", OPERATION)
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(json.dumps(shrunk(config), indent=2) + "\n", encoding="utf-8")
    head = _HEAD.format(
        architecture=(config.get("architectures") or ["the model"])[0], script=SCRIPT, strategy=failure.strategy,
        reason=failure.reason.replace("\\", "/").replace('"""', "'''"), versions=versions,
    )  # fmt: skip
    body = _ALONE if alone else _THROUGH
    body = body.format(
        exporter=strategy.name.split("-")[0], attention=strategy.attention, experts=strategy.experts, opset=strategy.opset(opset),
        strategy=strategy.name,
    )  # fmt: skip
    (target / SCRIPT).write_text(head + body, encoding="utf-8")
    return target / SCRIPT


def _standalone(strategy: Strategy) -> bool:
    """Whether the script that does not need this package can reproduce the failure."""
    exporter = strategy.name.split("-")[0] in ("dynamo", "legacy")
    return exporter and not strategy.rewrite and strategy.cache and strategy.axes == "all"
