"""onnx-activations gives a model's inner values under stable names, promises them in a contract, and keeps it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from daemon.config.loading import load
from daemon.contract.faults.errors import Permanent
from daemon.contract.jobs.messages import StageContext
from daemon.contract.jobs.plan import effective_variants, find_variant, spec_of
from handlers.graphs import graphset
from handlers.onnx.activations import forms
from handlers.onnx.activations import stage as activations
from handlers.onnx.activations.check import contract_violations, main
from handlers.onnx.activations.contract import FILE, Contract, content_version, hosted, read
from handlers.onnx.activations.locate import NotInGraphError
from handlers.onnx.options import OnnxOptions
from tests.onnx.conftest import Exported, make_context, prompts, silent
from tests.onnx.test_encoders import batch, make

EVERYTHING = {"layers": "all", "kinds": ("hidden_states", "attentions", "embeddings", "mlp")}
Activate = Callable[..., Exported]


def context_for(exported: Exported, folder: Path, **options: Any) -> StageContext:
    context = make_context(folder, "onnx-activations", {"merge": exported.source, "onnx": exported.folder}, exported.source)
    return context.model_copy(update={"work": context.work.with_options(OnnxOptions(**options))})


@pytest.fixture(scope="session")
def activate(tmp_path_factory: pytest.TempPathFactory) -> Activate:
    """Runs the onnx-activations stage on an exported model."""

    def run(exported: Exported, **options: Any) -> Exported:
        context = context_for(exported, tmp_path_factory.mktemp("activations"), **options)
        return Exported(exported.source, Path(context.staging), activations.run(context, silent()))

    return run


@pytest.fixture(scope="session")
def everything(qwen3: Exported, activate: Activate) -> Exported:
    """Every activation of the trained model. Read only."""
    return activate(qwen3, **EVERYTHING)


@pytest.fixture
def copy(everything: Exported, tmp_path: Path) -> Path:
    """The folder of every activation, to be damaged."""
    return Path(shutil.copytree(everything.folder, tmp_path / "copy"))


def run_steps(folder: Path, ids: np.ndarray, mask: np.ndarray, steps: tuple[int, ...]) -> list[dict[str, np.ndarray]]:
    """Every output of each step by name, the cache going from one to the next."""
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    types = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    past = {value.name: np.zeros((len(ids), value.shape[1], 0, value.shape[3]), types[value.type])
            for value in session.get_inputs() if value.name.startswith("past")}  # fmt: skip
    positions = np.maximum(mask.cumsum(1) - 1, 0)
    found, start = [], 0
    for step in steps:
        end = start + step
        feeds = {"input_ids": ids[:, start:end], "attention_mask": mask[:, :end], "position_ids": positions[:, start:end]}
        found.append(dict(zip(names, session.run(names, {**feeds, **past}), strict=True)))
        past = {name: found[-1][name.replace("past_key_values", "present")] for name in past}
        start = end
    return found


def by_transformers(source: Path, ids: np.ndarray, mask: np.ndarray) -> dict[str, Any]:
    """What transformers itself gives when asked for hidden states and attentions, and its final norm."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="eager").eval()
    kept: dict[int, Any] = {}
    for number, layer in enumerate(model.model.layers):
        layer.mlp.register_forward_hook(lambda _module, _inputs, output, number=number: kept.update({number: output.numpy()}))
    positions = (torch.from_numpy(mask).cumsum(1) - 1).clamp(min=0)
    asked: dict[str, Any] = {"output_hidden_states": True, "output_attentions": True, "position_ids": positions}
    with torch.inference_mode():
        output = model(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask), **asked)
    return {
        "hidden": [value.numpy() for value in output.hidden_states], "attentions": [value.numpy() for value in output.attentions],
        "mlp": kept, "norm": lambda array: model.model.norm(torch.from_numpy(array)).detach().numpy(),
    }  # fmt: skip


