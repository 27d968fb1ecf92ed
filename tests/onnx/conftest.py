"""Models exported once for all tests of the ONNX stages."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.messages import CheckpointRef, ChildLimits, StageContext
from daemon.contract.jobs.options import ExportOptions, ValidateOptions, Work
from daemon.contract.jobs.plan import spec_of
from handlers.child.progress import Reporter, StageOutput
from handlers.onnx.options import OnnxOptions
from tests import models
from tests.sharing import shared


@dataclass(frozen=True)
class Exported:
    """A model, the folder that a stage made of it, and what the stage said."""

    source: Path
    folder: Path
    output: StageOutput


def make_context(
    folder: Path, stage: str, inputs: dict[str, Path], pin: Path, *, opset: int = 18, strategy: str = "default", optimize: Any = "none",
    **options: Any,
) -> StageContext:  # fmt: skip
    """A job file's content whose folders lie below `folder`. `options`: others of `[onnx]`."""
    for name in ("staging", "temporary", "cache"):
        (folder / name).mkdir(parents=True)
    checkpoint = CheckpointRef(
        root="/runs", run="demo", step=4, path="/runs/demo/checkpoint-4", layout="trainer-adapter", digest="0123", method="LORA",
        base_name="org/pico",
    )  # fmt: skip
    return StageContext(
        job="job", stage=stage, entry=spec_of(stage).entry, formats=catalog().entries, attempt=1,
        strategy=strategy, checkpoint=checkpoint, pin=str(pin),
        inputs={name: str(path) for name, path in inputs.items()}, staging=str(folder / "staging"), result=str(folder / "result.json"),
        temporary=str(folder / "temporary"), cache=str(folder / "cache"),
        work=Work(
            export=ExportOptions(opset=opset), validation=ValidateOptions(),
            onnx=OnnxOptions(optimize=optimize, templates=False, **options),
        ),
        limits=ChildLimits(threads=2, nice=0, idle=False),
    )  # fmt: skip


def silent() -> Reporter:
    """A reporter that nobody reads."""
    return Reporter(io.StringIO())


def make_model(folder: Path, kind: str, **options: Any) -> Path:
    """A tiny model of transformers' family `kind` ("Llama", "GPT2LMHead"…) with random weights, in fp32."""
    import torch
    import transformers

    torch.manual_seed(3)
    config = getattr(transformers, f"{kind.removesuffix('LMHead')}Config")(**options)
    name = f"{kind}Model" if kind.endswith("LMHead") else f"{kind}ForCausalLM"
    getattr(transformers, name)(config).save_pretrained(folder)
    return folder


SMALL = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1,
    "initializer_range": 0.15,
}  # fmt: skip


