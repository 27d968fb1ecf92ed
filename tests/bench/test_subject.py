"""What `ckptd bench` takes for an export, which variants it chooses, and what it refuses before any work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.cli.main import main
from daemon.contract.faults.errors import UsageError
from daemon.operating.measuring.subject import choose, locate
from tests.bench.publishing import publish, seal

Told = Callable[..., tuple[int, str]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The folder of a variant; nothing here reads what is in it."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def export(tmp_path: Path, model: Path) -> Path:
    """An export with the adapter, a graph that gives activations, a format that nobody knows here, and the merged model."""
    names = ("vendor-npz", "onnx-activations", "onnx", "pytorch-adapter", "pytorch")
    return publish(tmp_path / "exports" / "run" / "step-4", dict.fromkeys(names, model), {"onnx-int8": "agreement 0.1 < 0.85"})


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Told:
    """Runs the verb in this process: (exit code, what it said on stderr)."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    monkeypatch.chdir(tmp_path)

    def run(*words: str | Path) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["ckptd", "bench", *map(str, words)])
        code = main()
        return code, capsys.readouterr().err

    return run


def test_the_folder_its_link_and_what_lies_in_it_name_an_export(tmp_path: Path, export: Path) -> None:
    (export.parent / "latest").symlink_to("step-4")
    assert [locate(tmp_path, str(path)) for path in (export, export.parent / "latest")] == [(locate(tmp_path, str(export))[0], None)] * 2
    for path in (export / "onnx", export.parent / "latest" / "onnx"):
        found, inside = locate(tmp_path, str(path))
        assert (found.folder, inside) == (export, "onnx")


def test_all_that_are_deployed_by_themselves_are_chosen_in_the_order_of_the_formats(tmp_path: Path, export: Path) -> None:
    choice = choose(locate(tmp_path, str(export))[0], [])
    assert choice.variants == ("pytorch", "onnx", "vendor-npz") and list(choice.faults) == ["vendor-npz"]
    assert choice.peer == str(export / "pytorch") and choice.no_peer is None
    adapter, activations = choice.notes
    assert adapter == "pytorch-adapter was left out: it runs over its base, which is not in the export."
    assert activations.startswith("onnx-activations was left out: it is made to look into the model")


def test_those_that_are_named_are_chosen_though_they_can_not_be_measured(tmp_path: Path, export: Path) -> None:
    choice = choose(locate(tmp_path, str(export))[0], ["onnx-int8", "pytorch-adapter", "onnx", "onnx-activations", "onnx"])
    assert choice.variants == ("pytorch-adapter", "onnx", "onnx-activations", "onnx-int8") and choice.notes == ()
    assert {name: str(fault.code) for name, fault in choice.faults.items()} == {
        "pytorch-adapter": "base-not-found", "onnx-int8": "artifact-missing",
    }  # fmt: skip
    assert choice.faults["onnx-int8"].cause == "agreement 0.1 < 0.85"


def test_a_merged_model_that_is_damaged_is_compared_with_nothing(tmp_path: Path, export: Path) -> None:
    (export / "pytorch" / "config.json").unlink()
    choice = choose(locate(tmp_path, str(export))[0], ["onnx"])
    assert choice.peer is None and choice.no_peer is not None and "the file pytorch/config.json is missing" in choice.no_peer
    seal(export)
    choice = choose(locate(tmp_path, str(export))[0], ["onnx"])
    assert choice.no_peer == "There is no PyTorch model in this export to compare with."


@pytest.mark.parametrize(
    ("words", "cause", "remedy"),
    [
        (("nowhere/at-all",), "there is no such path", "check the path"),
        (("gone-4-1234",), "'gone-4-1234': there is no such folder, and no job id begins with this", "or an id from `ckptd list`"),
        (("model",), "there is no MANIFEST.json in it or above it", "give the folder of an export"),
        (
            ("exports/run",),
            "there is no MANIFEST.json in it or above it",
            "give one of the exports in it, for example {}/exports/run/step-4",
        ),
        (("exports/run/step-4/report.json",), "it is a file", "give the export's folder: {}/exports/run/step-4"),
        (("exports/run/step-4", "onx"), "the export has no variant 'onx'", "name some of these: pytorch, pytorch-adapter, onnx,"),
        (("exports/run/step-4", "--lengths", "8,x"), "'8,x' is not a list of whole numbers from 1 to 131072", "for example --lengths 1,4"),
        (("exports/run/step-4", "--threads", "0"), "'0' is not a list of whole numbers from 1 to 1024", "for example --threads 1,4"),
        (("exports/run/step-4", "--batches", "1,,2"), "'1,,2' is not a list", "for example --batches 1,4"),
        (("exports/run/step-4", "--html", "exports/run/step-4/bench.html"), "it would be in an export", "give a file in another folder"),
        (("exports/run/step-4", "--html", "gone/bench.html"), "there is no such folder", "make it, or give another file"),
        (("exports/run/step-4", "--html", "model"), "it is a folder", "give the name of a file"),
        (("exports/run/step-4", "--minutes", "0"), "invalid value for '--minutes'", "see ckptd bench --help"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_no_export_and_no_option_is_one_sentence(
    told: Told, tmp_path: Path, export: Path, words: tuple[str, ...], cause: str, remedy: str
) -> None:
    code, said = told(*words)
    assert code == 2 and said.count("\n") == 1 and said.startswith("ckptd: ") and ". Fix: " in said
    assert cause in said and remedy.format(tmp_path) in said
    assert not (tmp_path / "xdg" / "ckptd" / "foreground").exists() and not (export / "bench.html").exists()


@pytest.mark.parametrize(
    "row", ['{"path": "onnx/\\u0000", "size": 1}', '{"path": "onnx/\\ud800", "size": 1}', '{"path": "onnx/../../x", "size": 1}']
)  # fmt: skip
def test_a_file_that_can_not_be_is_damage(tmp_path: Path, export: Path, row: str) -> None:
    (export / "MANIFEST.json").write_text(f'{{"files": [{row}]}}')
    assert str(choose(locate(tmp_path, str(export))[0], []).faults["onnx"].code) == "export-damaged"


NO_MANIFESTS = (
    "", "[]", "7", '{"files": 3}', '{"files": [7]}', '{"files": [{"path": "a/b"}]}', '{"files": []}', "{", "[" * 100_000,
    '{"files": [{"path": "a/b", "size": 1e999}]}', '{"files": [{"path": "README.md", "size": 1}]}',
)  # fmt: skip


@pytest.mark.parametrize("text", NO_MANIFESTS, ids=lambda text: text[:20])
def test_a_manifest_that_is_none_is_one_sentence(told: Told, export: Path, text: str) -> None:
    (export / "MANIFEST.json").write_text(text)
    code, said = told(export)
    assert code == 2 and said.count("\n") == 1 and ". Fix: " in said
    with pytest.raises(UsageError):
        locate(export, str(export))


def test_an_export_that_can_not_be_read_is_one_sentence(told: Told, export: Path) -> None:
    (export / "MANIFEST.json").unlink()
    (export / "MANIFEST.json").mkdir()
    code, said = told(export)
    assert code == 2 and said.count("\n") == 1 and "MANIFEST.json can't be read" in said