# R9
@pytest.mark.parametrize(("rows", "steps", "padding"), [(1, (9,), 0), (3, (6, 1, 2), 2)])
def test_activations_are_those_of_transformers_in_prefill_and_with_a_cache(
    everything: Exported, rows: int, steps: tuple[int, ...], padding: int
) -> None:
    ids, mask = prompts(rows, sum(steps), padding)
    found, wanted = run_steps(everything.folder, ids, mask, steps), by_transformers(everything.source, ids, mask)
    start = 0
    for step, got in zip(steps, found, strict=True):
        end = start + step
        real = mask[:, start:end].astype(bool)
        pairs = [(got["embeddings"], wanted["hidden"][0]), (got["hidden_states.0"], wanted["hidden"][1])]
        pairs += [(wanted["norm"](got["hidden_states.1"]), wanted["hidden"][2])]
        pairs += [(got[f"mlp.{layer}"], wanted["mlp"][layer]) for layer in range(2)]
        for first, second in pairs:
            assert np.abs(first - second[:, start:end])[real].max() < 1e-4
        for layer in range(2):
            weights = wanted["attentions"][layer][:, :, start:end, :end]
            assert np.abs(got[f"attentions.{layer}"] - weights).swapaxes(1, 2)[real].max() < 1e-5
        start = end


def test_everything_that_the_plain_graph_gives_is_given_as_it_was(qwen3: Exported, everything: Exported) -> None:
    ids, mask = prompts(2, 6, 1)
    for plain, extended in zip(*(run_steps(one.folder, ids, mask, (4, 1, 1)) for one in (qwen3, everything)), strict=True):
        assert plain.keys() < extended.keys()
        assert all(np.allclose(plain[name], extended[name], atol=1e-5) for name in plain)
    before, after = (graphset.read(one.folder) for one in (qwen3, everything))
    assert after.graphs[0].inputs == before.graphs[0].inputs
    assert after.graphs[0].outputs[: len(before.graphs[0].outputs)] == before.graphs[0].outputs
    assert sorted(path.name for path in everything.folder.iterdir()) == sorted(
        [*(path.name for path in qwen3.folder.iterdir()), FILE, "activations.py", "hosting.js"]
    )


