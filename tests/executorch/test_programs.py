"""ExecuTorch's programs of models of every kind say what the programs say that they were made of; what can't be made is one sentence."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from handlers.graphs import graphset
from handlers.static_programs import description
from handlers.static_programs.published.feeding import Text, TooLongError
from tests import stages
from tests.stages import refused
from tests.static_programs import forms as static_forms
from tests.static_programs.forms import program, programs, said
from tests.static_programs.test_programs import KINDS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("libraries")]
ROOM = 64
BOUNDS = {"executorch": 5e-3, "executorch-int8": 1.2, "executorch-8da4w": 4.0}
"""Variant → largest difference, in standard deviations of the outputs; the models are untrained."""


def session(path: Path, role: str, threads: int = 2) -> Any:
    from handlers.executorch.session import Session

    return Session(path, role, threads)


def of_folder(folder: Path, role: str) -> Any:
    return session(folder / description.read(folder).graph(role).file, role)


@pytest.mark.parametrize("name", list(KINDS))
def test_every_form_says_what_its_programs_say(name: str, tmp_path: Path) -> None:  # R2.4
    made, _ = programs(KINDS[name](tmp_path / "model"), tmp_path / "programs", context_length=ROOM)
    wanted, experts, sizes = said(made, program), name == "Qwen3Moe", []
    for variant, bound in BOUNDS.items():
        folder, output = stages.make(variant, made, tmp_path / variant)
        for ours, theirs in zip(said(folder, of_folder), wanted, strict=True):
            assert ours.shape == theirs.shape
            assert np.abs(ours - theirs).max() <= (2 if experts and variant != "executorch" else 1) * bound * theirs.std(), variant
        assert output.figures["context_length"] == ROOM
        for role, figures in output.figures["programs"].items():
            products = figures["delegated"].get("aten::linear", 0)
            assert products > 4 and "aten::linear.out" not in figures["portable"] and figures["delegates"] > 0
            assert figures["delegated_operators"] > figures["portable_operators"] or role == "decoder"
            assert figures["bytes"] == (folder / figures["file"]).stat().st_size
            rounded = figures["delegated"].get("torchao::choose_qparams_affine", 0)  # XNNPACK rounds activations where it multiplies
            assert rounded == (0 if variant == "executorch" else products)
            assert figures.get("caches_written_in_place") == figures.get("caches")
        assert any("are left as they are" in one for one in output.warnings) == (experts and variant != "executorch")
        sizes.append(output.figures["graph_bytes"])
    assert sizes[0] > sizes[1] > sizes[2]
    if not experts:
        assert output.figures["small_share"] > 0.99 and output.figures["weights"]["int4"] > 0


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return static_forms.tiny(tmp_path_factory)


@pytest.fixture(scope="module")
def plain(tiny: tuple[Path, Path], toolchain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model in fp32 for ExecuTorch."""
    from tests.toolchains import real

    for _ in real.imported(toolchain):
        folder, _ = stages.make("executorch", tiny[1], tmp_path_factory.mktemp("plain"))
    return folder


IDS = np.random.default_rng(8).integers(2, 320, 40).tolist()


def alone(tiny: tuple[Path, Path], ids: list[int]) -> np.ndarray:
    """What the program says that it was made of, in one go."""
    return Text(program(tiny[1], "model"), 40).feed(ids)


@pytest.mark.parametrize("cuts", [(40,), (1,) * 40, (33, 6, 1), (8, 31, 1)])
def test_a_text_longer_than_a_piece_fills_the_cache_to_its_last_row(cuts: tuple[int, ...], tiny: tuple[Path, Path], plain: Path) -> None:
    opened = session(plain / "model.pte", "model")
    assert opened.sizes == tuple(range(1, 33))
    text, found, start = Text(opened, 40), [], 0
    for cut in cuts:
        found.append(text.feed(IDS[start : start + cut]))
        start += cut
    assert np.abs(np.concatenate(found) - alone(tiny, IDS)).max() < 1e-3
    with pytest.raises(TooLongError, match="has room for 40 tokens, and these are 41"):
        text.feed([5])


def test_texts_that_go_on_by_turns_and_one_after_the_other_do_not_meet(tiny: tuple[Path, Path], plain: Path) -> None:
    opened = session(plain / "model.pte", "model")
    texts = [Text(opened, 40) for _ in range(3)]
    rows = [IDS, IDS[::-1], IDS[5:] + IDS[:5]]
    found: list[list[np.ndarray]] = [[], [], []]
    for start, end in ((0, 9), (9, 10), (10, 25), (25, 40)):
        for place, text in enumerate(texts):
            found[place].append(text.feed(rows[place][start:end]))
    for place, ids in enumerate(rows):
        assert np.abs(np.concatenate(found[place]) - alone(tiny, ids)).max() < 1e-3
    texts.clear()
    for cache in opened._caches:
        cache.fill_(float("nan"))  # what a text before may have left behind
    assert np.abs(Text(opened, 40).feed(IDS[:7]) - alone(tiny, IDS[:7])).max() < 1e-3


