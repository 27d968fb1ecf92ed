"""Findings: reasons why an artifact must not be used that no threshold excuses, each with what to do.

Made by the checks, which add them to `Examination.findings`; `verdict` makes the check's reasons and remedies of them, in the order in
which they were found. A check that is new needs no place there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from daemon.contract.jobs.figures import CheckFigures

RARE = "rare tokens"
"""Aspect of a finding that is told only where nothing else is wrong."""
MERGE = "merge"
"""Aspect of the finding that an artifact is made of another merge than PEFT's."""
_TOKENIZER = (
    "give the checkpoint or the base the tokenizer that belongs to the model, then export again; where they have it, the format did not"
    " copy it as it is: report that"
)


@dataclass(frozen=True)
class Finding:
    """One reason."""

    aspect: str
    """What of the artifact is wrong, in a word or two: "tokenizer", "weights"."""
    reason: str
    """A sentence without its full stop, about "its" file or part."""
    remedy: str
    """What to do, as a sentence without its full stop."""
    of_precision: bool = False
    """A less quantized form may not have it."""


@dataclass
class Compared:
    """What a comparison found out about an artifact."""

    figures: CheckFigures = field(default_factory=CheckFigures)
    findings: list[Finding] = field(default_factory=list)
    """Why it must not be used, whatever the figures say."""
    notes: list[str] = field(default_factory=list)
    """What is to be known of it although nothing is wrong with it, in sentences."""

    def add(self, other: Compared) -> None:
        """Take in what another comparison found out."""
        self.figures = self.figures.plus(**other.figures.given)
        self.findings += other.findings
        self.notes += other.notes


def tokenizer(reason: str) -> Finding:
    """Report that its tokenizer is not the live model's."""
    return Finding("tokenizer", reason, _TOKENIZER)


def changed(aspect: str, reason: str, files: str = "config.json") -> Finding:
    """Report that what `files` say is not what belongs there."""
    return Finding(aspect, reason, f"export again: what its {files} says was changed")


def stray(reason: str) -> Finding:
    """Report that it holds a file that nobody compares."""
    remedy = "export again; where the format itself writes the file, its declaration has to name it, see docs/writing-a-format.md"
    return Finding("files", reason, remedy)


def rare(reason: str) -> Finding:
    """Report that it answers otherwise where tokens are read that no prompt holds."""
    remedy = "export another variant: this one would answer wrongly where such tokens are read"
    return Finding(RARE, reason, remedy)


def weights(reason: str, variant: str) -> Finding:
    """Report that its weights are not those that were merged."""
    return Finding("weights", reason, made_again(variant))


def merge(reason: str) -> Finding:
    """Report that the merged model is not what base and adapter make."""
    remedy = (
        "do not use anything made of this merge: report it with adapter_config.json and the attempt's log; until then, merge with PEFT"
        " (merge_and_unload over the base in float32) and export the result as a full fine-tune"
    )
    return Finding(MERGE, reason, remedy)


def example(reason: str) -> Finding:
    """Report that the example that it brings does not work."""
    return Finding("example", reason, "export again; if it happens again, report it with the attempt's log")


def portability(reason: str, variant: str) -> Finding:
    """Report that it may give other answers on other processors."""
    remedy = (
        f"export {variant} again: its new weights then leave room in 16 bits; to run this graph as it is, set onnxruntime's session"
        " option session.x64quantprecision to 1"
    )
    return Finding("portability", reason, remedy, of_precision=True)


def structure(reason: str, variant: str) -> Finding:
    """Report that its graph is not the model that its own weights give."""
    return Finding("structure", reason, f"export {variant} again; if it happens again, leave it out of export.variants")


def rounding(reason: str, less: str | None, variant: str) -> Finding:
    """Report that its activations are rounded with a systematic error; `less`: the less quantized form to take instead."""
    remedy = f"use the variant {less} instead of {variant}" if less else f"leave {variant} out of export.variants"
    return Finding("rounding", reason, remedy, of_precision=True)


def made_again(variant: str) -> str:
    """Give the remedy that makes a variant of the merged weights anew."""
    return f"run `ckptd queue retry` with the export's id, so that {variant} is made again of the merged weights"