def test_the_example_shows_what_the_graph_gives(everything: Exported, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    command = [sys.executable, "-I", str(everything.folder / "activations.py"), "def add(", "--npz", str(tmp_path / "kept.npz")]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout
    tokens, *lines = shown.splitlines()
    assert tokens.startswith('tokens: "def" ')
    ids = np.array([Tokenizer.from_file(str(everything.folder / "tokenizer.json")).encode("def add(").ids])
    (wanted,) = run_steps(everything.folder, ids, np.ones_like(ids), (ids.shape[1],))
    listed = read(everything.folder).outputs
    with np.load(tmp_path / "kept.npz") as kept:
        assert sorted(kept) == sorted(["input_ids", *(one.name for one in listed)])
        for one, line in zip(listed, lines, strict=True):
            assert np.allclose(kept[one.name], wanted[one.name], atol=1e-5)
            size = np.sqrt(np.square(kept[one.name]).mean())
            assert line == f"{one.name} {kept[one.name].shape} {size:.4g}: {one.meaning}"


def test_the_last_layers_hidden_states_are_what_is_given_by_default(qwen3: Exported, activate: Activate) -> None:
    made = activate(qwen3)
    assert [output.name for output in read(made.folder).outputs] == ["hidden_states.1"]
    assert made.output.warnings == [] and made.output.fallbacks == []


def test_layers_can_be_numbers_and_one_that_is_not_there_is_refused(qwen3: Exported, activate: Activate) -> None:
    made = activate(qwen3, layers=(0,), kinds=("attentions", "mlp"))
    assert [output.name for output in read(made.folder).outputs] == ["attentions.0", "mlp.0"]
    with pytest.raises(Permanent, match="layer 2, 7 was requested, but the model has 2 layers, 0 to 1") as refusal:
        activate(qwen3, layers=(0, 2, 7))
    assert refusal.value.fault.code == "no-such-layer"
    with pytest.raises(Permanent, match="name no activation"):
        activate(qwen3, kinds=())


def test_the_contract_says_what_each_output_is(everything: Exported) -> None:
    agreed = read(everything.folder)
    assert {output.name: (output.dtype, output.shape, output.module) for output in agreed.outputs} == {
        "embeddings": ("float32", ("batch", "sequence", 128), "model.layers.0"),
        **{f"hidden_states.{i}": ("float32", ("batch", "sequence", 128), f"model.layers.{i}") for i in range(2)},
        **{f"attentions.{i}": ("float32", ("batch", 4, "sequence", "total"), f"model.layers.{i}") for i in range(2)},
        **{f"mlp.{i}": ("float32", ("batch", "sequence", 128), f"model.layers.{i}.mlp") for i in range(2)},
    }
    assert (agreed.layers, agreed.task) == (2, "text-generation")
    assert all(output.meaning and "{" not in output.meaning for output in agreed.outputs)
    names = [port.name for port in graphset.read(everything.folder).graphs[0].outputs]
    assert names[-7:] == [output.name for output in agreed.outputs] == everything.output.figures["activations"]


def test_files_have_names_under_which_a_host_may_cache_them_for_ever(everything: Exported, tmp_path: Path) -> None:
    (file,) = read(everything.folder).files
    assert (file.file, file.hosted_as) == ("model.onnx", f"model-{file.sha256[:12]}.onnx")
    (tmp_path / "model.onnx.data").write_bytes(b"weights")
    assert hosted(tmp_path / "model.onnx.data").hosted_as.endswith(".onnx.data")


def test_the_content_version_is_the_same_for_the_same_content_and_another_for_another(
    qwen3: Exported, everything: Exported, activate: Activate
) -> None:
    content = everything.output.figures["content"]
    assert activate(qwen3, **EVERYTHING).output.figures["content"] == content == read(everything.folder).content
    assert activate(qwen3, layers="all").output.figures["content"] != content


# R9
def test_the_size_of_all_layers_is_said_before_and_afterwards(qwen3: Exported, everything: Exported) -> None:
    (warning,) = everything.output.warnings
    ids, mask = prompts(1, 10, 0)
    (got,) = run_steps(everything.folder, ids, mask, (10,))
    extra = {output.name: got[output.name].nbytes for output in read(everything.folder).outputs}
    attentions = sum(size for name, size in extra.items() if name.startswith("attentions"))
    assert f"take {(sum(extra.values()) - attentions) // 10:,} bytes for each token" in warning
    assert f"{attentions // 10 // 10:,} bytes more for each token that it may attend to" in warning


def test_the_checker_passes_a_folder_that_keeps_its_contract(everything: Exported) -> None:
    assert contract_violations(everything.folder) == []
    command = [sys.executable, "-m", "handlers.onnx.activations.check", str(everything.folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, f"kept: 7 outputs, content {read(everything.folder).content}\n"), done.stderr


def test_the_checker_needs_no_torch(everything: Exported) -> None:
    code = (
        f"import sys; from handlers.onnx.activations import check as c; c.main([{str(everything.folder)!r}]); print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100).stdout.endswith("False\n")


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the contract and make its content version fit."""
    value = json.loads((folder / FILE).read_text())
    change(value)
    agreed = Contract.model_validate(value)
    agreed.model_copy(update={"content": content_version(agreed.outputs, agreed.files)}).write(folder)


def regraph(folder: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    """Change the graph and make the contract's digests fit."""
    model = onnx.load(folder / "model.onnx")
    change(model)
    onnx.save(model, folder / "model.onnx")
    rewrite(folder, lambda value: value.update(files=[hosted(folder / "model.onnx").model_dump()]))


def other_values(name: str, operator: str) -> Callable[[onnx.ModelProto], None]:
    """Have an output computed by another operator than Identity."""

    def change(model: onnx.ModelProto) -> None:
        next(node for node in model.graph.node if name in node.output).op_type = operator

    return change


def drop_output(model: onnx.ModelProto) -> None:
    model.graph.output.remove(next(value for value in model.graph.output if value.name == "mlp.1"))


BREAKS: list[tuple[Callable[[Path], None], str]] = [
    (lambda folder: (folder / "model.onnx").unlink(), "model.onnx is missing"),
    (lambda folder: (folder / "model.onnx").write_bytes(b"cut"), "model.onnx has 3 bytes, not"),
    (lambda folder: rewrite(folder, lambda value: value["files"][0].update(sha256="0" * 64)), "other content than the contract says"),
    (lambda folder: rewrite(folder, lambda value: value["outputs"].pop()), "the graph gives mlp.1, which is not in the contract"),
    (lambda folder: rewrite(folder, lambda value: value["outputs"][0].update(name="embedding")), "the graph has no output embedding"),
    (lambda folder: rewrite(folder, lambda value: value["outputs"][0].update(dtype="float16")), "is a tensor(float), not float16"),
    (lambda folder: rewrite(folder, lambda value: value["outputs"][0].update(shape=["batch", "total", 128])), "has the shape"),
    (lambda folder: (folder / FILE).write_text((folder / FILE).read_text().replace("what the first", "what no")), "content version"),
    (lambda folder: regraph(folder, drop_output), "the graph has no output mlp.1"),
    (lambda folder: regraph(folder, other_values("hidden_states.0", "Log")), "hidden_states.0 holds values that are not finite"),
    (lambda folder: regraph(folder, other_values("attentions.1", "Exp")), "rows of attentions.1 sum to 1 but for"),
]  # fmt: skip


# R9
@pytest.mark.parametrize(("damage", "said"), BREAKS, ids=[said for _, said in BREAKS])
def test_the_checker_names_a_broken_promise(
    copy: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None], said: str
) -> None:
    damage(copy)
    assert main([str(copy)]) == 1
    assert said in capsys.readouterr().out


def test_a_folder_without_a_contract_is_no_passing_one(qwen3: Exported, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(qwen3.folder)]) == 2
    assert "it holds no activations.json" in capsys.readouterr().err


def test_values_that_are_not_torchs_fail_the_stage(qwen3: Exported, activate: Activate, monkeypatch: pytest.MonkeyPatch) -> None:
    real = activations.find

    def confused(*arguments: Any) -> Any:
        found = real(*arguments)
        return found | {"hidden_states.0": found["hidden_states.1"], "hidden_states.1": found["hidden_states.0"]}

    monkeypatch.setattr(activations, "find", confused)
    with pytest.raises(Permanent, match=r"hidden_states\.\d differs from torch's by") as failure:
        activate(qwen3, layers="all")
    assert failure.value.fault.code == "activations-mismatch"


def test_encoder_decoders_are_refused_with_the_reason(qwen3: Exported, activate: Activate, tmp_path: Path) -> None:
    shutil.copytree(qwen3.folder, tmp_path, dirs_exist_ok=True)
    graphset.read(tmp_path).model_copy(update={"family": "seq2seq"}).write(tmp_path)
    with pytest.raises(Permanent, match="a model of the family seq2seq"):
        activate(Exported(qwen3.source, tmp_path, qwen3.output), **EVERYTHING)


def assert_right_for_an_encoder(made: Exported, auto: str) -> None:
    """Hidden states and attentions against transformers' own, with padding on both sides."""
    import torch
    import transformers

    model = getattr(transformers, auto).from_pretrained(made.source, attn_implementation="eager").eval()
    session = onnxruntime.InferenceSession(str(made.folder / "model.onnx"), providers=["CPUExecutionProvider"])
    inputs, outputs = ([value.name for value in values] for values in (session.get_inputs(), session.get_outputs()))
    feeds = batch(3, 11, pad=model.config.pad_token_id, types="token_type_ids" in inputs)
    with torch.inference_mode():
        wanted = model(**{name: torch.from_numpy(feed) for name, feed in feeds.items()}, output_hidden_states=True, output_attentions=True)
    got = dict(zip(outputs, session.run(None, feeds), strict=True))
    real = feeds["attention_mask"].astype(bool)
    layers = read(made.folder).layers
    assert layers == len(wanted.attentions) == 2
    assert np.abs(got["embeddings"] - wanted.hidden_states[0].numpy())[real].max() < 1e-4
    assert np.abs(got["hidden_states.0"] - wanted.hidden_states[1].numpy())[real].max() < 1e-4
    for layer in range(layers):
        weights = wanted.attentions[layer].numpy()
        assert np.abs(got[f"attentions.{layer}"] - weights).swapaxes(1, 2)[real].max() < 1e-5


@pytest.mark.slow
# R9
def test_an_encoder_gives_its_activations_too(export: Callable[..., Exported], activate: Activate, tmp_path: Path) -> None:
    made = activate(export(make(tmp_path, "Bert", "feature-extraction"), strategy="legacy-eager"), **EVERYTHING)
    assert made.output.fallbacks == []
    assert_right_for_an_encoder(made, "AutoModel")
    assert read(made.folder).outputs[2].shape == ("batch", 4, "sequence", "sequence")
    assert contract_violations(made.folder) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "task"), [("ModernBert", "fill-mask"), ("DebertaV2", "token-classification"), ("DistilBert", "question-answering"),
                       ("Electra", "text-classification"), ("GPT2", "feature-extraction"), ("Llama", "text-classification")],
)  # fmt: skip
def test_activations_are_found_in_graphs_of_every_family(
    export: Callable[..., Exported], activate: Activate, tmp_path: Path, kind: str, task: str
) -> None:
    made = activate(export(make(tmp_path, kind, task)), **EVERYTHING)
    assert made.output.fallbacks == [] and made.output.figures["relative_error"] < 1e-5
    assert contract_violations(made.folder) == []


