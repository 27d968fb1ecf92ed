"""Folders of sentence-transformers: the vectors of texts are what is published, compared, and caught where they are others."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from daemon.checkpoints.files import fingerprint
from daemon.checkpoints.pinning.pins import make_pin
from daemon.contract.faults.errors import CkptdError, Permanent
from daemon.contract.jobs.messages import Verdict
from handlers.child.progress import StageOutput
from handlers.merge import stage
from handlers.models import sentence
from handlers.pytorch import stage as pytorch
from handlers.validate.arithmetic.comparison import Comparison
from handlers.validate.engines.sentence import SentencePooling
from handlers.validate.engines.task_profile import subject_of
from handlers.validate.workers.client import WorkerFailed
from tests.merge import helpers
from tests.validate import zoo
from tests.validate.bench import measured

LIBRARY = "sentence_transformers.models."
OTHER = zoo.HIDDEN // 2


def add_modules(folder: Path, *modules: tuple[str, dict[str, Any]]) -> Path:
    """Make a model's folder one of sentence-transformers, as the library saves it."""
    rows = [{"idx": 0, "name": "0", "path": "", "type": f"{LIBRARY}Transformer"}]
    for number, (kind, config) in enumerate(modules, 1):
        path = f"{number}_{kind.rpartition('.')[2]}"
        rows.append({"idx": number, "name": str(number), "path": path, "type": kind if "." in kind else LIBRARY + kind})
        (folder / path).mkdir(exist_ok=True)
        if config:
            (folder / path / "config.json").write_text(json.dumps(config))
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64, "do_lower_case": False}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "query: "}, "similarity_fn_name": "dot"}))
    return folder


def add_dense(folder: Path, inputs: int = zoo.HIDDEN) -> None:
    """Weights for the module 2_Dense."""
    generator = np.random.default_rng(4)
    tensors = {"linear.weight": generator.normal(0, 0.3, (OTHER, inputs)), "linear.bias": generator.normal(0, 1, OTHER)}
    save_file({name: tensor.astype(np.float32) for name, tensor in tensors.items()}, folder / "2_Dense" / "model.safetensors")


def dense(activation: str = "Tanh", inputs: int = zoo.HIDDEN) -> tuple[str, dict[str, Any]]:
    settings = {"in_features": inputs, "out_features": OTHER, "bias": True}
    return "Dense", {**settings, "activation_function": f"torch.nn.modules.activation.{activation}"}


