"""A folder with pickled weights becomes one with safetensors: every tensor to the byte, nothing run, nothing half-written."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.contract.faults.errors import Permanent
from daemon.contract.jobs.processes.conversion import Conversion
from handlers.convert import folder
from tests import models
from tests.cli.test_bad_input import ckptd, one_sentence
from tests.sampling import some

if TYPE_CHECKING:
    import torch


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Of one dtype and shape, and equal to the byte."""
    import torch

    flat = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*flat)


def converted(source: Path, target: Path) -> Conversion:
    """Without a process of its own."""
    target.mkdir()
    return folder.convert(source, target, lambda share, doing: None)


@pytest.fixture(scope="module")
def pickled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as older trainings leave it, with the state of the training. Read only."""
    import torch
    from safetensors.torch import load_file

    base = models.make_base(tmp_path_factory.mktemp("pickled") / "model")
    torch.save(load_file(base / "model.safetensors"), base / "pytorch_model.bin")
    (base / "model.safetensors").unlink()
    torch.save({"state": {}}, base / "optimizer.pt")
    torch.save({"lr": 1.0}, base / "training_args.bin")
    (base / "README.md").write_text("mine")
    return base


def test_a_models_folder_is_converted_by_the_verb_and_transformers_loads_the_same(pickled: Path, tmp_path: Path) -> None:  # R10
    from safetensors.torch import load_file
    from torch import load
    from transformers import AutoModelForCausalLM

    answer = ckptd(tmp_path, "convert", pickled, tmp_path / "new")
    assert answer.returncode == 0, answer.stderr
    told = ("pytorch_model.bin", "model.safetensors, 24 tensors", "equal", "optimizer.pt: the state of a training", "with 6 other files")
    for part in told:
        assert part in answer.stdout, answer.stdout
    new = tmp_path / "new"
    kept = {path.name for path in pickled.iterdir()} - {"pytorch_model.bin", "optimizer.pt", "training_args.bin"}
    assert {path.name for path in new.iterdir()} == {"model.safetensors", *kept}
    assert all((new / name).read_bytes() == (pickled / name).read_bytes() for name in kept)
    wanted, found = load(pickled / "pytorch_model.bin"), load_file(new / "model.safetensors")
    assert wanted.keys() == found.keys() and all(same(wanted[name], found[name]) for name in wanted)
    _, info = AutoModelForCausalLM.from_pretrained(new, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new"], "nothing is left beside it"


def test_the_answer_in_json_names_every_file(pickled: Path, tmp_path: Path) -> None:
    answer = ckptd(tmp_path, "convert", pickled, tmp_path / "new", "--json")
    value = json.loads(answer.stdout)
    assert answer.stderr == "" and value["target"] == str(tmp_path / "new")
    assert [one["source"] for one in value["converted"]] == ["pytorch_model.bin"] and "README.md" in value["copied"]
    assert set(value["left_out"]) == {"optimizer.pt", "training_args.bin"}


def test_several_files_keep_their_index_with_new_names(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    source = tmp_path / "source"
    source.mkdir()
    parts = [{"a": torch.ones(3), "b": torch.zeros(2, dtype=torch.bfloat16)}, {"c": torch.arange(4)}]
    names = [f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2)]
    for name, part in zip(names, parts, strict=True):
        torch.save(part, source / name)
    index = {"metadata": {"total_size": 48, "by": "me"}, "weight_map": {"a": names[0], "b": names[0], "c": names[1]}}
    (source / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    converted(source, tmp_path / "new")
    said = json.loads((tmp_path / "new" / "model.safetensors.index.json").read_bytes())
    assert said["metadata"] == {"total_size": 48, "by": "me"}
    assert said["weight_map"] == {name: f"model-0000{1 + (name == 'c')}-of-00002.safetensors" for name in "abc"}
    assert all(same(load_file(tmp_path / "new" / said["weight_map"][name])[name], part[name]) for part in parts for name in part)
    index["weight_map"]["d"] = names[1]
    (source / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(Permanent, match=r"it says that d is in pytorch_model-00002-of-00002\.bin, which does not have it"):
        converted(source, tmp_path / "other")


def test_what_a_file_holds_beside_the_model_is_kept_as_metadata_or_named(tmp_path: Path) -> None:
    import torch
    from safetensors import safe_open

    source = tmp_path / "source"
    (source / "2_Dense").mkdir(parents=True)
    (source / ".git").mkdir()
    (source / ".git" / "x.pt").write_bytes(b"no")
    state = {"w": torch.randn(2, 3).T, "version": 3}
    torch.save(
        {"state_dict": state, "epoch": 7, "config": {"lr": 0.1}, "optimizer": {"step": torch.ones(1)}}, source / "2_Dense" / "last.ckpt"
    )
    found = converted(source, tmp_path / "new")
    (one,) = found.converted
    assert (one.source, one.target) == ("2_Dense/last.ckpt", "2_Dense/last.safetensors")
    with safe_open(tmp_path / "new" / one.target, "pt") as opened:
        assert opened.metadata() == one.metadata == {"format": "pt", "epoch": "7", "config": '{"lr": 0.1}', "version": "3"}
        assert same(opened.get_tensor("w"), state["w"])
    assert list(found.left_out) == ["2_Dense/last.ckpt: optimizer"]
    assert not (tmp_path / "new" / ".git").exists()


def test_links_of_a_hubs_cache_become_files_and_shared_tensors_stay_under_all_their_names(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    blobs, source = tmp_path / "blobs", tmp_path / "source"
    blobs.mkdir()
    source.mkdir()
    weight = torch.randn(4, 4)
    torch.save({"embed": weight, "head": weight, "part": weight[1:3]}, blobs / "1")
    (blobs / "2").write_text("{}")
    os.symlink(blobs / "1", source / "pytorch_model.bin")
    os.symlink(blobs / "2", source / "config.json")
    converted(source, tmp_path / "new")
    assert not any(path.is_symlink() for path in (tmp_path / "new").iterdir()) and (tmp_path / "new" / "config.json").read_text() == "{}"
    found = load_file(tmp_path / "new" / "model.safetensors")
    assert same(found["embed"], weight) and same(found["head"], weight) and same(found["part"], weight[1:3])


DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool", "float8_e4m3fn", "complex64")
SHAPES = st.lists(st.integers(0, 4), max_size=3)
TABLES = st.dictionaries(
    st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__" and name.isprintable()),
    st.tuples(st.sampled_from(DTYPES), SHAPES, st.booleans()), min_size=1, max_size=5,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(table=TABLES, old=st.booleans())
def test_any_table_of_tensors_is_the_same_afterwards(table: dict[str, Any], old: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    import torch
    from safetensors.torch import load_file

    source = tmp_path_factory.mktemp("any")
    tensors = {}
    for number, (name, (dtype, shape, turned)) in enumerate(table.items()):
        dtype = "float16" if old and dtype.startswith("float8") else dtype  # which torch's old form can't hold
        size = torch.Size(shape).numel() * torch.empty(0, dtype=getattr(torch, dtype)).element_size()
        raw = torch.randint(0, 2 if dtype == "bool" else 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(number))
        made = raw.view(getattr(torch, dtype)).reshape(shape)
        tensors[name] = made.transpose(0, -1) if turned and len(shape) > 1 else made
    torch.save(tensors, source / "x.pt", _use_new_zipfile_serialization=not old)
    converted(source, source / "new")
    found = load_file(source / "new" / "x.safetensors")
    assert found.keys() == tensors.keys() and all(same(found[name], tensors[name]) for name in tensors)


class Evil:
    """Runs a command when it is unpickled as pickle does it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {os.environ['EVIL']}",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"not a pickle", "truncated"),
        ("evil", "holds more than tensors"),
        ({"a": 1, "b": "x"}, "holds no table of tensors, but a, b"),
        ([1, 2], "holds no table of tensors, but a list"),
        ("sparse", "w is sparse, which safetensors can't hold"),
    ],
)
def test_what_can_not_be_converted_is_refused_and_nothing_of_it_is_run(
    content: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setenv("EVIL", str(tmp_path / "was-run"))
    source = tmp_path / "source"
    source.mkdir()
    path = source / "weights.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "evil":
        path.write_bytes(pickle.dumps({"w": Evil()}))
    else:
        torch.save({"w": torch.eye(2).to_sparse()} if content == "sparse" else content, path)
    with pytest.raises(Permanent, match=said):
        converted(source, tmp_path / "new")
    assert not (tmp_path / "was-run").exists()


def test_a_folder_that_can_not_be_converted_gives_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "weights.pt").write_bytes(b"not a pickle")
    answer = ckptd(tmp_path, "convert", tmp_path / "source", tmp_path / "new")
    assert answer.returncode == 1 and "truncated" in one_sentence(answer), answer.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_paths_that_can_not_be_meant_are_usage_errors(pickled: Path, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "x").touch()
    for source, target, said in (
        (tmp_path / "none", tmp_path / "new", "there is no such directory"),
        (pickled / "pytorch_model.bin", tmp_path / "new", "it is a file"),
        (pickled, full, "it exists already"),
        (pickled, pickled / "inside", "inside it"),
        (pickled, pickled, "the same"),
        (pickled, pickled.parent, "around it"),
    ):
        answer = ckptd(tmp_path, "convert", source, target)
        assert answer.returncode == 2 and said in one_sentence(answer), answer.stderr
    assert [path.name for path in full.iterdir()] == ["x"]


