"""Spares torch's ONNX exporter what it computes twice or for nothing. The graphs are the same.

Five things: the cache of fake tensors, which takes longer to ask than such tensors take to compute where sizes are symbols; the lines of
the model's code, which are looked up for each operator; the Python code of a graph, which is compiled after each change; a second run of
the whole program for the types of its operators, which the program tells already; and the source of each of torchlib's five hundred
functions, which is parsed for a name that nobody reads. All reach into torch or onnxscript, so each is left out where it is not as
expected, and the exporters translate without any if a translation with them fails. Without the cache, torch numbers the values inside of a
graph in another way: it records and drops more of what computes sizes.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch


def _look_up(module: str, name: str) -> Any:
    """An object by its path in a module; None where there is no such thing."""
    try:
        target: Any = importlib.import_module(module)
        for part in name.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError):
        return None
    return target


def _without_cache(stack: contextlib.ExitStack) -> None:
    config = _look_up("torch._dynamo.config", "patch")
    if config is not None and _look_up("torch._dynamo.config", "fake_tensor_cache_enabled") is not None:
        stack.enter_context(config(fake_tensor_cache_enabled=False))


def _without_traces(stack: contextlib.ExitStack) -> None:
    """Let nobody look up which line of the model's code each operator comes of: no graph tells it in the end."""
    config = _look_up("torch.fx", "config")
    if hasattr(config, "do_not_emit_stack_traces"):
        stack.enter_context(mock.patch.object(config, "do_not_emit_stack_traces", True))


def _without_code(stack: contextlib.ExitStack) -> None:
    """Let the Python code of a graph be written and compiled when it is called, and not after each change."""
    lazy = _look_up("torch.fx._lazy_graph_module", "_use_lazy_graph_module")
    if lazy is not None:
        stack.enter_context(lazy(True))


def _with_known_types(stack: contextlib.ExitStack, used: list[str]) -> None:
    """Let the pass that inserts conversions read the value of each node where it is recorded, instead of computing it."""
    path = "torch.onnx._internal.fx.passes.type_promotion"
    interpreter, rule_of = (_look_up(path, name) for name in ("_TypePromotionInterpreter", "get_type_promotion_rule"))
    wanted = ("run_node", "_maybe_promote_node", "_set_current_node")
    if rule_of is None or any(not hasattr(interpreter, name) for name in wanted):
        return
    original = interpreter.run_node

    def run_node(self: Any, node: torch.fx.Node) -> Any:
        if node.op != "call_function" or "val" not in node.meta:
            return original(self, node)
        if rule := rule_of(node, self.type_promotion_table):
            with self._set_current_node(node):
                self._maybe_promote_node(node, rule)  # computes the value of what it changes
        used[:] = ["types"]
        return node.meta["val"]

    stack.enter_context(mock.patch.object(interpreter, "run_node", run_node))


def _without_sources(stack: contextlib.ExitStack) -> None:
    """Let the list of torchlib's functions tell their domain without parsing them. The list is made once for an export."""
    apis = _look_up("torch.onnx._internal.exporter._registration", "onnxscript_apis")
    listed = getattr(apis, "get_torchlib_ops", None)
    traced = _look_up("onnxscript.values", "TracedOnnxFunction")
    if listed is None or traced is None or not isinstance(vars(traced).get("function_ir"), property) or not hasattr(traced, "opset"):
        return

    def domain_alone(self: Any) -> Any:
        return SimpleNamespace(domain=self.opset.domain)

    def get_torchlib_ops() -> Any:
        with mock.patch.object(traced, "function_ir", property(domain_alone)):
            return listed()

    stack.enter_context(mock.patch.object(apis, "get_torchlib_ops", get_torchlib_ops))


@contextlib.contextmanager
def shortcuts() -> Iterator[list[str]]:
    """Inside, exports take all of them. Gives a list that is not empty once a program's types were read from it."""
    used: list[str] = []
    with contextlib.ExitStack() as stack:
        _without_cache(stack)
        _without_traces(stack)
        _without_code(stack)
        _with_known_types(stack, used)
        _without_sources(stack)
        yield used
