"""What an expression of Prometheus asks for, as a parser of its language reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import promql_parser

TARGET = {"instance", "job"}
"""Labels that Prometheus gives every series by what it was scraped from."""


@dataclass
class Asked:
    """The series of an expression, and the labels by which it groups them."""

    series: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """Name → label → values that it compares the label with."""
    labels: set[str] = field(default_factory=set)


def asked(expression: str) -> Asked:
    """Raises ValueError for what is no PromQL: a wrong name of a function or a wrong type of its argument too."""
    into = Asked()

    def visit(node: Any) -> None:
        match node:
            case promql_parser.VectorSelector():
                of = into.series.setdefault(node.name, {})
                for matcher in node.matchers.matchers:
                    of.setdefault(matcher.name, []).extend(matcher.value.split("|"))
            case promql_parser.AggregateExpr() if node.modifier is not None:
                into.labels.update(node.modifier.labels)
            case promql_parser.BinaryExpr() if node.modifier is not None and node.modifier.matching is not None:
                into.labels.update(node.modifier.matching.labels)
            case _:
                pass

    promql_parser.walk(promql_parser.parse(expression), visit)
    return into


def unknown(expression: str, exposed: dict[str, dict[str, set[str]]]) -> Iterator[str]:
    """What an expression names that is not exposed. `exposed`: sample's name → label → its values."""
    wanted = asked(expression)
    known = {name: labels for name, labels in exposed.items() if name in wanted.series}
    yield from sorted(wanted.series.keys() - known.keys() - {"up"})
    for name, labels in known.items():
        for label, values in wanted.series[name].items():
            if label not in TARGET:
                yield from (f'{name}{{{label}="{value}"}}' for value in values if value not in labels.get(label, ()))
    yield from sorted(wanted.labels - TARGET - {label for labels in known.values() for label in labels})
