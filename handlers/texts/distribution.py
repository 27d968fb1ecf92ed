"""What the texts of one purpose are like, and whether they fit: how many, how long, in which scripts, how much the tokenizer knows of them.

Called by the stages that ran them, which have their token ids. Scripts are counted by character, which is honest where a language would
be a guess.
"""

from __future__ import annotations

import functools
import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from daemon.contract.advice.paired import LEAST_TOKENS
from daemon.contract.jobs.figures import TextsFigures
from daemon.contract.language.catalog import to_translate
from handlers.models.files import setting
from handlers.texts.reading import values
from handlers.texts.rendering import ModelFiles
from handlers.texts.selection import Texts

MOST_SCRIPTS = 8
"""Scripts that are named; the rarer ones are one entry."""
MUCH_UNKNOWN = 0.01
"""Share of tokens that the tokenizer does not know from which on the texts are worth a warning."""
MANY_BYTES = 0.25
"""The same of tokens that stand for single bytes."""
COMMON, RARE = 0.2, 0.001
"""A script with at least the first share of the letters on one side, and less than the second on the other, is missing there."""


@dataclass(frozen=True)
class Vocabulary:
    """What a tokenizer's own file says of its tokens."""

    size: int | None = None
    """Tokens that the model has a row for."""
    unknown: int | None = None
    """The token for what it does not know; None where it has none, as tokenizers of bytes."""
    bytes: frozenset[int] = frozenset()
    """Tokens that stand for a single byte of a character that it has no token for."""

    @classmethod
    def of(cls, files: ModelFiles) -> Vocabulary:
        """Of a model; what its files don't say, or where they can't be read, is left open."""
        config = values(files.config / "config.json")
        tokenizer, marian = (values(files.tokenizer / name) for name in ("tokenizer.json", "vocab.json"))
        size = setting(config, "vocab_size")
        model = tokenizer.get("model")
        model = model if isinstance(model, dict) else {}
        table = model.get("vocab")
        if isinstance(table, list):  # Unigram: [token, score]
            table = {pair[0]: number for number, pair in enumerate(table) if isinstance(pair, list) and pair and isinstance(pair[0], str)}
        if not isinstance(table, dict):
            table = marian if not tokenizer else {}
        name = model.get("unk_token")
        unknown = model["unk_id"] if isinstance(model.get("unk_id"), int) else table.get(name) if isinstance(name, str) else None
        if not tokenizer:
            unknown = table.get("<unk>")
        codes = (table.get(f"<0x{code:02X}>") for code in range(256)) if model.get("byte_fallback") else ()
        return cls(
            size if isinstance(size, int) and size > 0 else None,
            unknown if isinstance(unknown, int) else None,
            frozenset(code for code in codes if isinstance(code, int)),
        )


def describe(texts: Texts, rows: Sequence[Sequence[int]], vocabulary: Vocabulary, *, cut: int) -> TextsFigures:
    """The figures of texts whose token ids, as far as they were used, are `rows`. `cut`: texts of which only the beginning was used."""
    lengths = sorted(map(len, rows))
    counts = Counter(token for row in rows for token in row)
    tokens = sum(lengths)
    return TextsFigures(
        sources=dict(texts.sources),
        texts=len(rows),
        tokens=tokens,
        shortest=lengths[0] if lengths else 0,
        median=_at(lengths, 0.5),
        p95=_at(lengths, 0.95),
        longest=lengths[-1] if lengths else 0,
        cut=cut,
        scripts=scripts(texts.plain),
        unknown_share=round(counts[vocabulary.unknown] / tokens, 5) if tokens and vocabulary.unknown is not None else None,
        byte_share=round(sum(counts[token] for token in vocabulary.bytes) / tokens, 5) if tokens and vocabulary.bytes else None,
        different_tokens=len(counts),
        vocabulary_share=round(len(counts) / vocabulary.size, 5) if vocabulary.size else None,
        digest=texts.digest,
    )


def _at(ordered: Sequence[int], share: float) -> int:
    """Return the smallest length that at least this share of the texts does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0


def scripts(texts: Iterable[str]) -> dict[str, float]:
    """Script → its share of all letters, the largest first; {} where there are no letters."""
    counts = Counter(name for text in texts for character in text if (name := _script(character)))
    total = sum(counts.values())
    named = {name: round(count / total, 5) for name, count in counts.most_common(MOST_SCRIPTS)}
    rest = 1 - sum(named.values())
    return named | ({"other": round(rest, 5)} if len(counts) > MOST_SCRIPTS else {})


SCRIPTS = (
    to_translate("Latin"), to_translate("Han"), to_translate("Cyrillic"), to_translate("Hiragana"), to_translate("Katakana"),
    to_translate("Hangul"), to_translate("Greek"), to_translate("Arabic"), to_translate("Hebrew"), to_translate("Devanagari"),
    to_translate("Thai"), to_translate("other"),
)  # fmt: skip
"""Those that pages name in the reader's language."""


@functools.lru_cache(maxsize=1 << 16)
def _script(character: str) -> str | None:
    """Return the script of a letter, by the first word of its name in Unicode; None for what is no letter."""
    if not unicodedata.category(character).startswith("L"):
        return None
    word = unicodedata.name(character, "").split(" ")[0]
    return {
        "CJK": "Han",
        "": "other",
        "FULLWIDTH": "Latin",
        "HALFWIDTH": "Katakana",
        "MODIFIER": None,
        "MICRO": None,
        "MATHEMATICAL": None,
    }.get(word, word.capitalize())


def unfit(figures: TextsFigures, *, named: bool) -> list[str]:
    """Return why a verdict on these texts says little, as sentences. `named`: by the configuration; what is built in is short by design."""
    problems = []
    if figures.unknown_share is not None and figures.unknown_share > MUCH_UNKNOWN:
        problems.append(
            f"{figures.unknown_share:.1%} of the tokens of the texts stand for what the tokenizer does not know: they are in a language or"
            " notation that the model was not made for."
        )
    if named and figures.byte_share is not None and figures.byte_share > MANY_BYTES:
        problems.append(
            f"{figures.byte_share:.0%} of the tokens of the texts are single bytes: the tokenizer has no tokens for their characters."
        )
    if named and (figures.tokens or 0) < LEAST_TOKENS:
        problems.append(f"The texts have {figures.tokens} tokens together: too few for a verdict; give more or longer ones.")
    return problems


def missing_scripts(compared: Iterable[str], data: Iterable[str]) -> list[str]:
    """A warning for each script that is common in the texts that are compared on, or in the training's data, and missing in the other."""
    mine, theirs = scripts(compared), scripts(data)
    if not mine or not theirs:
        return []
    warnings = []
    if strange := _absent(mine, theirs):
        warnings.append(f"The letters of validate.prompts are {strange}, which the training's data does not have; give lines of that data.")
    if left_out := _absent(theirs, mine):
        warnings.append(f"The letters of validate.data are {left_out}, which validate.prompts does not have; add lines with them.")
    return warnings


def _absent(scripts_here: dict[str, float], there: dict[str, float]) -> str:
    """Return the common scripts of the first that the second lacks, with their shares; "" for none."""
    names = [name for name, share in scripts_here.items() if share >= COMMON and there.get(name, 0.0) < RARE and name != "other"]
    return " and ".join(f"{scripts_here[name]:.0%} {name}" for name in names)
