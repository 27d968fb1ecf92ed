"""Programs of fixed sizes say what the models say that they were made of, whatever pieces a text comes in; wrong ones are refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.static_programs import description
from handlers.static_programs.published.feeding import Text, TooLongError
from handlers.static_programs.session import ProgramSession
from tests.onnx import qwen
from tests.sampling import some
from tests.static_programs.forms import programs, tiny
from tests.torch_programs.forms import MODELS

KINDS: dict[str, Any] = {
    **MODELS,
    "a sliding window": lambda folder: qwen.make(folder, "Mistral", sliding_window=6),
    "sliding and full layers": lambda folder: qwen.make(
        folder, "Qwen2", use_sliding_window=True, sliding_window=5, max_window_layers=1, num_hidden_layers=3
    ),
    "Gemma 2": lambda folder: qwen.make(
        folder, "Gemma2", sliding_window=6, query_pre_attn_scalar=16, hidden_activation="gelu_pytorch_tanh"
    ),
}


@pytest.mark.parametrize("name", some(KINDS, of=9))
def test_programs_say_what_the_model_says(name: str, tmp_path: Path) -> None:
    source = KINDS[name](tmp_path / "model")
    folder, output = programs(source, tmp_path / "work")
    assert 0 <= output.figures["relative_error"] < 1e-4
    assert name != "Qwen3" or description.read(folder).length == 128, "the room is what the model knows at most"
    weights = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    assert sum(path.stat().st_size for path in folder.glob("*.pt2")) < 2.2 * weights + 3_000_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and its programs with room for 40 tokens."""
    return tiny(tmp_path_factory)


def logits(source: Path, ids: list[int]) -> np.ndarray:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    with torch.inference_mode():
        found: np.ndarray = model(input_ids=torch.tensor([ids])).logits[0].numpy()
    return found


class Pieces:
    """A session that takes a few numbers of tokens only."""

    def __init__(self, session: ProgramSession, sizes: tuple[int, ...]) -> None:
        self.start, self.run, self.sizes = session.start, session.run, sizes


@pytest.mark.parametrize("sizes", some([pytest.param(sizes) for sizes in ((1, 8), (1,), (3,), (1, 2, 32), tuple(range(1, 33)))], of=3))
@pytest.mark.parametrize("cuts", some([pytest.param((1, 33, 6)), pytest.param((40,)), pytest.param((8, 1, 1, 8, 20))], of=3))
def test_a_text_may_come_in_any_pieces_and_fill_all_of_its_room(
    cuts: tuple[int, ...], sizes: tuple[int, ...], made: tuple[Path, Path]
) -> None:
    source, folder = made
    ids = np.random.default_rng(3).integers(2, 320, 40 if sizes[0] == 1 else 39).tolist()
    text, found, start = Text(Pieces(ProgramSession(folder / "model.pt2", "model"), sizes), 40), [], 0
    for cut in cuts:
        if sizes == (3,):
            cut -= cut % 3  # such a program can't take the rest
        if piece := ids[start : start + cut]:
            found.append(text.feed(piece))
            start += len(piece)
    wanted = logits(source, ids[:start])
    assert np.abs(np.concatenate(found) - wanted).max() < 1e-4 * wanted.std() * 10


def test_what_does_not_fit_is_refused_and_changes_nothing(made: tuple[Path, Path]) -> None:
    source, folder = made
    ids = list(range(2, 42))
    text = Text(ProgramSession(folder / "model.pt2", "model"), 40)
    text.feed(ids[:38])
    with pytest.raises(TooLongError, match="has room for 40 tokens, and these are 41"):
        text.feed([5, 6, 7])
    assert np.abs(text.feed(ids[38:]) - logits(source, ids)[38:]).max() < 1e-3


def test_two_texts_do_not_meet(made: tuple[Path, Path]) -> None:
    source, folder = made
    session = ProgramSession(folder / "model.pt2", "model")
    one, other = Text(session, 40), Text(session, 40)
    one.feed([5, 6, 7])
    other.feed([9, 8])
    assert np.abs(one.feed([8])[-1] - logits(source, [5, 6, 7, 8])[-1]).max() < 1e-3
    assert np.abs(other.feed([7])[-1] - logits(source, [9, 8, 7])[-1]).max() < 1e-3


def test_programs_are_opened_without_transformers(made: tuple[Path, Path]) -> None:
    _, folder = made
    script = f"""
import sys
for name in ("transformers", "onnx", "onnxruntime", "peft"):
    sys.modules[name] = None
from pathlib import Path
from handlers.static_programs.published.feeding import Text
from handlers.static_programs.session import ProgramSession
import handlers.static_programs.engine
print(Text(ProgramSession(Path({str(folder / "model.pt2")!r}), "model"), 40).feed([3, 4, 5]).shape)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.strip() == "(3, 320)", done.stderr


@pytest.mark.parametrize("damage", some(["sees what comes", "forgets", "shifts"], of=3))
def test_a_program_that_computes_otherwise_is_refused(
    damage: str, made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from handlers.static_programs.tracing import fixed_cache

    layer = fixed_cache.FixedLayer
    if damage == "forgets":
        plain = layer.update
        monkeypatch.setattr(layer, "update", lambda self, k, v, *a, **b: (plain(self, k, v)[0] * 0.5, self.values))
    elif damage == "shifts":
        monkeypatch.setattr(layer, "get_seq_length", lambda self: self._positions[0] - 1)
    else:
        monkeypatch.setattr(layer, "get_seq_length", lambda self: self._positions[-1])
    with pytest.raises(Permanent) as refused:
        programs(made[0], tmp_path, context_length=40)
    assert refused.value.fault.code == FaultCode.FORM_NOT_POSSIBLE and "differ from torch's" in refused.value.fault.cause
