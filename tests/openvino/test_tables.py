"""The tables inside OpenVINO's tokenizers are those of the checkpoint's tokenizer.json, or it is told what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from handlers.openvino.twin import tables
from handlers.validate.files import runtime, tokenizer
from handlers.validate.files.probes import TEXTS
from handlers.validate.workers.protocol import Transcribe, Transcript
from tests.openvino.small_ir import Net

WANTED: dict[str, Any] = {
    "model": {"vocab": {"<s>": 0, "a": 1, "Ġb": 2, "▁c": 3, "aĠb": 4, "é": 5}, "merges": [["a", "Ġb"], "Ġb a"]},
    "added_tokens": [{"id": 0, "content": "<s>", "special": True}, {"id": 6, "content": "Ġ x", "special": False}],
}  # fmt: skip
TOKENS = (b"<s>", b"a", b" b", b" c", b"a b", b"\xe9", "Ġ x".encode())
MERGES = ((b"a", b" b"), (b" b", b"a"))


def files(
    folder: Path, read: tuple[bytes, ...] = TOKENS, written: tuple[bytes, ...] = TOKENS, merges: tuple[tuple[bytes, bytes], ...] = MERGES,
    skipped: tuple[int, ...] = (0,), reader: str = "BPETokenizer",
) -> tuple[Path, Path]:  # fmt: skip
    """A tokenizer and a detokenizer."""
    import numpy as np

    first = Net()
    texts = [first.layer("Parameter", ()) for _ in range(5)]
    parts = [first.strings(*side) for side in zip(*merges, strict=True)]
    first.layer(reader, [*texts, *first.strings(*read), *parts[0], *parts[1]])
    second = Net()
    ids = second.layer("Convert", [second.layer("Parameter", ())])
    second.layer("VocabDecoder", [ids, *second.strings(*written), second.constant("skip", "i32", np.array(skipped))])
    return first.write(folder, "reader"), second.write(folder, "writer")


def test_tables_of_the_checkpoints_tokens_are_no_fault(tmp_path: Path) -> None:
    assert tables.fault(*files(tmp_path), WANTED) is None
    assert tables.fault(*files(tmp_path, written=(*TOKENS, b"")), WANTED) is None, "a table may be longer than the tokens"
    assert tables.fault(*files(tmp_path, reader="SentencepieceTokenizer"), WANTED) is None, "a kind that has no such tables"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"read": (TOKENS[0], TOKENS[2], TOKENS[1], *TOKENS[3:])},
            "reads other tokens by reader.xml: the id 1 is ' b' instead of 'a', and 1",
        ),
        ({"written": (*TOKENS[:5], b"e", TOKENS[6])}, "writes other tokens by writer.xml: the id 5 is 'e' instead of"),
        ({"read": TOKENS[:6]}, "reads other tokens by reader.xml: it has 6 tokens, and none with the id 6"),
        ({"merges": MERGES[:1]}, "it has 1 merges instead of 2"),
        ({"merges": MERGES[::-1]}, r"it merges ' b', 'a' where the checkpoint's merges \('a', 'Ġb'\) \(merge 0\)"),
        ({"skipped": (0, 4)}, "writes other tokens by writer.xml: it leaves out the token with the id 4"),
        ({"skipped": ()}, "it does not leave out the token with the id 0"),
    ],
)
def test_other_tables_are_told(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    import re

    assert re.search(words, tables.fault(*files(tmp_path, **changes), WANTED) or "")


def test_special_tokens_of_a_runtimes_own_tokenizer_are_those_that_the_checkpoint_names() -> None:
    names, stored = {"eos_token": "<s>", "pad_token": "none of these"}, WANTED
    assert runtime.tokens_difference({"eos_token_id": 0, "pad_token_id": 3, "bos_token_id": -1}, names, stored) is None
    told = runtime.tokens_difference({"eos_token_id": 5, "pad_token_id": 3}, names, stored)
    assert told == "its tokenizer's eos_token_id is 5 instead of 0"


def test_an_implementation_that_is_alike_may_read_a_few_rare_texts_otherwise_and_no_more() -> None:
    asked = Transcribe(texts=[*TEXTS, "a <s>"], pairs=[], digested=["x"] * 40, sequences=[[1]] * 40)
    wanted = Transcript(
        ids=[[1]] * (len(TEXTS) + 1), pairs=[], digests=["d"] * 40, texts=["t"] * 40, whole=None, foreign=False,
    )  # fmt: skip

    def told(rare: int = 0, added: int = 0, digests: int = 0, texts: int = 0) -> str | None:
        ids = [[1]] * 5 + [[2]] * rare + [[1]] * (len(TEXTS) - 5 - rare) + [[2 if added else 1]]
        found = wanted.model_copy(update={
            "ids": ids, "digests": ["e"] * digests + ["d"] * (40 - digests), "texts": ["t"] * 20 + ["u"] * texts + ["t"] * (20 - texts),
            "foreign": True, "alike": True,
        })  # fmt: skip
        return tokenizer.transcript_fault(asked, found, wanted)

    assert told() is told(rare=2) is told(digests=4) is told(texts=4) is None
    assert "reads" in (told(rare=4) or "") and "reads 'a <s>'" in (told(added=1) or "")
    assert "as other ids" in (told(digests=5) or "") and "decodes" in (told(texts=5) or "")
    far = wanted.model_copy(update={"ids": [[1]] * 5 + [[2]] * (len(TEXTS) - 4), "foreign": True})
    assert tokenizer.transcript_fault(asked, far, wanted) is None, "of one that promises nothing only plain texts count"


def test_another_implementation_may_read_texts_around_added_tokens_otherwise_and_few_of_the_others() -> None:
    asked = Transcribe(texts=[*TEXTS, *("a <s>", "<s>a") * 20], pairs=[], digested=[], sequences=[])
    wanted = Transcript(ids=[[1]] * len(asked.texts), pairs=[], digests=[], texts=[], whole=None, foreign=False)

    def told(rare: int) -> str | None:
        ids = [[2]] * rare + [[1]] * (len(TEXTS) - rare) + [[2]] * 40
        return tokenizer.too_far_apart(asked, wanted.model_copy(update={"ids": ids, "foreign": True}), wanted)

    few = int(tokenizer.RARE * len(TEXTS))
    assert told(few) is None and (told(few + 1) or "").startswith(f"reads {few + 1} of {len(TEXTS)} texts otherwise, 'How are you")
