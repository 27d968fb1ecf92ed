"""`ckptd verify` runs no code of what it checks again, whoever made it, unless it is its own or a person trusts it with --trust."""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.contract.formats.catalog import catalog
from handlers.folder import examples, opening
from handlers.validate.folders import code
from tests.recheck.conftest import Verify
from tests.recheck.test_deep import seal
from tests.sampling import some

pytestmark = pytest.mark.timeout(600)
HANDLERS = Path(code.__file__).parents[2]


def leaving(mark: Path) -> str:
    """Python code that leaves a mark."""
    return f"import pathlib; pathlib.Path({str(mark)!r}).touch()\n"


class Leaving:
    """A pickle that leaves a mark when it is read."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return exec, (leaving(self._mark),)


def example(folder: Path, mark: Path) -> None:
    path = folder / examples.NAME
    path.write_text(path.read_text().replace("\nimport argparse\n", "\nimport argparse\n" + leaving(mark), 1))


def chat_template(folder: Path, mark: Path) -> None:
    path = folder / examples.CHAT
    path.write_text(path.read_text() + leaving(mark))


def module_of_an_example(folder: Path, mark: Path) -> None:
    """The example is ours, and what it opens its programs with is not."""
    text = opening.rewritten((HANDLERS / "folder" / "examples" / "causal.py").read_text(), "session.py", "openvino")
    assert text is not None
    (folder / examples.NAME).write_text(text)
    (folder / "session.py").write_text(leaving(mark))


def auto_map(folder: Path, mark: Path) -> None:
    """Code of the model's own, of a type that transformers does not know, and a tokenizer's."""
    for name, classes in (("config.json", {"AutoConfig": "own.A", "AutoModelForCausalLM": "own.A"}), ("tokenizer_config.json", {
        "AutoTokenizer": ["own.A", "own.A"],
    })):  # fmt: skip
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), "auto_map": classes, "model_type": "own", "tokenizer_class": "Own"}))
    (folder / "own.py").write_text(leaving(mark))


def pickled_weights(folder: Path, mark: Path) -> None:
    (folder / "model.safetensors").unlink()
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Leaving(mark), 2))
        archive.writestr("archive/version", "3\n")


ATTACKS: dict[str, tuple[str, Callable[[Path, Path], None]]] = {
    "example": ("onnx", example),
    "chat template's script": ("onnx", chat_template),
    "module of an example": ("onnx", module_of_an_example),
    "model's own code": ("pytorch", auto_map),
    "pickled weights": ("pytorch", pickled_weights),
}


SLOW = ("example", "chat template's script", "module of an example")
"""What a quick test of this file says of `code.strange_script`, and of one example by the verb."""


@pytest.mark.parametrize("attack", [pytest.param(attack, marks=[pytest.mark.slow] * (attack in SLOW)) for attack in ATTACKS])
def test_nothing_of_an_export_or_of_an_artifact_is_run(copied: Path, tmp_path: Path, verify: Verify, attack: str) -> None:
    variant, plant = ATTACKS[attack]
    mark = tmp_path / "mark"
    plant(copied / variant, mark)
    seal(copied)
    code, answer, _ = verify(copied, "--deep", "--variant", variant)
    assert not mark.exists() and answer["checks"][0]["variant"] == variant
    assert code != 0 or any("was not run" in note or "were not run" in note for note in answer["checks"][0]["notes"])


def test_scripts_run_where_they_are_this_ckptds_own_or_trusted(copied: Path, tmp_path: Path, verify: Verify) -> None:
    mark = tmp_path / "mark"
    code, answer, _ = verify("--artifact", copied / "onnx", "--like", copied)
    assert code == 0 and answer["checks"][0]["notes"] == []
    example(copied / "onnx", mark)
    code, answer, _ = verify("--artifact", copied / "onnx", "--like", copied)
    (note,) = answer["checks"][0]["notes"]
    assert code == 0 and not mark.exists() and "example.py is not this ckptd's own: give --trust" in note
    code, answer, _ = verify("--artifact", copied / "onnx", "--like", copied, "--trust")
    assert code == 0 and mark.exists() and answer["checks"][0]["notes"] == []


def test_trust_is_for_what_is_run_alone(kept_export: Path, verify: Verify) -> None:
    code, answer, said = verify(kept_export, "--trust")
    assert code == 2 and answer is None and "--deep" in said


@pytest.mark.parametrize("variant", some(["pt2", "torchscript", "pt2-aoti", "tensorrt"], of=3))
def test_a_program_is_not_loaded(kept_export: Path, tmp_path: Path, verify: Verify, variant: str) -> None:
    folder = tmp_path / variant
    shutil.copytree(kept_export / "onnx", folder)
    code, answer, _ = verify("--artifact", folder, "--like", kept_export)
    (check,) = answer["checks"]
    assert code == 3 and check["verdict"] == "unverified"
    assert "hold programs" in check["reasons"][0] or "toolchain" in check["reasons"][0] or "no engine" in check["reasons"][0]


def test_an_engine_counts_as_reading_data_only_where_its_format_says_so(tmp_path: Path) -> None:
    """A format that comes later, or with another package, is taken for code until somebody has looked."""
    there = set(catalog().engines)
    data = {name for name in there if code.of_model(tmp_path, name) is None}
    loaders = {"torch-program", "tensorrt", "tensorrt-bundle", "tensorrt-llm"}
    assert there - data == loaders | {"adapter", "adapter-layerwise", "gguf-adapter"}
    assert code.of_model(tmp_path, "torch") is None
    assert code.of_model(tmp_path, "live") is not None and code.of_model(tmp_path, "engine-of-another-package") is not None


@pytest.mark.parametrize(("name", "text", "seen"), [
    ("genai_config.json", '{"model": {"decoder": {"session_options": {"custom_ops_library": "x.so"}}}}', "custom_ops_library"),
    ("genai_config.json", '{"a": [{"b": [[{"library_path": 1}]]}]}', "library_path"),
    ("genai_config.json", '{"custom_ops_library": "x.so", }', "custom_ops_library"),
    ("genai_config.json", "[" * 100_000 + '"custom_ops_library"', "custom_ops_library"),
    ("config.json", '{"model_file": "model.py"}', "model_file"),
    ("config.json", '{"model_type": "llama", "architectures": ["model_file"]}', None),
])  # fmt: skip
def test_keys_that_name_code_are_seen_however_deep_they_lie(tmp_path: Path, name: str, text: str, seen: str | None) -> None:
    (tmp_path / name).write_text(text)
    why = code.of_model(tmp_path, "onnx-genai")
    assert why is None if seen is None else why is not None and seen in why


@pytest.mark.parametrize("task", ["text-generation", "text2text-generation", "text-classification"])
@pytest.mark.parametrize(("opener", "needs"), [
    ("openvino/session.py", "openvino"), ("torch_programs/program.py", "torch"),
    ("static_programs/published/opener.py", "executorch, torch"), ("tensorrt/box/session.py", "tensorrt or tensorrt_rtx"),
])  # fmt: skip
def test_each_example_that_a_stage_writes_is_known_and_with_another_word_it_is_not(
    tmp_path: Path, task: str, opener: str, needs: str
) -> None:
    opening.place(task, tmp_path, HANDLERS / opener, needs)
    assert code.strange_script(tmp_path) is None
    path = tmp_path / examples.NAME
    text = path.read_text()
    for changed in (text + "\n", text.replace("(FOLDER, name)", "(FOLDER, name[:])"), text.replace(f"Needs {needs},", "Needs a; b,", 1)):
        assert changed != text
        path.write_text(changed)
        assert code.strange_script(tmp_path) == examples.NAME
    path.write_text(text)
    (tmp_path / Path(opener).name).write_text("pass\n")
    assert code.strange_script(tmp_path) == Path(opener).name
