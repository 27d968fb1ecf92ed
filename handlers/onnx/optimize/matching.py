"""Spares onnxscript's rewriter what can't match: a pattern is compared only with nodes of the operator that it ends in.

onnxscript tries each of its hundred rules on each node, and lists the whole graph anew for each rule that ends in several nodes: the time
grows with the square of the layers. What is rewritten stays the same. Used around the exporter and the optimizer's steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import onnx_ir as ir

_ATTRIBUTES = ("_matcher", "_target_pattern", "_verbose")
"""What is read of a rule; if a version of onnxscript has no such thing, its rules are tried as they are."""


def _last_operator(rule: Any) -> tuple[str, str] | None:
    """Domain and type of the operator that a node must have for the rule to be tried on it; None where that is not known.

    A pattern that ends in several nodes is tried on the first of them, with all nodes of the graph for the others.
    """
    try:
        matcher, wanted, verbose = (getattr(rule, name) for name in _ATTRIBUTES)
        if type(matcher).__name__ != "SimplePatternMatcher" or matcher.pattern is not wanted or verbose:
            return None
        domain, kind, _ = wanted.output_nodes[0].op_identifier()
    except (AttributeError, IndexError, TypeError, ValueError):  # TypeError: any of several operators
        return None
    return domain, kind


@contextlib.contextmanager
def by_operator() -> Iterator[None]:
    """Inside, rules are tried only on nodes of the operator that they end in."""
    from onnxscript.rewriter import pattern  # what only fills a template has no use for it

    original = getattr(pattern.RewriteRule, "try_rewrite", None)
    if original is None:
        yield
        return
    known: dict[Any, tuple[str, str] | None] = {}

    def try_rewrite(self: Any, model: ir.Model, graph: Any, node: ir.Node, **how: Any) -> Any:
        if self not in known:
            known[self] = _last_operator(self)
        wanted = known[self]
        if wanted is not None and (wanted[1] != node.op_type or wanted[0] != node.domain) and not any(how.values()):
            return None
        return original(self, model, graph, node, **how)

    with mock.patch.object(pattern.RewriteRule, "try_rewrite", try_rewrite):
        yield
