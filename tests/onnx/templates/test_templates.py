"""A graph is traced once for an architecture, of few layers, and filled for each checkpoint: equal to the one that is traced whole."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from pydantic import TypeAdapter

from daemon.contract.jobs.messages import StageContext
from handlers.families.base import Tracing
from handlers.families.choice import choose
from handlers.onnx.export import template_making, templated
from handlers.onnx.templates import filling, layers, repetition, shallow
from handlers.onnx.templates import sources as template_sources
from handlers.onnx.templates.sources import Finder, Source
from handlers.onnx.templates.store import FILE, FOLDER, Store
from handlers.onnx.templates.weights import Weights
from handlers.onnx.tracing.strategies import STRATEGIES, Strategy, named
from tests.onnx.conftest import SMALL, Exported
from tests.onnx.layers.deep_models import MODELS, canonical, job, make, run
from tests.sampling import some
from tests.sharing import shared

DYNAMO = named(STRATEGIES, "dynamo-eager")
STACK = repetition.Stack("model.layers.", (0,) * 5, (0, 1, 4))


def key_of(context: StageContext, strategy: Strategy) -> str:
    """The key of the template of a job."""
    return templated.key_for(context, strategy, Weights(Path(context.inputs["merge"])))


def used(exported: Exported) -> tuple[str, list[int]]:
    """How the template was used, and the layers that were traced."""
    told: Any = exported.output.figures["template"]
    return told["used"], told.get("layers", [])


def kinds(model: Any) -> tuple[int, ...]:
    """Of the layers of a model that has one list of them."""
    found = layers.of_model(model)
    assert found is not None and len(found.lists) == 1
    return found.lists[0].kinds


def kept_and_read(source: Source) -> Source:
    """A source as it comes back from a file."""
    kind = TypeAdapter(Source)
    return kind.validate_json(kind.dump_json(source))


def scaled(factor: float) -> Any:
    """A function that is the same but for what it holds."""
    return lambda values: values * factor


def stacks_of(whole: layers.Outline, weights: Weights) -> tuple[repetition.Stack, ...]:
    """The layers that stand for all of each list."""
    found = []
    for one in whole.lists:
        kept = layers.chosen(one.kinds) or tuple(range(one.depth))
        found.append(repetition.Stack(shallow.prefix_of(weights.infos, one), one.kinds, kept))
    assert not all(stack.whole for stack in found)
    return tuple(found)


def digests(whole: layers.Outline, stacks: tuple[repetition.Stack, ...]) -> list[list[str]]:
    """Of the layers that stand for all."""
    return [[one.digests[layer] for layer in stack.kept] for one, stack in zip(whole.lists, stacks, strict=True)]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Exported, Path]:
    """A Llama of five layers, exported by a template, and the cache with that template. Read only."""

    def export(folder: Path) -> tuple[Exported, Path]:
        return run(job(folder / "job", make(folder / "model", "Llama", num_hidden_layers=5))), folder / "job" / "cache"

    return shared(tmp_path_factory, "template-llama", export)


def of_own(llama: tuple[Exported, Path], tmp_path: Path) -> Path:
    """A copy of the cache that a test may damage."""
    return shutil.copytree(llama[1], tmp_path / "cache")


def assert_as_traced(source: Path, exported: Exported, folder: Path) -> None:
    """The graphs are those that tracing the whole model gives: what every output computes, and all nodes."""
    traced = run(job(folder, source, templates=False))
    assert sorted(path.name for path in traced.folder.iterdir()) == sorted(path.name for path in exported.folder.iterdir())
    for path in traced.folder.glob("*.onnx"):
        assert canonical(exported.folder / path.name) == canonical(path), path.name


def test_a_few_layers_are_traced_and_the_graph_is_the_one_of_the_whole_model(llama: tuple[Exported, Path], tmp_path: Path) -> None:
    assert used(llama[0]) == ("made", [0, 1, 4])
    assert_as_traced(llama[0].source, llama[0], tmp_path)


def test_the_next_checkpoint_is_filled_without_tracing(
    llama: tuple[Exported, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make(tmp_path / "model", "Llama", seed=4, num_hidden_layers=5)
    monkeypatch.setattr(template_making.building, "trace", lambda *_: pytest.fail("it was traced"))
    found = run(job(tmp_path / "job", source, llama[1]))
    monkeypatch.undo()
    assert used(found) == ("kept", [0, 1, 4]) and float(str(found.output.figures["relative_error"])) < 1e-5
    metadata = ir.load(found.folder / "model.onnx").metadata_props
    assert metadata["ckptd.run"] == "demo" and "ckptd.version" in metadata


@pytest.mark.parametrize(
    "changed",
    [
        {"source": {"rms_norm_eps": 1e-5}}, {"source": {"rope_theta": 5000.0}}, {"source": {"intermediate_size": 96}},
        {"source": {"num_hidden_layers": 6}}, {"source": {"hidden_act": "gelu"}}, {"opset": 20}, {"cache": False}, {"optimize": "basic"},
    ],
    ids=str,
)  # fmt: skip
def test_another_configuration_or_option_is_another_template(changed: dict[str, Any], llama: tuple[Exported, Path], tmp_path: Path) -> None:
    options = {name: value for name, value in changed.items() if name != "source"}
    source = make(tmp_path / "model", "Llama", **{"num_hidden_layers": 5, **changed["source"]}) if "source" in changed else llama[0].source
    assert key_of(job(tmp_path / "job", source, **options), DYNAMO) != key_of(job(tmp_path / "other", llama[0].source), DYNAMO)


def test_other_weights_names_and_libraries_make_the_key(
    llama: tuple[Exported, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = key_of(job(tmp_path / "a", llama[0].source), DYNAMO)
    assert one == key_of(job(tmp_path / "b", make(tmp_path / "model", "Llama", seed=9, num_hidden_layers=5)), DYNAMO)
    assert one != key_of(job(tmp_path / "c", llama[0].source), named(STRATEGIES, "dynamo-sdpa"))
    monkeypatch.setattr("handlers.onnx.templates.store.version", lambda name: "0")
    assert one != key_of(job(tmp_path / "d", llama[0].source), DYNAMO)


@pytest.mark.parametrize("damage", ["graph", "record", "no record", "no graph", "version", "source", "no source"])
def test_a_damaged_template_is_none(damage: str, llama: tuple[Exported, Path], tmp_path: Path) -> None:
    cache = of_own(llama, tmp_path)
    (folder,) = (cache / FOLDER).iterdir()
    record = json.loads((folder / FILE).read_bytes())
    if damage == "graph":
        content = bytearray((folder / "model.onnx").read_bytes())
        content[len(content) // 2] ^= 1
        (folder / "model.onnx").write_bytes(bytes(content))
    elif damage in ("no record", "no graph"):
        (folder / (FILE if damage == "no record" else "model.onnx")).unlink()
    elif damage == "record":
        (folder / FILE).write_text("{")
    elif damage == "version":
        (folder / FILE).write_text(json.dumps({**record, "version": 0}))
    elif damage == "no source":
        del record["sources"]["model.onnx"]["model.layers.2.mlp.up_proj.weight.turned"]
        (folder / FILE).write_text(json.dumps(record))
    else:
        record["sources"]["model.onnx"]["model.layers.2.mlp.up_proj.weight.turned"] = {"shape": "?"}
        (folder / FILE).write_text(json.dumps(record))
    assert Store(cache).get(folder.name) is None and not folder.exists()


def test_a_template_that_fills_weights_into_wrong_places_is_noticed_and_forgotten(llama: tuple[Exported, Path], tmp_path: Path) -> None:
    cache = of_own(llama, tmp_path)
    (folder,) = (cache / FOLDER).iterdir()
    record = json.loads((folder / FILE).read_bytes())
    table = record["sources"]["model.onnx"]
    one, other = (f"model.layers.{layer}.mlp.up_proj.weight.turned" for layer in (2, 3))
    table[one], table[other] = table[other], table[one]
    (folder / FILE).write_text(json.dumps(record))
    found = run(job(tmp_path / "job", llama[0].source, cache))
    told: Any = found.output.figures["template"]
    assert told["used"] == "no" and "differ from torch's" in told["reason"] and list((cache / FOLDER).iterdir()) == []
    assert float(str(found.output.figures["relative_error"])) < 1e-5


@pytest.mark.parametrize(
    "change", ["constant", "attribute", "private", "hook", "closure", "shape", "buffer", "activation", "configuration"]
)  # fmt: skip
def test_a_layer_that_is_unlike_the_others_is_a_kind_of_its_own(change: str, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(make(tmp_path / "model", "Llama", num_hidden_layers=5))
    assert kinds(model) == (0,) * 5
    layer = model.model.layers[2]
    if change == "constant":
        layer.post_attention_layernorm.variance_epsilon *= 2
    elif change == "attribute":
        layer.self_attn.scaling *= 1.5
    elif change == "private":
        layer.self_attn._factor = 1.0005
    elif change == "hook":
        layer.register_forward_pre_hook(lambda module, given: given)
    elif change == "closure":
        for number, one in enumerate(model.model.layers):
            one.self_attn.factor = scaled(1.5 if number == 2 else 2.0)
    elif change == "shape":
        layer.mlp.down_proj.bias = torch.nn.Parameter(torch.zeros(64))
    elif change == "buffer":
        for number, one in enumerate(model.model.layers):
            one.register_buffer("factor", torch.tensor(float(number)))  # stored as the parameters are
        assert kinds(model) == (0,) * 5
        for number, one in enumerate(model.model.layers):
            one.register_buffer("offsets", torch.tensor([1.0, 2.0 if number == 2 else 3.0]), persistent=False)
    elif change == "activation":
        layer.mlp.act_fn = torch.nn.GELU()
    else:  # some models look the kind of mask up by it, and the layer itself knows nothing of it
        model.config.layer_types = ["full_attention"] * 2 + ["sliding_attention"] + ["full_attention"] * 2
    assert kinds(model) == (0, 0, 1, 0, 0)


@pytest.mark.slow
def test_what_the_kinds_do_not_show_is_found_in_the_graph(llama: tuple[Exported, Path], tmp_path: Path) -> None:
    """An attribute, a constant and a weight of one layer are changed in the traced graph itself."""
    from handlers.onnx.templates import filling, shallow

    weights, _ = shallow.write(Weights(llama[0].source), tmp_path / "small", (STACK,), fewer_tokens=False)
    small = run(job(tmp_path / "job", tmp_path / "small", templates=False))

    def graph() -> tuple[ir.Model, dict[str, Source]]:
        model = ir.load(small.folder / "model.onnx")
        return model, filling.find_sources(model, filling.finder_of(weights))

    model, sources = graph()
    deep, _ = repetition.repeat(model, sources, STACK)
    assert len([node for node in deep.graph if node.op_type == "Softmax"]) == 5
    softmax = [node for node in model.graph if node.op_type == "Softmax"]
    softmax[1].attributes["axis"] = ir.AttrInt64("axis", 3)
    with pytest.raises(repetition.NotRepeatableError, match="no like"):
        repetition.repeat(model, sources, STACK)
    model, sources = graph()
    other = ir.Value(name="three", const_value=ir.tensor(np.array(3.0, np.float32), name="three"))
    model.graph.register_initializer(other)
    power = [node for node in model.graph if node.op_type == "Pow"][4]
    power.replace_input_with(1, other)
    with pytest.raises(repetition.NotRepeatableError):
        repetition.repeat(model, sources, STACK)
    model, sources = graph()
    names = sorted(name for name, source in sources.items() if "layers.1.mlp.up_proj" in source.tensor)
    sources[names[0]] = sources[names[0]].renamed(lambda name: name.replace("up_proj", "gate_proj"))
    with pytest.raises(repetition.NotRepeatableError):
        repetition.repeat(model, sources, STACK)


def test_two_jobs_make_the_same_template_at_once(llama: tuple[Exported, Path], tmp_path: Path) -> None:
    (folder,) = (llama[1] / FOLDER).iterdir()
    template = Store(llama[1]).get(folder.name)
    assert template is not None
    facts = {
        name: getattr(template.record, name) for name in type(template.record).model_fields if name not in ("version", "files", "sources")
    }
    store, start, made = Store(tmp_path / "cache"), threading.Barrier(4), []

    def put(number: int) -> None:
        start.wait()
        made.append(store.put(folder.name, template.graphs(), facts))

    threads = [threading.Thread(target=put, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4 and [path.name for path in (tmp_path / "cache" / FOLDER).iterdir()] == [folder.name]
    found = store.get(folder.name)
    assert found is not None and found.record == template.record


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_keeps_no_export_from_being_made(llama: tuple[Exported, Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = run(job(tmp_path / "job", llama[0].source, tmp_path / "file" / "cache"))
    assert used(found) == ("made", [0, 1, 4])


@pytest.mark.parametrize(
    ("kinds", "kept"),
    [
        ((0,) * 4, ()), ((0,) * 28, (0, 1, 27)), ((0,) * 21 + (1,) * 7, (0, 1, 2, 21, 27)),
        ((0, 0, 0, 0, 0, 1) * 4 + (0, 0), (0, 1, 2, 5, 6, 11, 25)), ((0, 1) * 12, (0, 1, 2, 3, 4, 23)), ((0,) + (1,) * 15, (0, 1, 15)),
        (tuple(range(9)), ()), ((0,) * 8 + (1,), ()),
    ],
)  # fmt: skip
def test_the_layers_that_stand_for_all(kinds: tuple[int, ...], kept: tuple[int, ...]) -> None:
    assert layers.chosen(kinds) == kept


@pytest.mark.parametrize("compared", [1, 7, 1 << 18])
@pytest.mark.parametrize("stored", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_weights_are_found_by_content(stored: type[np.generic], compared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sources, "COMPARED", compared)
    random = np.random.default_rng(1)
    kept = {f"t{number}": random.normal(size=(6, 4)).astype(np.float32).astype(stored) for number in range(4)}
    kept |= {"bias": random.normal(size=8).astype(np.float32).astype(stored), "one": np.array([0.3], np.float32).astype(stored)}
    finder, tensors = Finder(kept), {name: tensor.astype(np.float32) for name, tensor in kept.items()}
    for array in (
        tensors["t0"], tensors["t1"].T.copy(), tensors["bias"].reshape(1, 8, 1), tensors["bias"] + np.float32(1), tensors["one"],
        np.stack([tensors["t2"], tensors["t0"]]), np.stack([tensors["t2"].T, tensors["t0"].T]),
        np.concatenate([tensors["t1"], tensors["t3"]]), np.concatenate([tensors["t1"].T, tensors["t3"].T, tensors["t0"].T], 1),
        np.stack([np.concatenate([tensors["t1"], tensors["t3"]]), np.concatenate([tensors["t0"], tensors["t2"]])]),
    ):  # fmt: skip
        source = finder.find(array)
        assert source is not None
        assert np.array_equal(kept_and_read(source).read(kept.__getitem__), array)
        for place in {0, array.size // 2, array.size - 1} if array.size > 1 else ():
            other = array.copy()
            other.flat[place] += 0.5
            assert finder.find(other) is None
    assert finder.find(tensors["t0"] * 2) is None and finder.find(tensors["t0"][:3]) is None
    assert finder.find(np.concatenate([tensors["t0"], tensors["t1"] * 2])) is None and finder.find(np.float32([0.25])) is None


@pytest.mark.parametrize("name", ["Gemma 3", "Qwen2, windows in the upper layers"])
def test_what_a_configuration_leaves_to_transformers_is_the_same_with_fewer_layers(name: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "model", name)
    config = json.loads((folder / "config.json").read_text())
    del config["layer_types"]  # older files say by a pattern which layers have a window
    (folder / "config.json").write_text(json.dumps(config))
    family = choose(folder)
    whole = layers.of_model(family.load(folder, Tracing()))
    assert whole is not None and len(set(whole.lists[0].kinds)) == 2
    weights = Weights(folder)
    stacks = stacks_of(whole, weights)
    shallow.write(weights, tmp_path / "small", stacks, fewer_tokens=False)
    small = layers.of_model(family.load(tmp_path / "small", Tracing()))
    assert small is not None and small.alike(digests(whole, stacks))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("optimize", ["none", "all"])
def test_every_family_is_filled_as_it_is_traced(name: str, optimize: str, tmp_path: Path) -> None:
    first = run(job(tmp_path / "first", make(tmp_path / "a", name), optimize=optimize))
    source = make(tmp_path / "b", name, seed=5)
    filled = run(job(tmp_path / "second", source, tmp_path / "first" / "cache", optimize=optimize))
    assert used(first)[0] == "made" and used(filled)[0] == "kept"
    assert float(str(filled.output.figures["relative_error"])) < 2e-5
    if optimize == "none":  # onnxruntime's optimizer may fuse what lies between two layers in one of them alone
        assert used(first)[1]
        assert_as_traced(source, filled, tmp_path / "traced")


@pytest.mark.slow
def test_a_stand_in_that_does_not_work_is_no_fault_of_the_model(
    llama: tuple[Exported, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a vocabulary that was made larger than the configuration says, for example, the files can't be cut to a smaller one."""
    from daemon.contract.faults.errors import Permanent
    from daemon.contract.faults.fault_codes import FaultCode

    def refuse(*_: Any, **__: Any) -> Any:
        raise Permanent(FaultCode.MISSING_WEIGHTS, "load", "2 weights are not in the files", "check them")

    monkeypatch.setattr(template_making.shallow, "write", refuse)
    found = run(job(tmp_path / "job", llama[0].source))
    told: Any = found.output.figures["template"]
    assert told == {"used": "no", "reason": "the model cut down to a stand-in does not work: 2 weights are not in the files"}
    assert float(str(found.output.figures["relative_error"])) < 1e-5