def test_a_model_whose_layers_are_one_and_the_same_is_refused(qwen3: Exported, activate: Activate, tmp_path: Path) -> None:
    source = make(tmp_path / "albert", "Albert", "text-classification")
    graphs = graphset.read(qwen3.folder).model_copy(update={"task": "text-classification", "family": "encoder"})
    (tmp_path / "onnx").mkdir()
    graphs.write(tmp_path / "onnx")
    shutil.copy(source / "config.json", tmp_path / "onnx")
    with pytest.raises(Permanent, match="AlbertForSequenceClassification has no list of 2 modules that are its layers"):
        activate(Exported(source, tmp_path / "onnx", qwen3.output), **EVERYTHING)


@pytest.mark.slow
@pytest.mark.parametrize(("opset", "strategy"), [(23, "dynamo-sdpa"), (18, "legacy-eager")])
def test_activations_that_an_optimization_did_away_with_are_exported_anew(
    export: Callable[..., Exported], activate: Activate, pico_base: Path, monkeypatch: pytest.MonkeyPatch, opset: int, strategy: str
) -> None:
    plain = export(pico_base, opset=opset, strategy=strategy)
    fused = [node.op_type for node in onnx.load(plain.folder / "model.onnx").graph.node if node.op_type == "Attention"]
    if opset == 18:

        def not_there(*_arguments: Any) -> Any:
            raise NotInGraphError(["attentions.0", "attentions.1"])

        monkeypatch.setattr(activations, "find", not_there)
    else:
        assert len(fused) == 2
    made = activate(plain, **EVERYTHING)
    (fallback,) = made.output.fallbacks
    assert fallback.reason == "the graph holds no value that equals attentions.0, attentions.1"
    assert contract_violations(made.folder) == []
    assert made.output.figures["relative_error"] < 1e-5