CLS = ("Pooling", {"word_embedding_dimension": zoo.HIDDEN, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
NORMAL: tuple[str, dict[str, Any]] = ("Normalize", {})


def spread(model: Any, batch: Any) -> Any:
    """First vectors of unlike texts apart."""
    import torch

    vectors = torch.nn.functional.normalize(model(**batch).last_hidden_state[:, 0], dim=1)
    return (vectors @ vectors.T).sum()


@dataclass(frozen=True)
class Model:
    """A base that is no folder of the library, and an adapter beside which the library left its modules."""

    base: Path
    adapter: Path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    root = tmp_path_factory.mktemp("sentences")
    base = zoo.make_encoder_base(root / "base", "AutoModel", "bert")
    adapter = zoo.train_adapter(
        base, root / "adapter", "AutoModel", spread, target_modules=["query", "value", "output.dense"], task_type="FEATURE_EXTRACTION"
    )
    add_modules(adapter, CLS, dense(), NORMAL)
    add_dense(adapter)
    return Model(base, adapter)


Publish = Callable[..., tuple[Path, Path, StageOutput]]


@pytest.fixture
def publish(tmp_path: Path) -> Publish:
    """Pin, merge and publish; gives the pin, the published folder and what the merge said."""

    def one(checkpoint: Path, base: Path | None) -> tuple[Path, Path, StageOutput]:
        pin, method = tmp_path / "pin", "full" if base is None else "LORA"
        make_pin(checkpoint, pin, fingerprint(checkpoint))
        first = helpers.context(tmp_path / "merge", pin, base, method=method)
        merged = stage.run(first, helpers.reporter())
        second = helpers.context(tmp_path / "pytorch", pin, base, method=method, merge=Path(first.staging))
        pytorch.run(second, helpers.reporter())
        return pin, Path(second.staging), merged

    return one


def module_files(folder: Path) -> dict[str, bytes]:
    kept = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json")
    paths = [path for path in folder.rglob("*") if path.is_file() and (path.parent != folder or path.name in kept)]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_the_modules_of_an_adapter_are_published_and_vectors_of_texts_are_compared(model: Model, tmp_path: Path, publish: Publish) -> None:
    pin, folder, merged = publish(model.adapter, model.base)
    assert module_files(folder) == module_files(model.adapter) and len(module_files(folder)) == 6
    assert not merged.warnings and merged.figures["task"] == "feature-extraction"
    bench = measured(pin, model.base, folder, tmp_path / "scratch")
    check = bench.check("pytorch", folder)
    assert check.verdict is Verdict.PASSED, check.reasons
    assert bench.rows(folder).shape == (1, OTHER)
    assert np.linalg.norm(bench.rows(folder)) == pytest.approx(1, abs=1e-6)
    assert check.figures["cosine_min"] > 1 - 1e-6 and check.figures["agreement"] == 1.0
    assert check.figures["positions"] == len(bench.reference.samples) == 12, "one vector a text, and each text's halves are texts"
    assert bench.reference.adapter is not None and bench.reference.adapter.error_max > 0.1, "what the adapter does shows in the vectors"


def lose(lost: str, folder: Path) -> None:
    """Take a module's part away, or what it does."""
    if lost == "3_Normalize":
        add_modules(folder, CLS, dense())
    elif lost == "2_Dense/model.safetensors":
        table = load_file(folder / lost)
        save_file({**table, "linear.bias": table["linear.bias"] * 0}, folder / lost)
    else:  # without modules.json the library takes the mean of all tokens
        (folder / lost).unlink()


def test_a_folder_that_lost_a_module_does_not_pass(model: Model, tmp_path: Path, publish: Publish) -> None:
    pin, folder, _ = publish(model.adapter, model.base)
    bench = measured(pin, model.base, folder, tmp_path / "scratch")
    for place, lost in enumerate(("modules.json", "1_Pooling/config.json", "2_Dense/model.safetensors", "3_Normalize")):
        broken = shutil.copytree(folder, tmp_path / f"broken-{place}")
        lose(lost, broken)
        try:
            check = bench.check("pytorch", broken)
        except (WorkerFailed, CkptdError):
            continue  # vectors of another length can't be compared at all: the stage's verdict is "failed" then, too
        assert check.verdict is Verdict.FAILED, lost
        assert any("logit error" in reason for reason in check.reasons), (lost, check.reasons)


def test_a_full_fine_tune_keeps_its_modules_and_pickled_ones_become_safetensors(model: Model, tmp_path: Path, publish: Publish) -> None:
    import torch

    checkpoint = shutil.copytree(model.base, tmp_path / "full")
    add_modules(checkpoint, CLS, dense(), NORMAL)
    add_dense(checkpoint)
    weights = checkpoint / "2_Dense" / "model.safetensors"
    table = load_file(weights)
    torch.save({name: torch.from_numpy(tensor) for name, tensor in table.items()}, checkpoint / "2_Dense" / "pytorch_model.bin")
    weights.unlink()
    _, folder, _ = publish(checkpoint, None)
    assert sorted(path.name for path in (folder / "2_Dense").iterdir()) == ["config.json", "model.safetensors"]
    written = load_file(folder / "2_Dense" / "model.safetensors")
    assert written.keys() == table.keys() and all(np.array_equal(written[name], table[name]) for name in table)
    assert subject_of(folder).sentence


def test_an_adapter_without_modules_gets_those_of_its_base(model: Model, tmp_path: Path, publish: Publish) -> None:
    base = add_modules(shutil.copytree(model.base, tmp_path / "base"), ("Pooling", {"pooling_mode": "lasttoken"}))
    adapter = tmp_path / "plain"
    adapter.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copyfile(model.adapter / name, adapter / name)
    pin, folder, _ = publish(adapter, base)
    assert module_files(folder) == module_files(base)
    bench = measured(pin, base, folder, tmp_path / "scratch")
    assert bench.check("pytorch", folder).verdict is Verdict.PASSED
    assert bench.rows(folder).shape == (1, zoo.HIDDEN)


def test_a_base_that_names_a_head_is_read_without_it_since_the_library_does(tmp_path: Path, publish: Publish) -> None:
    base = zoo.make_encoder_base(tmp_path / "base", "AutoModelForMaskedLM", "roberta")
    targets = ["query", "value"]
    adapter = zoo.train_adapter(base, tmp_path / "adapter", "AutoModel", spread, target_modules=targets, task_type="FEATURE_EXTRACTION")
    add_modules(base, CLS, NORMAL)
    pin, folder, merged = publish(adapter, base)
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["RobertaModel"]
    assert merged.figures["task"] == "feature-extraction"
    assert [one for one in merged.warnings if "RobertaModel instead of RobertaForMaskedLM" in one]
    bench = measured(pin, base, folder, tmp_path / "scratch")
    assert bench.check("pytorch", folder).verdict is Verdict.PASSED
    assert bench.rows(folder).shape == (1, zoo.HIDDEN)


def test_a_classifier_on_a_base_of_the_library_gets_none_of_its_modules(tmp_path: Path, publish: Publish) -> None:
    def classify(model: Any, batch: Any) -> Any:
        import torch

        return model(**batch, labels=torch.arange(len(batch["input_ids"])) % 2).loss

    base = zoo.make_encoder_base(tmp_path / "base", "AutoModel", "bert")
    lora = {"target_modules": ["query", "value"], "modules_to_save": ["classifier"], "task_type": "SEQ_CLS"}
    adapter = zoo.train_adapter(base, tmp_path / "adapter", "AutoModelForSequenceClassification", classify, **lora)
    add_modules(base, CLS, NORMAL)
    _, folder, merged = publish(adapter, base)
    assert module_files(folder) == {}
    assert [one for one in merged.warnings if "its modules were left out, since the merged model is for text-classification" in one]
    assert not subject_of(folder).sentence


@pytest.mark.parametrize(
    ("modules", "told"),
    [
        ((CLS, ("my_code.modules.Whiten", {})), "my_code.modules.Whiten"),
        ((CLS, ("WordWeights", {})), "WordWeights"),
        ((("Pooling", {"pooling_mode": "attention"}),), "Pooling by attention"),
        ((CLS, ("Dense", {"activation_function": "my_code.Swish"})), "Dense with my_code.Swish"),
        ((NORMAL,), "not exactly one Pooling"),
    ],
)
def test_modules_that_are_unknown_are_said_and_not_guessed(
    modules: tuple[tuple[str, dict[str, Any]], ...], told: str, model: Model, tmp_path: Path, publish: Publish
) -> None:
    adapter = shutil.copytree(model.adapter, tmp_path / "adapter")
    add_modules(adapter, *modules)
    chain = sentence.read(adapter)
    assert chain is not None and told in chain.odd and not chain.makes_vectors
    with pytest.raises(Permanent, match="before you use it"):
        SentencePooling(adapter)
    if told != "WordWeights":
        return
    _, folder, merged = publish(adapter, model.base)
    (warning,) = merged.warnings
    assert told in warning and "test the folder with SentenceTransformer before you use it" in warning
    assert (folder / "modules.json").read_bytes() == (adapter / "modules.json").read_bytes()
    assert not subject_of(folder).sentence, "vectors of tokens are compared, as of any bare encoder"


@pytest.mark.parametrize("path", ["../elsewhere", "/etc", "1_Pooling/../..", ".hidden", "a b"])
def test_a_module_s_folder_can_only_lie_in_the_folder_itself(path: str, model: Model, tmp_path: Path) -> None:
    source, target = tmp_path / "a" / "source", tmp_path / "b" / "target"
    shutil.copytree(model.adapter, source)
    target.mkdir(parents=True)
    (tmp_path / "a" / "elsewhere").mkdir()
    (tmp_path / "a" / "elsewhere" / "config.json").write_text("{}")
    rows = json.loads((source / "modules.json").read_text())
    rows[1]["path"] = path
    (source / "modules.json").write_text(json.dumps(rows))
    (warning,) = sentence.place(source, target)
    assert "which is not a module's folder" in warning
    assert [one.name for one in (tmp_path / "b").iterdir()] == ["target"]
    assert not (target / "1_Pooling").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "activation"),
    [
        ("cls", "Tanh"),
        pytest.param(["mean", "max"], "GELU", marks=pytest.mark.slow),
        pytest.param("lasttoken", "SiLU", marks=pytest.mark.slow),
        pytest.param(["weightedmean", "mean_sqrt_len_tokens"], "", marks=pytest.mark.slow),
    ],
)
def test_a_graph_gives_the_vector_of_a_text_and_is_compared_by_it(
    mode: Any, activation: str, model: Model, tmp_path: Path, publish: Publish
) -> None:
    import onnxruntime

    from handlers.onnx.export import stage as onnx
    from handlers.validate.outside import example

    adapter, inputs = shutil.copytree(model.adapter, tmp_path / "adapter"), zoo.HIDDEN * (2 if isinstance(mode, list) else 1)
    shutil.rmtree(adapter / "2_Dense")
    add_modules(adapter, ("Pooling", {"pooling_mode": mode}), *([dense(activation, inputs)] if activation else []), NORMAL)
    if activation:
        add_dense(adapter, inputs)
    pin, folder, _ = publish(adapter, model.base)
    context = helpers.context(tmp_path / "onnx", pin, model.base, merge=tmp_path / "merge" / "staging")
    output = onnx.run(context, helpers.reporter())
    graph = Path(context.staging)
    assert output.strategy == "dynamo" or not output.fallbacks
    assert module_files(graph).keys() >= module_files(folder).keys(), "sentence-transformers reads the ONNX folder by them too"
    session = onnxruntime.InferenceSession(graph / "model.onnx", providers=["CPUExecutionProvider"])
    assert [one.name for one in session.get_outputs()] == ["last_hidden_state", "pooler_output", "sentence_embedding"]
    bench = measured(pin, model.base, folder, tmp_path / "scratch")
    check = bench.check("onnx", graph)
    assert check.verdict is Verdict.PASSED, check.reasons
    assert bench.rows(graph).shape == bench.rows(folder).shape and check.figures["cosine_min"] > 1 - 1e-5
    wanted = example.Wanted(bench.subject, bench.reference.samples[0], bench.rows(graph), 1e-4)
    assert example.check_encoder(graph, wanted, 1, tmp_path) is None
    alone = shutil.copytree(graph, tmp_path / "alone")
    (alone / "modules.json").unlink()
    lost = bench.check("onnx", alone)
    assert lost.reasons == ("it lacks modules.json, which the checkpoint has",) and lost.figures["kl"] == check.figures["kl"], (
        "the graph's own output is compared, whatever lies beside it"
    )


