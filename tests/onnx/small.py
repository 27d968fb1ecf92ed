"""What the tests of the smaller ONNX forms share: running a stage, comparing graphs, a hand-made folder."""

from __future__ import annotations

import pkgutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from daemon.contract.jobs.plan import spec_of
from handlers.folder.playback import GraphRun, Player, run, tokenize
from handlers.graphs import graphset
from handlers.graphs.graph_file import GraphFile, external_files
from handlers.graphs.sessions import described, open_session
from handlers.onnx.options import OnnxOptions
from handlers.onnx.quantize.accuracy_levels import compare
from tests import models
from tests.onnx.conftest import Exported, make_context, silent


def derived(stage: str, source: Path, folder: Path, **options: Any) -> Exported:
    """Run the stage `onnx-…` on an ONNX folder."""
    context = make_context(folder, f"onnx-{stage.replace('_', '-')}", {"onnx": source}, source)
    context = context.model_copy(update={"work": context.work.with_options(OnnxOptions(**options))})
    run_stage = pkgutil.resolve_name(spec_of(context.stage).entry)
    return Exported(source, Path(context.staging), run_stage(context, silent()))


def distance(source: Path, smaller: Path) -> tuple[float, float]:
    """(error, agreement) of a folder against the fp32 one on texts that the models were trained on, prefill and one cached step."""
    calls: list[GraphRun] = []
    player = Player(source, graphset.read(source), 1)
    for row in tokenize(source, models.TEXTS).rows:
        calls += player.play(row)
    sessions = {graph.role: open_session(smaller / graph.file, 1) for graph in graphset.read(smaller).graphs}
    return compare(calls, [run(sessions[call.role], call.feeds) for call in calls])


def greedy_tokens(folder: Path, text: str, count: int = 12) -> list[int]:
    """A greedy continuation, as validation's own engine decodes it."""
    from handlers.validate.engines.graphs.onnx_causal import OnnxEngine
    from handlers.validate.engines.registry import EngineSpec
    from handlers.validate.workers.decoding import greedy

    engine = OnnxEngine(EngineSpec(engine="onnx", folder=str(folder)))
    return greedy(engine, engine.encode(text), count).tokens


def size(folder: Path) -> int:
    """Bytes of a folder's graphs and weights."""
    return graphset.read(folder).size(folder)


def store(folder: Path, graphs: dict[str, onnx.ModelProto], *, task: str = "text-generation", family: str = "causal") -> Path:
    """An ONNX folder of hand-made graphs by role, as the onnx stage would leave it; weights inside each graph."""
    folder.mkdir(parents=True)
    entries = []
    for role, proto in graphs.items():
        path = folder / f"{role}.onnx"
        onnx.save(proto, path)
        entries.append(described(role, GraphFile(path, len(proto.graph.node), path.stat().st_size, external_files(proto))))
    graphset.GraphSet(task=task, family=family, dtype="float32", opset=18, graphs=tuple(entries)).write(folder)
    return folder


def tensor(name: str, array: np.ndarray) -> onnx.TensorProto:
    """An initializer."""
    return onnx.numpy_helper.from_array(array, name)


def bert(folder: Path) -> Path:
    """An ONNX folder of a BERT of two layers with random weights, exported here without the onnx stage."""
    import json
    import warnings

    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(2)
    config = BertConfig(
        vocab_size=320, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, max_position_embeddings=128,
        initializer_range=0.1, attn_implementation="eager",
    )  # fmt: skip
    model = BertModel(config, add_pooling_layer=False).eval()

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
            states: torch.Tensor = self.model(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state
            return states

    names = ["input_ids", "attention_mask", "token_type_ids"]
    ids = torch.randint(2, 320, (2, 9))
    folder.mkdir(parents=True)
    path = folder / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Flat().eval(), (ids, torch.ones_like(ids), torch.zeros_like(ids)), path, dynamo=False, input_names=names,
            output_names=["last_hidden_state"], dynamic_axes={name: {0: "batch", 1: "sequence"} for name in (*names, "last_hidden_state")},
            opset_version=18,
        )  # fmt: skip
    proto = onnx.load(path)
    entry = described("model", GraphFile(path, len(proto.graph.node), path.stat().st_size, ()))
    graphset.GraphSet(task="feature-extraction", family="encoder", dtype="float32", opset=18, graphs=(entry,)).write(folder)
    (folder / "config.json").write_text(json.dumps({"vocab_size": 320, "max_position_embeddings": 128}))
    models.make_tokenizer().save_pretrained(folder)
    return folder


TEXT = "def add(a, b):"
