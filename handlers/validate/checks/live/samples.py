"""One prompt on which artifacts are compared with the live model."""

from __future__ import annotations

from dataclasses import dataclass, field

from handlers.validate.length.text import Stored

SHOWN = 4
"""Prompts whose answers people get to see: the first ones."""


@dataclass(frozen=True)
class Sample:
    """One prompt, and what the live model made of it."""

    text: str
    encoded: list[int]
    """Token ids of the text."""
    ids: list[int]
    """The same, cut to what the model can address."""
    tokens: list[int]
    """Greedy continuation, of an encoder-decoder its greedy output; empty for an encoder."""
    continuation: str | None
    """Its text, None without a tokenizer."""
    keep: list[int]
    """Rows that are compared: of a language model's, positions of ids + tokens; see `texts.rows_that_count`."""
    logits: Stored
    """.npy file of the live logits (len(keep), V) float32."""
    types: list[int] | None = None
    """Segment of each of `ids`, for tasks that read two texts at once."""
    first: str | None = None
    """The text that goes before `text` in the same input."""
    completion: list[int] | None = None
    """Numbers of the rows of `logits` that predict what the data says that the model should say; None where it does not say so."""
    prompt: list[int] | None = None
    """Token ids after which a model is to say `answer`; None where the data has none."""
    answer: str | None = None
    """What the data says that the model should say, as far as it is decoded."""
    asked: str | None = None
    """The text of `prompt`, where a language model is to answer it; None where the sample goes on with all of its text."""
    question: str | None = None
    """The last question of a conversation, without what the chat template puts around it."""
    said: list[int] | None = None
    """Tokens that the live model answers to `prompt`."""
    steps: int = 0
    """Tokens that are decoded for it at most."""
    label: int | None = None
    """Number of the label that the data gives the text; None where it gives none that the model has."""
    base: str | None = None
    """What the base says without the adapter, of the first SHOWN prompts; None where there is no adapter or no text."""

    base_rows: list[int] = field(default_factory=list)
    """Rows of `logits`, ascending, whose counterparts by the base without the adapter are kept; empty without a base."""
    base_logits: Stored | None = None
    """.npy file of these, (len(base_rows), V) float32."""
    rounded: Stored | None = None
    """.npy file (len(keep), V) float32 of what the live model answers with its weights rounded; None where nobody asked."""
    merged: Stored | None = None
    """.npy file (len(keep), V) float32 of what the merged model has to answer, whoever merged it; None where nobody knows."""
    once: Stored | None = None
    """The same where `merged` is of deltas that were rounded to 16 bits, and here their sum with the base alone, which is as right."""
    piece: bool = False
    """It is a piece of the text that the sample before it is of too."""

    @property
    def scored(self) -> list[tuple[int, int]]:
        """(row, token that follows there) of every kept row whose next token is the text's own, not one that the model made up."""
        return [(row, self.ids[place + 1]) for row, place in enumerate(self.keep) if place + 1 < len(self.ids)]