def test_a_new_text_in_the_same_memory_sees_nothing_of_the_one_before(tiny: tuple[Path, Path], plain: Path) -> None:
    """An app starts at position 0 again, and nobody clears the cache."""
    import torch

    from handlers.executorch.session import bindings

    method = bindings().Runtime.get().load_program(plain / "model.pte").load_method("forward")
    method.execute([torch.tensor([IDS[:30]]), torch.tensor([0])])
    (found,) = method.execute([torch.tensor([IDS[10:16]]), torch.tensor([0])])
    assert np.abs(found[0].numpy() - alone(tiny, IDS[10:16])).max() < 1e-3
    with pytest.raises(RuntimeError, match="failed with error"):  # beyond the room nothing is written
        method.execute([torch.tensor([IDS[:3]]), torch.tensor([38])])
    (found,) = method.execute([torch.tensor([IDS[16:18]]), torch.tensor([6])])
    assert np.abs(found[0].numpy() - alone(tiny, IDS[10:18])[6:]).max() < 1e-3


def test_positions_that_do_not_go_on_are_refused_before_anything_is_written(tiny: tuple[Path, Path], plain: Path) -> None:
    opened = session(plain / "model.pte", "model")
    state = opened.start()
    first, state = opened.run(state, {"input_ids": np.array([IDS[:3]]), "position_ids": np.array([[0, 1, 2]])})
    for positions in ([7, 8], [3, 5], [39, 40]):
        with pytest.raises(ValueError, match="do not go on after 3 tokens, with room for 40"):
            opened.run(state, {"input_ids": np.array([IDS[3:5]]), "position_ids": np.array([positions])})
    after, _ = opened.run(state, {"input_ids": np.array([IDS[3:5]]), "position_ids": np.array([[3, 4]])})
    assert np.abs(np.concatenate([first["logits"][0], after["logits"][0]]) - alone(tiny, IDS[:5])).max() < 1e-3


def test_a_cache_that_is_written_in_another_way_stays_as_it_is_and_right(
    tiny: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from handlers.executorch import lowering

    monkeypatch.setattr(lowering, "write_in_place", lambda program: 0)
    folder, output = stages.make("executorch", tiny[1], tmp_path)
    assert output.figures["programs"]["model"]["caches_written_in_place"] == 0
    assert np.abs(Text(session(folder / "model.pte", "model"), 40).feed(IDS) - alone(tiny, IDS)).max() < 1e-3


def test_an_operator_that_the_runtime_lacks_is_named(tiny: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from handlers.executorch import lowering

    known = lowering._known
    monkeypatch.setattr(lowering, "_known", lambda: known() - {"aten::index_put_"})
    refused("has no kernel for aten::index_put_", stages.make, "executorch", tiny[1], tmp_path)
    assert not list((tmp_path / "staging").iterdir())


def test_a_program_that_the_compiler_does_not_take_is_refused_in_one_sentence(tiny: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(tiny[1], tmp_path / "programs")
    known = graphset.read(tmp_path / "programs")
    inputs = [one.model_copy(update={"shape": (1, 2, 39, 16)}) if "past" in one.name else one for one in known.graphs[0].inputs]
    shorter = known.graphs[0].model_copy(update={"inputs": tuple(inputs)})  # than the program was exported for
    known.model_copy(update={"graphs": (shorter,)}).write(tmp_path / "programs")
    fault = refused("ExecuTorch's compiler fails", stages.make, "executorch", tmp_path / "programs", tmp_path)
    assert "\n" not in fault.cause
    assert not list((tmp_path / "staging").iterdir())


@pytest.mark.parametrize("group", [32, 64])
def test_groups_have_the_size_that_is_asked_for(group: int, tiny: tuple[Path, Path], tmp_path: Path) -> None:
    _, output = stages.make("executorch-8da4w", tiny[1], tmp_path, group_size=group)
    assert output.figures["block_size"] == group and output.figures["bits"] == 4
    assert output.figures["weights"] == {"table_int8": 320 * 64, "int8": 320 * 64, "int4": 73728, "float32": 0}


def test_rows_that_no_group_fits_get_8_bits(tiny: tuple[Path, Path], tmp_path: Path) -> None:
    _, output = stages.make("executorch-8da4w", tiny[1], tmp_path, group_size=128)  # only down_proj has rows of 128
    assert output.figures["weights"]["int4"] == 2 * 64 * 128


def test_the_folder_runs_alone_with_the_runtime(plain: Path, toolchain: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(plain, tmp_path / "moved")
    before = sorted(path.name for path in moved.iterdir())
    script = f"""
import runpy, json
import numpy as np
session = runpy.run_path({str(moved / "session.py")!r})["Session"]({str(moved / "model.pte")!r}, "model")
text = runpy.run_path({str(moved / "feeding.py")!r})["Text"](session, 40)
print(json.dumps(text.feed({IDS[:5]!r}).argmax(-1).tolist()))
"""
    done = subprocess.run([toolchain / "bin" / "python", "-I", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    opened: Callable[..., Any] = session
    assert json.loads(done.stdout) == Text(opened(plain / "model.pte", "model"), 40).feed(IDS[:5]).argmax(-1).tolist()
    assert sorted(path.name for path in moved.iterdir()) == before
