"""What a runtime generates by a folder's own settings, what an example ends at, and what a folder's script makes of a question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon.contract.jobs.figures import LiveFigures
from handlers.folder import examples
from handlers.validate.checks import stock_generation
from handlers.validate.checks.live.reference import Reference
from handlers.validate.checks.live.samples import Sample
from handlers.validate.files.expected import FILE, Expected
from handlers.validate.outside import chat, example
from handlers.validate.workers.client import WorkerRefused
from handlers.validate.workers.protocol import Decode, Generate, Generated, Teacher, Text

ROWS = np.eye(8, dtype=np.float32)[[3, 4, 5, 1]] * 4 + np.eye(8, dtype=np.float32)[[2, 2, 2, 2]] * 3
"""Logits after the prompt and each token: 3, 4, 5 and the end, 1, are the best, and 2 is the second."""


class Runtime:
    """A worker whose runtime generates what it is told to."""

    def __init__(self, tokens: list[int] | None, ignores: tuple[str, ...] = ()) -> None:
        self._answer = Generated(tokens=tokens, ignores=list(ignores))

    def ask(self, request: Any) -> Any:
        if isinstance(request, Generate):
            return self._answer
        if isinstance(request, Decode):
            return Text(text="".join(f"<{token}>" for token in request.ids))
        assert isinstance(request, Teacher) and request.keep[0] == len(request.ids) - 1
        np.save(request.out, ROWS[: len(request.keep)])
        return None


def said(folder: Path, runtime: Any, **generation: Any) -> tuple[str | None, list[str]]:
    defaults = {"repetition_penalty": 1.0, "num_beams": 1, "no_repeat_ngram_size": 0}
    expected = Expected(generation={"eos_token_id": 1, **generation}, defaults=defaults, config={})
    (folder / FILE).write_text(json.dumps(expected.model_dump()))
    sample = Sample("text", [6, 7], [6, 7], [3, 4, 5, 1], None, [0], folder / "live.npy")
    reference = Reference([sample], 1.0, [], 0, True, LiveFigures(), None, files=folder)
    return stock_generation.fault(runtime, reference, folder, 1e-3)


@pytest.mark.parametrize(
    ("tokens", "settings", "words"),
    [
        ([3, 4, 5, 1], {}, None),
        (None, {}, None),
        ([3, 4, 2, 1], {}, "generates token 2 .* at place 3 behind a prompt, where the checkpoint's settings make 5"),
        ([3, 4, 5, 1, 3], {}, "goes on behind the end token 1"),
        ([3, 4], {}, "ends a text after 2 tokens at token 4, no end of the checkpoint's"),
        ([3, 4], {"stop_strings": ["<9>", "3><4"]}, None),
        ([3, 4], {"stop_strings": "<9>"}, "ends a text after 2 tokens at token 4, no end of the checkpoint's"),
        ([], {}, "ends a text after 0 tokens at the prompt"),
        ([3, 4, 5, 1], {"eos_token_id": [1, 4]}, "goes on behind the end token 4"),
        ([3, 4, 5, 1], {"suppress_tokens": [5]}, "generates token 5 .* make 2"),
        ([3, 4, 2, 1], {"suppress_tokens": [5]}, None),
        ([3, 4, 2, 1], {"bad_words_ids": [[4, 5]]}, None),
        ([2, 4, 5, 1], {"begin_suppress_tokens": [3]}, None),
        ([3, 4, 5, 1], {"min_new_tokens": 5}, "generates token 1 .* make 2"),
        ([3, 4, 2, 1], {"num_beams": 4}, None),
    ],
)
def test_each_token_is_the_best_one_by_the_checkpoints_rules(
    tokens: list[int] | None, settings: dict[str, Any], words: str | None, tmp_path: Path
) -> None:
    import re

    told, _ = said(tmp_path, Runtime(tokens), **settings)
    assert told is None if words is None else told and re.search(words, told), told


def test_a_penalty_takes_from_what_was_said_before() -> None:
    scores = stock_generation._scores(np.array([4.0, -2.0, 3.0]), [0, 1], 0, {"repetition_penalty": 2.0}, frozenset())
    assert scores.tolist() == [2.0, -4.0, 3.0]
    scores = stock_generation._scores(np.zeros(4), [1, 2, 3, 1, 2], 3, {"no_repeat_ngram_size": 3}, frozenset())
    assert scores.tolist() == [0.0, 0.0, 0.0, -np.inf]


def test_what_a_runtime_does_not_know_is_told_and_what_it_refuses_is_a_fault(tmp_path: Path) -> None:
    told, notes = said(tmp_path, Runtime([3, 4, 5, 1], ("suppress_tokens",)), suppress_tokens=[5])
    assert told is None and notes == ["its runtime knows no suppress_tokens, which the checkpoint's generation_config.json sets"]

    class Refusing(Runtime):
        def ask(self, request: Any) -> Any:
            raise WorkerRefused("no room", "give it some")

    told, _ = said(tmp_path, Refusing([]))
    assert told == "its runtime, by the folder's own settings, does not generate: no room"


def test_an_example_may_end_a_text_at_an_end_of_the_checkpoint_alone(tmp_path: Path) -> None:
    (tmp_path / examples.NAME).write_text("print([3, 4])")
    assert example.check(tmp_path, "text", [3, 4, 5], 1, frozenset({4})) is None
    assert example.check(tmp_path, "text", [3, 4], 1, frozenset({1})) is None
    told = example.check(tmp_path, "text", [3, 4, 5], 1, frozenset({1}))
    assert told == "its example.py ends a text after 2 tokens at token 4, which is no end of the checkpoint's"


def test_the_script_of_a_folder_writes_what_the_checkpoints_template_writes(tmp_path: Path) -> None:
    template = "{% for one in messages %}[{{ one.content }}]{% endfor %}{% if add_generation_prompt %}{{ eos_token }}{% endif %}"
    wanted = Expected(templates=[template], names={"eos_token": "</s>"})
    assert chat.fault(tmp_path, wanted) is None, "a folder without it has nothing to compare"
    examples.place_beside(examples.CHAT, tmp_path)
    (tmp_path / "chat_template.jinja").write_text(template)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    assert chat.fault(tmp_path, wanted) is None
    script = tmp_path / examples.CHAT
    script.write_text(script.read_text().replace("add_generation_prompt=True", "add_generation_prompt=False"))
    told = chat.fault(tmp_path, wanted)
    assert told is not None and "its chat_template.py writes" in told and "</s>" in told
    script.write_text("raise RuntimeError('broken')")
    assert chat.fault(tmp_path, wanted) == "its chat_template.py does not run: RuntimeError: broken"
