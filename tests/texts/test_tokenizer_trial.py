"""A tokenizer that costs more than any in use ends the merge, by name; sound ones of all kinds do not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.merge import stage
from handlers.texts import tokenizer_trial
from handlers.texts.tokenizer_trial import try_tokenizer
from tests import models
from tests.merge import helpers

BOMBS = {
    "letters that are doubled nine times": ([normalizers.Replace("e", "ee")] * 9, "tokens of a text of"),
    "more letters than fit into memory": ([normalizers.Replace("e", "e" * 10_000)] * 3, "takes more than (2 s|4096 MiB of memory)"),
    "a pattern that its library gives up on": ([normalizers.Replace(Regex(r"(\w*\s*\w*)*\d\w$"), "x")], "gives up on an ordinary text"),
}


def spoil(folder: Path, steps: list[normalizers.Normalizer]) -> None:
    """Give the tokenizer in a folder these normalizers."""
    tokenizer = Tokenizer.from_str(models.make_tokenizer().backend_tokenizer.to_str())
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_tokenizer_that_costs_too_much_is_refused_by_name(bomb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_trial, "CPU_SECONDS", 2)
    steps, words = BOMBS[bomb]
    spoil(tmp_path, steps)
    with pytest.raises(Permanent, match=words) as caught:
        try_tokenizer(tmp_path)
    fault = caught.value.fault
    assert fault.code in (FaultCode.TOKENIZER_TOO_COSTLY, FaultCode.TOKENIZER_UNREADABLE) and fault.path == str(tmp_path / "tokenizer.json")


def test_the_merge_ends_with_that(pico_base: Path, pico_checkpoint: Path, tmp_path: Path) -> None:
    pin = shutil.copytree(pico_checkpoint, tmp_path / "pin")
    spoil(pin, BOMBS["letters that are doubled nine times"][0])
    with pytest.raises(Permanent, match="tokens of a text of"):
        stage.run(helpers.context(tmp_path / "merge", pin, pico_base), helpers.reporter())


def test_what_is_sound_or_for_others_to_refuse_is_let_through(tmp_path: Path) -> None:
    try_tokenizer(tmp_path)
    spoil(tmp_path, [normalizers.NFKD(), normalizers.Lowercase(), normalizers.Replace(" ", "▁")])
    try_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    try_tokenizer(tmp_path)