@pytest.fixture(scope="session")
def export(pico_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Exported]:
    """Runs the onnx stage on a model folder; the pico base's tokenizer serves as the checkpoint's."""
    from handlers.onnx.export import stage

    def run(source: Path, folder: Path | None = None, **options: Any) -> Exported:
        context = make_context(folder or tmp_path_factory.mktemp("onnx"), "onnx", {"merge": source}, pico_base, **options)
        return Exported(source, Path(context.staging), stage.run(context, silent()))

    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 of 0.3 M parameters that has learnt a few texts, stored in bf16: its probabilities mean something. Read only."""
    return shared(tmp_path_factory, "trained", train)


def train(folder: Path) -> Path:
    """Make that model in `folder`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    models.make_base(folder, dtype="float32", hidden_size=128, intermediate_size=256, initializer_range=0.02)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(models.TEXTS, padding=True, return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(40):
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def qwen3(trained: Path, export: Callable[..., Exported], tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The trained model as the onnx stage exports it. Read only."""
    return shared(tmp_path_factory, "qwen3", lambda folder: export(trained, folder))


@pytest.fixture
def equally_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """How fast a machine is just now decides nothing here."""
    patch_race(monkeypatch)


def patch_race(patch: pytest.MonkeyPatch) -> None:
    """Have any two graphs count as equally fast."""
    from handlers.onnx.optimize.judging import acceptance
    from handlers.onnx.optimize.judging.timing import Race

    patch.setattr(acceptance, "race", lambda *_, **__: Race(1.0, 1.0, "equal"))


@pytest.fixture(scope="session")
def qwen3_auto(trained: Path, export: Callable[..., Exported], tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The trained model as the stage exports it by default, its attention in one operator shown to be equal. Read only."""
    with pytest.MonkeyPatch.context() as patch:
        patch_race(patch)
        return shared(tmp_path_factory, "qwen3-auto", lambda folder: export(trained, folder, optimize="auto"))


@pytest.fixture(scope="session")
def two_layers(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Exported]:
    """A family of `deep_models` with two layers, traced, by its name and opset. Read only."""
    from tests.onnx.layers import deep_models

    def exported(name: str, opset: int = 18) -> Exported:
        def make(folder: Path) -> Exported:
            source = deep_models.make(folder / "model", name, num_hidden_layers=2)
            return deep_models.run(deep_models.job(folder / "job", source, templates=False, opset=opset))

        return shared(tmp_path_factory, f"two-layers-{name}-{opset}".replace(" ", "-"), make)

    return exported


def describe(folder: Path) -> None:
    """Write graphs.json for a folder whose model.onnx a test has made by hand."""
    import onnx

    from handlers.graphs.graph_file import GraphFile
    from handlers.graphs.graphset import GraphSet
    from handlers.graphs.sessions import described

    path = folder / "model.onnx"
    file = GraphFile(path, len(onnx.load(path).graph.node), path.stat().st_size, ())
    GraphSet(task="text-generation", family="causal", dtype="float32", opset=18, graphs=(described("model", file),)).write(folder)


def quantize(source: Path, folder: Path) -> Exported:
    """Run the onnx-int8 stage on an exported folder."""
    from handlers.onnx.quantize import int8

    context = make_context(folder, "onnx-int8", {"onnx": source}, source)
    return Exported(source, Path(context.staging), int8.run(context, silent()))


@pytest.fixture(scope="session")
def qwen3_int8(qwen3: Exported, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The trained model as int8 ONNX. Read only."""
    return shared(tmp_path_factory, "qwen3-int8", lambda folder: quantize(qwen3.folder, folder))


class Runner:
    """Feeds token ids to an exported graph with the names that the ecosystem uses, cache included."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime

        self.session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
        self.shapes = {value.name: value.shape for value in self.session.get_inputs()}

    def logits(self, ids: np.ndarray, mask: np.ndarray, steps: tuple[int, ...]) -> np.ndarray:
        """Logits (batch, tokens, vocabulary) of all tokens, fed in chunks of `steps` with the graph's own cache between them."""
        names = [name for name in self.shapes if name.startswith("past_key_values")]
        cache = [np.zeros((len(ids), self.shapes[name][1], 0, self.shapes[name][3]), np.float32) for name in names]
        positions = np.maximum(mask.cumsum(1) - 1, 0)
        answers, start = [], 0
        for step in steps:
            end = start + step
            feeds = {"input_ids": ids[:, start:end], "attention_mask": mask[:, :end], "position_ids": positions[:, start:end]}
            answer, *cache = self.session.run(None, {**feeds, **dict(zip(names, cache, strict=True))})
            answers.append(answer)
            start = end
        return np.concatenate(answers, axis=1)


def torch_logits(source: Path, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """What transformers says in one pass without a cache, in fp32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    positions = (torch.from_numpy(mask).cumsum(1) - 1).clamp(min=0)
    with torch.inference_mode():
        return model(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask), position_ids=positions).logits.numpy()


def prompts(batch: int, length: int, padding: int) -> tuple[np.ndarray, np.ndarray]:
    """Random token ids and a mask whose first row is padded on the left by `padding` tokens."""
    ids = np.random.default_rng(5).integers(2, 320, (batch, length))
    mask = np.ones_like(ids)
    mask[0, :padding] = 0
    return ids, mask