def test_a_folder_without_pickled_weights_is_refused_with_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    with pytest.raises(Permanent, match=r"there is no file of weights that ends in \.bin, \.pt, \.pth, \.ckpt"):
        converted(tmp_path / "empty", tmp_path / "new")
    (tmp_path / "empty" / "model.safetensors").touch()
    with pytest.raises(Permanent, match=r"its weights are safetensors already.*--to"):
        converted(tmp_path / "empty", tmp_path / "other")


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    import torch

    source = tmp_path / "source"
    source.mkdir()
    torch.save({"w": torch.ones(1)}, source / "model.pt")
    (source / "model.safetensors").write_bytes(b"")
    with pytest.raises(Permanent, match=r"model\.pt would become model\.safetensors, which model\.safetensors is or becomes too"):
        converted(source, tmp_path / "new")


PARTS = 60
"""Files of a folder whose conversion is to be met at work, on a slow box too."""


@pytest.mark.parametrize("number", some([signal.SIGINT, signal.SIGKILL], of=2))
def test_one_that_is_interrupted_leaves_no_folder_and_the_same_command_ends_it(number: int, tmp_path: Path) -> None:
    import torch

    source = tmp_path / "source"
    source.mkdir()
    for part in range(PARTS):
        torch.save({f"w{part}": torch.zeros(1 << 14)}, source / f"part{part}.pt")
    command = [sys.executable, "-m", "daemon", "convert", str(source), str(tmp_path / "new")]

    def as_in_a_terminal() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell starts what runs in its background without it

    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=as_in_a_terminal) as process:
        staging = tmp_path / ".new.ckptd-part"
        end = time.monotonic() + 60
        while not (staging.is_dir() and any(staging.iterdir())) and time.monotonic() < end:
            time.sleep(0.002)
        process.send_signal(number)
        code = process.wait()
    assert not (tmp_path / "new").exists() and code == (130 if number == signal.SIGINT else -9)
    if number == signal.SIGINT:
        assert sorted(one.name for one in tmp_path.iterdir()) == ["source"]
    answer = ckptd(tmp_path, "convert", source, tmp_path / "new")
    assert answer.returncode == 0, answer.stderr
    assert len(list((tmp_path / "new").iterdir())) == PARTS
    assert not list(tmp_path.glob(".new*"))