@pytest.mark.slow
def test_a_base_without_a_pooler_becomes_a_graph_without_one(tmp_path: Path, publish: Publish) -> None:
    import onnxruntime

    from handlers.onnx.export import stage as onnx

    base = add_modules(zoo.make_encoder_base(tmp_path / "base", "AutoModelForMaskedLM", "roberta"), CLS)
    pin, folder, _ = publish(base, None)
    context = helpers.context(tmp_path / "onnx", pin, None, method="full", merge=tmp_path / "merge" / "staging")
    onnx.run(context, helpers.reporter())
    session = onnxruntime.InferenceSession(Path(context.staging) / "model.onnx", providers=["CPUExecutionProvider"])
    assert [one.name for one in session.get_outputs()] == ["last_hidden_state", "sentence_embedding"]
    bench = measured(pin, None, folder, tmp_path / "scratch")
    check = bench.check("onnx", Path(context.staging))
    assert check.verdict is Verdict.PASSED, check.reasons


def test_pooling_by_hand() -> None:
    vectors = np.array([[[9, 9], [1, 4], [3, 2], [5, 0]], [[1, 1], [3, -5], [9, 9], [9, 9]]], np.float32)
    mask = np.array([[0, 1, 1, 1], [1, 1, 0, 0]])  # padded on the left, and on the right
    wanted: dict[str, list[list[float]]] = {
        "cls": [[1, 4], [1, 1]],
        "lasttoken": [[5, 0], [3, -5]],
        "max": [[5, 4], [3, 1]],
        "mean": [[3, 2], [2, -2]],
        "mean_sqrt_len_tokens": [[9 / 3**0.5, 6 / 3**0.5], [4 / 2**0.5, -4 / 2**0.5]],
        "weightedmean": [[(1 + 6 + 15) / 6, (4 + 4 + 0) / 6], [(1 + 6) / 3, (1 - 10) / 3]],
    }
    assert set(wanted) == set(sentence.POOLING)
    from handlers.validate.engines.sentence import _pooled

    for mode, rows in wanted.items():
        assert np.allclose(_pooled(mode, vectors, mask.astype(np.float32)), rows), mode


