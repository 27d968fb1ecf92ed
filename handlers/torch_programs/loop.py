"""Greedy decoding inside a TorchScript program: a loop that TorchScript compiles from its text, around the step that was traced.

Tracing keeps no control flow and transformers' models can't be scripted (their configurations have no source text, their layers take
keyword arguments of any name), so the two are combined: `forward` is one traced step with its cache, as before, and `generate` is a
scripted loop of such steps that ends when all rows have ended. A C++ program calls it by `module.run_method("generate", …)`. What it
writes is compared with what a loop outside writes by the same steps, for several shapes and for each of its branches. Called by the stage.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from handlers.graphs.comparison import GraphMismatchError
from handlers.graphs.signature import CausalSignature
from handlers.torch_programs.program import Program

NAME = "generate"
NEW = 6
"""Tokens that the comparison lets both write."""
TIE = 1e-4
"""Standard deviations of logits by which two tokens may be told apart; batches round otherwise than single rows."""


def with_loop(step: torch.jit.ScriptModule, signature: CausalSignature) -> torch.jit.ScriptModule:
    """The step with the loop as a further method. The method is compiled from text: how many arguments a step has depends on the model."""
    step._concrete_type = torch._C.ConcreteModuleType.from_jit_type(step._c._type())  # what is frozen lacks it, what is loaded has it
    step.define(_text(signature))
    return step


def _text(signature: CausalSignature) -> str:
    past = [_variable(name) for name in signature.past]
    fresh = [
        f"    {name} = torch.zeros([rows, {heads}, 0, {size}])" for name, (heads, size) in zip(past, signature.cache_sizes, strict=True)
    ]
    given = ["new", "mask", *(["places[:, -new.size(1):].contiguous()"] if signature.position_ids else []), *past]
    return "\n".join(
        (
            f"def {NAME}(self, input_ids: Tensor, attention_mask: Tensor, most: int, ends: List[int]) -> Tensor:",
            "    rows = input_ids.size(0)",
            *fresh,
            "    new, mask = input_ids, attention_mask",
            "    written = torch.zeros([rows, 0], dtype=torch.long)",
            "    ended = torch.zeros([rows], dtype=torch.bool)",
            "    while written.size(1) < most and not bool(ended.all()):",
            "        places = (mask.cumsum(1) - 1).clamp(min=0)",
            f"        logits, {', '.join(past)} = self.forward({', '.join(given)})",
            "        token = logits[:, -1].argmax(-1)",
            "        if len(ends) > 0:",
            "            token = torch.where(ended, torch.full_like(token, ends[0]), token)",
            "        for end in ends:",
            "            ended = ended | (token == end)",
            "        new = token.unsqueeze(1)",
            "        written = torch.cat([written, new], 1)",
            "        mask = torch.cat([mask, torch.ones([rows, 1], dtype=torch.long)], 1)",
            "    return written",
            "",
        )
    )


def _variable(name: str) -> str:
    return name.replace(".", "_")


def compare(program: Program, signature: CausalSignature, vocabulary: int) -> int:
    """Let the loop write by several shapes and branches, and compare it with a loop of the same steps in Python; how many were compared.

    What differs where two tokens were equally likely is left out. Raises GraphMismatchError.
    """
    generator = np.random.default_rng(5)
    ids = generator.integers(0, vocabulary, (3, 5))
    whole, padded = np.ones_like(ids), np.ones_like(ids)
    padded[1, :2] = padded[2, :4] = 0
    free, _ = _outside(program, signature, ids, padded, NEW, [])
    first, other = int(free[1, 2]), int(free[0, 0])
    cases: tuple[tuple[np.ndarray, np.ndarray, int, list[int]], ...] = (
        (ids[:1], whole[:1], NEW, []), (ids[:1, :1], whole[:1, :1], NEW, []), (ids, padded, NEW, []), (ids, padded, 1, []),
        (ids, padded, 0, []), (ids, padded, NEW, [first]), (ids, padded, NEW, [first, other]), (ids[1:2], padded[1:2], NEW, [first]),
    )  # fmt: skip
    compared = 0
    for given, mask, most, ends in cases:
        wanted, closest = _outside(program, signature, given, mask, most, ends)
        actual = program.generate(given, mask, most, ends)
        if np.array_equal(actual, wanted):
            compared += 1
        elif closest > TIE:
            raise GraphMismatchError(
                f"the scripted loop writes {actual.tolist()} instead of {wanted.tolist()} for {len(given)} rows of {given.shape[1]} tokens"
            )
    return compared


def _outside(
    program: Program, signature: CausalSignature, ids: np.ndarray, mask: np.ndarray, most: int, ends: list[int]
) -> tuple[np.ndarray, float]:
    """Greedy tokens (rows, at most `most`), a row at a time, without its padding; and how far the second token was, at its closest."""
    rows: list[list[int]] = []
    closest = float("inf")
    for row, kept in zip(ids, mask.astype(bool), strict=True):
        written: list[int] = []
        new = row[kept]
        cache = [np.zeros((1, heads, 0, size), np.float32) for heads, size in signature.cache_sizes]
        seen = 0
        while len(written) < most and not set(ends) & set(written):
            seen += len(new)
            feeds: dict[str, Any] = {"input_ids": new[None], "attention_mask": np.ones((1, seen), np.int64)}
            if signature.position_ids:
                feeds["position_ids"] = np.arange(seen - len(new), seen)[None]
            logits, *cache = program.run(None, {**feeds, **dict(zip(signature.past, cache, strict=True))})
            second, best = np.partition(logits[0, -1], -2)[-2:]
            closest = min(closest, float(best - second) / (float(logits[0, -1].std()) or 1.0))
            written.append(int(logits[0, -1].argmax()))
            new = np.array(written[-1:])
        rows.append(written)
    length = max(map(len, rows))
    return np.array([row + ends[:1] * (length - len(row)) for row in rows], np.int64).reshape(len(rows), length), closest
