"""What `ckptd compare A B` prints: two exports, figure by figure, then what they say to the same prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from rich.text import Text

from daemon.cli.views.layout import Cell, Column, hanging, middle, table
from daemon.cli.views.markup import STATE_STYLE, terminal
from daemon.contract import units
from daemon.contract.language.catalog import to_translate, translated, translated_text
from daemon.contract.language.lists import labelled, spaced
from daemon.operating.log.wrapping import width_of
from daemon.operating.monitoring.comparison import ComparedArtifact, ComparedExport, ComparedFigure, Comparison

_COLUMNS = (
    Column("", least=14), Column("A", least=12, right=True), Column("B", least=12, right=True), Column("B over A", least=8, right=True),
)  # fmt: skip
_TEXT = 400
"""Characters of a sample that are shown."""
Say = Callable[[Any], str]


_OF_EXPORT: tuple[tuple[str, str, Say, bool], ...] = (
    (to_translate("status"), "status", translated, False),
    (to_translate("loss"), "loss", units.number, False),
    (to_translate("best metric"), "best_metric", units.number, False),
    (to_translate("epoch"), "epoch", units.number, False),
    (to_translate("KL to the base"), "adapter_kl", units.nats, False),
    (to_translate("export took"), "wall_seconds", units.duration, False),
)
_OF_ARTIFACT: tuple[tuple[str, str, Say, bool], ...] = (
    (to_translate("verdict"), "verdict", translated, False),
    (to_translate("agreement"), "agreement", units.percent, False),
    (to_translate("divergence"), "kl", units.nats, False),
    (to_translate("error"), "error_max", units.sigma, False),
    (to_translate("cosine"), "cosine_mean", lambda value: f"{value:.5f}", False),
    (to_translate("perplexity"), "perplexity", units.number, False),
    (to_translate("accuracy"), "accuracy", units.percent, False),
    (to_translate("exact match"), "exact_match", units.percent, False),
    ("chrF", "chrf", units.number, False),
    (to_translate("size"), "size_bytes", units.size, True),
    (to_translate("tokens a second"), "tokens_per_second", units.number, False),
    (to_translate("of PyTorch"), "pytorch_tokens_per_second", units.number, False),
    (to_translate("× PyTorch"), "speed_over_pytorch", units.times, False),
    (to_translate("first token"), "prefill_seconds", units.duration, False),
    (to_translate("loading"), "load_seconds", units.duration, False),
    (to_translate("memory"), "peak_rss_bytes", units.size, False),
)
"""Label, field, how it is said, whether the two are divided: what was measured once, and would be another number the next time, is not."""


_LABELS = {name: label for label, name, *_ in _OF_ARTIFACT}
_SHARES = ("accuracy", "exact_match")


def print_comparison(value: Comparison) -> None:
    """`ckptd compare`."""
    console = terminal(soft_wrap=True)
    for line in comparison_lines(value, width_of(console)):
        console.print(line)


def comparison_lines(value: Comparison, width: int | None) -> list[Text]:
    """The lines, none wider than `width`."""
    a, b = value.a, value.b
    lines = hanging("A", labelled(_label(a), a.folder), width, style="bold")
    lines += hanging("B", labelled(_label(b), b.folder), width, style="bold")
    for note in value.notes:
        lines += hanging("note", translated_text(note), width, style="yellow")
    rows = list(_rows(_OF_EXPORT, a, b))
    for variant in dict.fromkeys([*a.artifacts, *b.artifacts]):
        rows.append([Cell(variant, "bold"), Cell(""), Cell(""), Cell("")])
        seen = value.differences.get(variant, {})
        rows += _rows(_OF_ARTIFACT, a.artifacts.get(variant), b.artifacts.get(variant), seen, indent="  ")
        rows += _greedy(a.artifacts.get(variant), b.artifacts.get(variant))
    lines += [line for row in table(_COLUMNS, rows, width) for line in row]
    for variant, figures in value.differences.items():
        for name, figure in figures.items():
            lines += hanging(
                spaced(translated("{figure} of {variant}:").format(figure=translated(_LABELS.get(name, name)), variant=variant)),
                translated_text(figure.sentence),
                width,
            )
    return lines + _texts(a, b, width)


def _label(export: ComparedExport) -> str:
    """What people call an export."""
    step = translated("final") if export.ending else translated("step {step}").format(step=export.step) if export.step is not None else ""
    return f"{export.run or '?'} {step}".strip()


def _rows(
    what: Iterable[tuple[str, str, Say, bool]], a: ComparedExport | ComparedArtifact | None, b: ComparedExport | ComparedArtifact | None,
    seen: Mapping[str, ComparedFigure] = MappingProxyType({}), indent: str = "",
) -> Iterable[list[Cell]]:  # fmt: skip
    """A row for each figure that one of the two has."""
    for label, name, say, divided in what:
        mine, other = getattr(a, name, None), getattr(b, name, None)
        if mine is None and other is None:
            continue
        ratio = units.compared(other / mine) if divided and mine and other is not None else _seen(name, seen.get(name))
        cells = [Cell("–" if value is None else say(value), STATE_STYLE.get(str(value), "")) for value in (mine, other)]
        yield [Cell(indent + translated(label)), *cells, Cell(ratio)]


def _seen(name: str, figure: ComparedFigure | None) -> str:
    """What may be called a difference; "" where nothing can be said."""
    if figure is None:
        return ""
    if figure.better is None:
        return translated("no difference")
    if name in ("perplexity", "speed_over_pytorch"):
        return units.compared(figure.value)
    return units.signed(figure.value, units.percent if name in _SHARES else units.number)


def _greedy(a: ComparedArtifact | None, b: ComparedArtifact | None) -> Iterable[list[Cell]]:
    said = [
        "–" if artifact is None or artifact.greedy_prompts is None else _of(artifact.greedy_identical or 0, artifact.greedy_prompts)
        for artifact in (a, b)
    ]  # fmt: skip
    if said != ["–", "–"]:
        yield [Cell("  " + translated("same answers")), Cell(said[0]), Cell(said[1]), Cell("")]


def _of(count: int, whole: int) -> str:
    return translated("{count} of {whole}").format(count=count, whole=whole)


def _texts(a: ComparedExport, b: ComparedExport, width: int | None) -> list[Text]:
    """The first prompt with what both live models say to it, and each artifact that says something else."""
    if a.prompt is None and b.prompt is None:
        return []
    lines = hanging("prompt", _short(a.prompt or b.prompt), width, style="bold")
    for name, export in (("A", a), ("B", b)):
        if export.prompt != (a.prompt or b.prompt):
            lines += hanging(translated("{name} was asked").format(name=name), _short(export.prompt), width, style="bold")
        lines += hanging(translated("{name} live:").format(name=name), _short(export.live_text), width, style="cyan")
        for variant, artifact in export.artifacts.items():
            if artifact.text is not None:
                same = artifact.text == export.live_text
                lines += hanging(f"{name} {variant}:", translated("the same") if same else _short(artifact.text), width, style="cyan")
    return lines


def _short(text: str | None) -> str:
    return "–" if text is None else middle(text, _TEXT) if text.strip() else translated("(nothing)")