def test_one_vector_a_text_agrees_where_it_is_nearest_to_its_own_text() -> None:
    texts = [np.eye(4, dtype=np.float32)[number][None] for number in range(4)]
    found = Comparison("vector")
    for number, text in enumerate(texts):
        found.add(text, texts[(number + 1) % 4] if number < 2 else text)
    assert found.figures(1.0).agreement == 0.5


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with sentence-transformers itself, over the torch and transformers that are installed."""
    folder = tmp_path_factory.mktemp("library")
    names = ["sentence-transformers", "scikit-learn", "scipy", "joblib", "threadpoolctl", "narwhals", "cloudpickle", "loky"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"sentence-transformers can't be installed here: {done.stderr.strip().splitlines()[-1:]}")
    yield folder


ENCODE = """
import json, sys
import numpy as np
from sentence_transformers import SentenceTransformer
for folder in sys.argv[2:]:
    model = SentenceTransformer(folder, device="cpu")
    np.save(f"{folder}.npy", np.stack([model.encode(text, prompt="") for text in json.loads(sys.argv[1])]))
    print(model.max_seq_length, model.prompts.get("query"), model.similarity_fn_name)
"""
TEXTS = ("a cat", "The lighthouse keeper climbed the stairs every evening, and", "naïve café – «проверка»")


def encode(library: Path, *folders: Path) -> tuple[list[np.ndarray], list[str]]:
    """The vectors (N, D) of TEXTS that the library makes with each folder, and what it says of them."""
    import os

    environment = {**os.environ, "PYTHONPATH": str(library)}
    command = [sys.executable, "-W", "ignore", "-c", ENCODE, json.dumps(TEXTS), *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return [np.load(f"{folder}.npy") for folder in folders], done.stdout.splitlines()


@pytest.mark.slow
def test_the_library_itself_makes_the_same_vectors(library: Path, model: Model, tmp_path: Path, publish: Publish) -> None:
    """The published folder against the live model and our own arithmetic, by `SentenceTransformer(path)`; all poolings and activations."""
    from transformers import AutoModel, AutoTokenizer

    shutil.copytree(model.adapter, tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = str(model.base)
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(model.base / name, tmp_path / "adapter" / name)
    _, folder, _ = publish(tmp_path / "adapter", model.base)
    folders = [tmp_path / "adapter", folder]
    for number, mode in enumerate((*sentence.POOLING, ["mean", "max"])):
        inputs = zoo.HIDDEN * (2 if isinstance(mode, list) else 1)
        one = shutil.copytree(model.base, tmp_path / f"pooled-{number}")
        activation = sentence.ACTIVATIONS[number % len(sentence.ACTIVATIONS)]
        named = dense(activation, inputs)
        if activation == "Identity":
            named[1]["activation_function"] = "torch.nn.modules.linear.Identity"
        add_modules(one, ("Pooling", {"embedding_dimension": zoo.HIDDEN, "pooling_mode": mode}), named, NORMAL)
        add_dense(one, inputs)
        folders.append(one)
    vectors, said = encode(library, *folders)
    assert np.allclose(vectors[0], vectors[1], atol=1e-5), "live adapter and merged folder"
    assert said[0] == said[1] == "64 query:  dot"
    for one, wanted in zip(folders[1:], vectors[1:], strict=True):
        tokenizer, encoder = AutoTokenizer.from_pretrained(one), AutoModel.from_pretrained(one).eval()
        pooling = SentencePooling(one)
        for text, vector in zip(TEXTS, wanted, strict=True):
            batch = tokenizer(text, return_tensors="pt")
            mine = pooling(encoder(**batch).last_hidden_state.detach().numpy(), batch["attention_mask"].numpy())
            assert np.allclose(mine[0], vector, atol=1e-5), one.name


SEARCH = """
import json, sys
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
texts = json.loads(sys.argv[2])
query, documents = model.encode_query(texts[0]), model.encode_document(texts[1:])
plain = model.encode(texts)
print(json.dumps({
    "plain": plain.tolist(), "between": model.similarity(plain, plain).tolist(), "query": query.tolist(), "documents": documents.tolist(),
    "found": model.similarity(query, documents)[0].tolist(), "named": model.encode(texts, prompt_name="query").tolist(),
}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("kind", ["cosine", "dot", "euclidean", "manhattan"])
def test_the_example_gives_the_librarys_own_vectors_and_similarities(
    library: Path, model: Model, tmp_path: Path, publish: Publish, kind: str, lower: bool
) -> None:
    """Prompts, default prompt, truncation, lower case and measure, from a LoRA adapter on; the published folder read by the library."""
    import os

    from handlers.onnx.export import stage as onnx
    from tests.onnx.encoder_models import run

    adapter = shutil.copytree(model.adapter, tmp_path / "adapter")
    prompts = {"query": "Find: ", "document": "text: ", "topic": "About "}
    settings = {"prompts": prompts, "default_prompt_name": "topic", "similarity_fn_name": kind, "model_type": "SentenceTransformer"}
    (adapter / "config_sentence_transformers.json").write_text(json.dumps(settings))
    (adapter / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 24, "do_lower_case": lower}))
    pin, folder, _ = publish(adapter, model.base)
    context = helpers.context(tmp_path / "onnx", pin, model.base, merge=tmp_path / "merge" / "staging")
    onnx.run(context.model_copy(update={"strategy": "legacy-eager"}), helpers.reporter())
    command = [sys.executable, "-W", "ignore", "-c", SEARCH, str(folder), json.dumps(TEXTS)]
    environment = {**os.environ, "PYTHONPATH": str(library)}
    wanted = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)
    plain = run(Path(context.staging), *TEXTS)
    assert np.allclose(plain["embeddings"], wanted["plain"], atol=1e-4)
    assert np.allclose(plain["similarity"], wanted["between"], atol=1e-4)
    found = run(Path(context.staging), "--query", TEXTS[0], *TEXTS[1:])
    assert np.allclose(found["embeddings"], [wanted["query"], *wanted["documents"]], atol=1e-4)
    assert np.allclose(found["similarity"], wanted["found"], atol=1e-4)
    assert np.allclose(run(Path(context.staging), "--prompt", "query", *TEXTS)["embeddings"], wanted["named"], atol=1e-4)