def test_a_written_file_that_differs_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    source = tmp_path / "source"
    source.mkdir()
    torch.save({"w": torch.ones(64), "v": torch.ones(1)}, source / "x.pt")
    plain = folder._write

    def damaging(tensors: Any, metadata: Any, path: Path) -> None:
        plain(tensors, metadata, path)
        content = bytearray(path.read_bytes())
        content[-3] ^= 1
        path.write_bytes(content)

    monkeypatch.setattr(folder, "_write", damaging)
    with pytest.raises(Permanent, match="what was written differs from its source"):
        converted(source, tmp_path / "new")


@pytest.mark.slow
def test_a_whole_model_is_exported_without_a_training(pico_base: Path, tmp_path: Path) -> None:  # R10
    answer = ckptd(tmp_path, "convert", pico_base, tmp_path / "new", "--to", "pytorch", "--to", "torchscript", "--json")
    assert answer.returncode == 0, answer.stderr
    value = json.loads(answer.stdout)
    assert value["artifacts"] == {"pytorch": "passed", "torchscript": "passed"} and value["target"].startswith(str(tmp_path / "new"))


def test_pipes_and_links_to_nothing_are_left_out_and_named(tmp_path: Path) -> None:
    import torch

    source = tmp_path / "source"
    source.mkdir()
    torch.save({"w": torch.ones(1)}, source / "x.pt")
    os.mkfifo(source / "pipe")
    os.symlink(tmp_path / "nowhere", source / "lost.bin")
    found = converted(source, tmp_path / "new")
    assert found.left_out == dict.fromkeys(("lost.bin", "pipe"), "it is no file, or a link to nothing")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["x.safetensors"]


def test_a_program_of_torchscript_is_refused_and_parameters_are_tensors(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    for name in ("script", "plain"):
        (tmp_path / name).mkdir()
    torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)).save(tmp_path / "script" / "x.pt")
    with pytest.raises(Permanent, match="holds more than tensors"):
        converted(tmp_path / "script", tmp_path / "script" / "new")
    values = {"w": torch.nn.Parameter(torch.ones(2, 2)), "c": torch.randn(3, dtype=torch.complex64).conj()}
    torch.save(values, tmp_path / "plain" / "x.pt")
    converted(tmp_path / "plain", tmp_path / "plain" / "new")
    found = load_file(tmp_path / "plain" / "new" / "x.safetensors")
    assert same(found["w"], values["w"].detach()) and torch.equal(found["c"], values["c"])


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems")
def test_a_disk_that_fills_up_meanwhile_is_a_failure_that_may_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    source, disk = tmp_path / "source", tmp_path / "disk"
    source.mkdir()
    disk.mkdir()
    torch.save({"w": torch.zeros(6 << 20)}, source / "x.pt")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)], check=True)
    try:
        answer = ckptd(tmp_path, "convert", source, disk / "new")
        assert answer.returncode == 75 and "it needs up to" in one_sentence(answer), answer.stderr
        command = [sys.executable, "-m", "handlers.convert", str(source), str(disk), "--answer", str(tmp_path / "answer.json")]
        assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 1
        said = json.loads((tmp_path / "answer.json").read_bytes())
        assert said["transient"] and said["fault"]["code"] == "disk-full"
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