# R9
def test_int8_and_fp16_forms_keep_the_contract_and_stay_near(everything: Exported, tmp_path: Path) -> None:
    before = (everything.folder / "model.onnx").stat().st_size
    kinds = (("int8", forms.integers, "float32", 0.45, 0.2), ("fp16", forms.half, "float16", 0.65, 0.01))
    for name, run_stage, dtype, share, near in kinds:
        context = make_context(tmp_path / name, f"onnx-activations-{name}", {"onnx-activations": everything.folder}, everything.source)
        output = run_stage(context, silent())
        folder = Path(context.staging)
        agreed = read(folder)
        assert contract_violations(folder) == []
        assert {one.dtype for one in agreed.outputs} == {dtype}
        assert [one.name for one in agreed.outputs] == [one.name for one in read(everything.folder).outputs]
        assert output.figures["content"] == agreed.content != read(everything.folder).content
        assert 0 < max(output.figures["activation_errors"].values()) < near
        assert (folder / "model.onnx").stat().st_size < share * before


def test_each_variant_can_be_judged_and_asked_for_by_its_quantization() -> None:
    names = ["onnx-activations", "onnx-activations-fp16", "onnx-activations-int8"]
    assert all(find_variant(name) for name in names)
    assert effective_variants(["onnx-activations"], "int8") == (names[0], names[2])
    assert effective_variants(["onnx-activations"], "fp16") == (names[0], names[1])
    assert {"onnx.layers", "onnx.kinds"} <= set(spec_of("onnx-activations").settings)


# R9
@pytest.mark.parametrize(("written", "layers"), [('"last"', "last"), ('"all"', "all"), ("[0, 5, 11]", (0, 5, 11))])
def test_layers_and_kinds_are_read_from_the_file(tmp_path: Path, written: str, layers: Any) -> None:
    (tmp_path / "config.toml").write_text(f'[onnx]\nlayers = {written}\nkinds = ["attentions", "mlp"]\n')
    options = load(tmp_path / "config.toml").onnx
    assert (options.layers, options.kinds) == (layers, ("attentions", "mlp"))
    assert OnnxOptions.model_validate_json(options.model_dump_json()) == options


def test_layers_and_kinds_are_read_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.toml").write_text("")
    monkeypatch.setenv("CKPTD_ONNX__LAYERS", "0,5,11")
    monkeypatch.setenv("CKPTD_ONNX__KINDS", "hidden_states,embeddings")
    options = load(tmp_path / "config.toml").onnx
    assert (options.layers, options.kinds) == ((0, 5, 11), ("hidden_states", "embeddings"))