@pytest.fixture(scope="session")
def onnx_library(tmp_path_factory: pytest.TempPathFactory, library: Path) -> tuple[Path, Path]:
    """What the library needs for its ONNX backend: optimum-onnx, which needs transformers 4 and a library of its time."""
    folder = tmp_path_factory.mktemp("onnx-library")
    names = ["sentence-transformers==5.1.2", "transformers==4.57.6", "optimum-onnx==0.1.0", "optimum>=2.0,<2.1", "huggingface-hub<1.0",
             "tokenizers<0.23", "pillow"]  # fmt: skip
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"optimum-onnx can't be installed here: {done.stderr.strip().splitlines()[-1:]}")
    return folder, library


BACKEND = """
import json, sys
from sentence_transformers import SentenceTransformer
options = {"provider": "CPUExecutionProvider"}
models = [SentenceTransformer(one, backend="onnx", device="cpu", model_kwargs=options) for one in sys.argv[2:]]
print(json.dumps([one.encode(json.loads(sys.argv[1]), batch_size=1).tolist() for one in models]))
"""


@pytest.mark.slow
def test_every_onnx_form_stays_a_folder_that_the_librarys_onnx_backend_reads(
    onnx_library: tuple[Path, Path], model: Model, tmp_path: Path, publish: Publish
) -> None:
    import os

    import onnxruntime

    from handlers.onnx.export import stage as onnx
    from tests.onnx.encoder_models import run
    from tests.onnx.small import derived

    pin, folder, _ = publish(model.adapter, model.base)
    context = helpers.context(tmp_path / "onnx", pin, model.base, merge=tmp_path / "merge" / "staging")
    onnx.run(context.model_copy(update={"strategy": "legacy-eager"}), helpers.reporter())
    forms = {"onnx": Path(context.staging)}
    forms |= {name: derived(name, forms["onnx"], tmp_path / name).folder for name in ("int8", "fp16", "int4", "int8_weight")}
    ours = {}
    for name, made in forms.items():
        assert module_files(made).items() >= module_files(folder).items(), name
        session = onnxruntime.InferenceSession(made / "model.onnx", providers=["CPUExecutionProvider"])
        assert "sentence_embedding" in [one.name for one in session.get_outputs()], name
        # One text at a time, as the library is asked below: int8 activations share a scale over the batch. The modules after the pooling
        # are in fp32 in both, the graph's own in each form.
        ours[name] = np.array([run(made, text)["embeddings"][0] for text in TEXTS])
        assert (ours[name] * ours["onnx"]).sum(axis=1).min() > 0.8, "normalized vectors that point the same way"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, onnx_library))}
    command = [sys.executable, "-W", "ignore", "-c", BACKEND, json.dumps(TEXTS), *map(str, forms.values())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    for (name, mine), theirs in zip(ours.items(), json.loads(done.stdout.splitlines()[-1]), strict=True):
        assert np.abs(mine - theirs).max() < 2e-3, name