@pytest.mark.slow
def test_a_large_model_whose_layers_do_not_repeat_is_traced_without_a_second_copy(
    llama: tuple[Exported, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_making, "WHOLE_LIMIT", 1000)
    monkeypatch.setattr(template_making.layers, "chosen", lambda kinds: ())
    monkeypatch.setattr(template_making.shallow, "write", lambda *_, **__: pytest.fail("it was copied"))
    found = run(job(tmp_path / "job", llama[0].source))
    told: Any = found.output.figures["template"]
    assert told["used"] == "no" and "too large" in told["reason"]


def test_a_template_that_disappears_while_it_is_used_breaks_nothing(
    llama: tuple[Exported, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = Store.get

    def gone(self: Store, key: str) -> Any:
        template = get(self, key)
        self.remove(key)
        return template

    monkeypatch.setattr(Store, "get", gone)
    assert used(run(job(tmp_path / "job", llama[0].source, of_own(llama, tmp_path)))) == ("kept", [0, 1, 4])


@pytest.mark.slow
def test_where_no_template_can_be_made_it_is_not_tried_for_each_checkpoint(
    llama: tuple[Exported, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_making.filling, "find_sources", lambda *_: {})  # no weight is read as it is
    first: Any = run(job(tmp_path / "first", llama[0].source)).output.figures["template"]
    assert first["used"] == "no" and "does not read the weight" in first["reason"]
    monkeypatch.setattr(template_making.shallow, "write", lambda *_, **__: pytest.fail("it was tried again"))
    second: Any = run(job(tmp_path / "second", llama[0].source, tmp_path / "first" / "cache")).output.figures["template"]
    assert second["used"] == "no" and second["reason"] == f"{first['reason']} (found out before)"


@pytest.mark.slow
def test_weights_in_the_file_that_the_model_does_not_read_are_left_out(tmp_path: Path) -> None:
    """A BERT that fills masks, with the pooler of its training in the file."""
    from safetensors.torch import load_file, save_file

    source = make(tmp_path / "model", "BERT", num_hidden_layers=5)
    tensors = load_file(source / "model.safetensors")
    tensors["bert.pooler.dense.weight"] = tensors["bert.encoder.layer.0.attention.self.query.weight"] + 1
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    assert used(run(job(tmp_path / "job", source)))[0] == "made"


def test_a_filled_graph_says_nothing_of_the_checkpoint_that_the_template_was_made_with(
    llama: tuple[Exported, Path], tmp_path: Path
) -> None:
    (folder,) = (llama[1] / FOLDER).iterdir()
    assert dict(ir.load(folder / "model.onnx").metadata_props) == {}
    context = job(tmp_path / "job", llama[0].source, llama[1])
    context = context.model_copy(update={"checkpoint": context.checkpoint.model_copy(update={"base_name": None})})
    assert "ckptd.base" not in ir.load(run(context).folder / "model.onnx").metadata_props


def test_weights_that_are_stored_twice_are_drawn_once_and_make_the_key(tmp_path: Path) -> None:
    """transformers ties them only where they are equal."""
    from safetensors.torch import load_file, save_file

    from handlers.onnx.templates import shallow

    source = make(tmp_path / "model", "Llama", num_hidden_layers=5, vocab_size=2000, tie_word_embeddings=True)
    tensors = load_file(source / "model.safetensors")
    assert "lm_head.weight" not in tensors
    keys = []
    for name, added in (("equal", 0.0), ("other", 0.5)):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + added
        save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
        weights, _ = shallow.write(Weights(source), tmp_path / name, (STACK,), fewer_tokens=True)
        drawn = [weights.tensor(one) for one in ("lm_head.weight", "model.embed_tokens.weight")]
        assert np.array_equal(*drawn) == (name == "equal") and len(drawn[0]) == shallow.TOKENS
        keys.append(key_of(job(tmp_path / f"job-{name}", source), DYNAMO))
    assert keys[0] != keys[1]


@pytest.mark.slow
def test_jobs_that_share_a_cache_and_are_killed_at_any_time_leave_it_whole(llama: tuple[Exported, Path], tmp_path: Path) -> None:
    """Two real jobs at once make the same template; of each pair one is killed at a random moment, then two go on to their ends."""
    cache, generator = tmp_path / "cache", random.Random(7)
    cache.mkdir()

    def start(name: str) -> tuple[subprocess.Popen[bytes], Path]:
        context = job(tmp_path / name, llama[0].source, cache)
        (tmp_path / name / "job.json").write_text(context.model_dump_json())
        command = [sys.executable, "-m", "handlers", str(tmp_path / name / "job.json")]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL), tmp_path / name

    started = time.monotonic()
    whole, folder = start("whole")
    assert whole.wait(600) == 0
    seconds = time.monotonic() - started
    shutil.rmtree(cache / FOLDER)
    for number in range(6):
        pair = [start(f"pair-{number}-{which}") for which in range(2)]
        time.sleep(generator.uniform(0.2, 2.2) * seconds)  # two at once take longer than one alone
        for child, _ in pair:
            child.kill()
            child.wait()
        for found in (cache / FOLDER).glob("[!.]*"):
            assert Store(cache).get(found.name) is not None
    for child, folder in [start(f"last-{which}") for which in range(2)]:
        assert child.wait(600) == 0
        assert canonical(folder / "staging" / "model.onnx") == canonical(llama[0].folder / "model.onnx")
    assert len(list((cache / FOLDER).glob("[!.]*"))) == 1


@pytest.mark.slow
def test_layers_that_only_the_configuration_tells_apart_are_traced_both(tmp_path: Path) -> None:
    kinds = ["full_attention"] * 3 + ["sliding_attention"] * 3 + ["full_attention"] * 4
    source = make(
        tmp_path / "model", "SmolLM3, layers without positions", num_hidden_layers=10, layer_types=kinds, sliding_window=16,
        no_rope_layers=[1] * 10,
    )  # fmt: skip
    made = run(job(tmp_path / "job", source))
    assert used(made)[0] == "made" and float(str(made.output.figures["relative_error"])) < 1e-5
    assert_as_traced(source, made, tmp_path / "traced")


@pytest.mark.parametrize("name", some(sorted(MODELS), 8))
def test_a_stand_in_is_like_the_model_but_for_the_number_of_layers_and_tokens(name: str, tmp_path: Path) -> None:
    import transformers

    from handlers.families.base import Tracing
    from handlers.families.choice import choose
    from handlers.onnx.templates import shallow

    transformers.logging.set_verbosity_error()
    source = make(tmp_path / "model", name)
    family = choose(source)
    whole = layers.of_model(family.load(source, Tracing("eager")))
    assert whole is not None
    weights = Weights(source)
    stacks = stacks_of(whole, weights)
    shallow.write(weights, tmp_path / "small", stacks, fewer_tokens=family.name in template_making.FEWER_TOKENS)
    small = layers.of_model(family.load(tmp_path / "small", Tracing("eager")))
    assert small is not None and small.around == whole.around
    assert small.alike(digests(whole, stacks))


@pytest.mark.slow
def test_where_the_vocabularys_size_is_another_size_too_the_stand_in_keeps_its_tokens(tmp_path: Path) -> None:
    """The configuration says 4 heads of 256, and nowhere the 1,024 that they have together."""
    source = make(tmp_path / "model", "Llama", num_hidden_layers=5, vocab_size=1024, head_dim=256)
    found = run(job(tmp_path / "job", source))
    told: Any = found.output.figures["template"]
    assert (told["used"], told["layers"]) == ("made", [0, 1, 4])
    assert_as_traced(source, found, tmp_path / "traced")


def test_a_constant_of_the_vocabularys_size_is_noticed() -> None:
    value = ir.Value(name="zeros", const_value=ir.tensor(np.zeros((1, shallow.TOKENS), np.float32)))
    model = ir.Model(ir.Graph([], [], nodes=[], initializers=[value], opset_imports={"": 18}, name="g"), ir_version=10)
    with pytest.raises(ValueError, match="zeros holds the vocabulary's size"):
        filling.resize(model, {}, shallow.TOKENS, 2000)


def test_a_stand_in_that_differs_outside_of_its_layers_keeps_its_tokens(tmp_path: Path) -> None:
    """XGLM's table of positions has zeros at the number of the padding token."""
    sizes = {"vocab_size": 2000, "d_model": 32, "ffn_dim": 48, "num_layers": 5, "attention_heads": 2, "max_position_embeddings": 700}
    import transformers

    source = tmp_path / "model"
    config: Any = transformers.XGLMConfig(**sizes, pad_token_id=600, bos_token_id=1, eos_token_id=2)
    transformers.XGLMForCausalLM(config).save_pretrained(source)
    found = run(job(tmp_path / "job", source))
    told: Any = found.output.figures["template"]
    (folder,) = (tmp_path / "job" / "cache" / FOLDER).iterdir()
    assert told["used"] == "made" and told["layers"] == [0, 1, 4]
    sources = json.loads((folder / FILE).read_bytes())["sources"]["model.onnx"]
    assert any(one["shape"][0] == 2000 for one in sources.values()) and float(str(found.output.figures["relative_error"])) < 1e-5


@pytest.mark.slow
def test_what_a_tool_computed_of_a_weight_is_no_constant_of_the_template(tmp_path: Path) -> None:
    """Apertus: softplus of a weight, which constant folding computes."""
    import transformers

    sizes: dict[str, Any] = {**SMALL, "num_hidden_layers": 5}
    transformers.ApertusForCausalLM(transformers.ApertusConfig(**sizes)).save_pretrained(tmp_path / "model")
    found = run(job(tmp_path / "job", tmp_path / "model"))
    told: Any = found.output.figures["template"]
    assert told["used"] == "no" and "as it is" in told["reason"]
