"""lm-evaluation-harness with a model at the other end of two pipes: it asks `handlers.validate.tasks.harness`. Runs inside its toolchain.

The first line of standard input is what to run; then each line that is written is a request, and each line read its answer. What the
harness and its libraries print goes to standard error.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

_OUT = os.fdopen(os.dup(1), "w", encoding="utf-8")
USUAL_CONTEXT = 2048
"""Positions of a model that does not say how many it has."""

PERPLEXITIES = frozenset({"word_perplexity", "byte_perplexity", "bits_per_byte"})
"""Metrics that are no mean of items: those are scored by what lies under them, nats a word or a byte."""


class Refused(Exception):
    """Why a task can't be run, as a clause."""


def _say(value: Mapping[str, Any]) -> None:
    _OUT.write(json.dumps(value) + "\n")
    _OUT.flush()


def _ask(name: str, **request: Any) -> Any:
    _say({"ask": name, **request})
    line = sys.stdin.readline()
    if not line:
        raise SystemExit(1)  # whoever asked is gone
    return json.loads(line)


def _model(context: int | None, begin: int | None) -> Any:
    """The model as the harness knows models."""
    from lm_eval.api.model import TemplateLM
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    class Piped(TemplateLM):  # type: ignore[misc]
        """Asks for each text; nothing is kept here."""

        longest = context or USUAL_CONTEXT
        tokenizer_name = "of the model's own folder"

        @property
        def eot_token_id(self) -> int:
            """The token that texts without a context begin with."""
            return int(self.tok_encode("\n")[0]) if begin is None else begin

        def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
            """Return the ids, with special tokens as the tokenizer's default has them; without those at the beginning where False."""
            ids: list[int] = _ask("encode", texts=[string, ""])[0]
            if add_special_tokens is False:
                before: list[int] = _ask("encode", texts=[""])[0]
                return ids[len(before) :] if ids[: len(before)] == before else ids
            return ids

        def _loglikelihood_tokens(self, requests: Iterable[Any], **kwargs: Any) -> list[tuple[float, bool]]:
            return [self._score(ids, targets) for _, ids, targets in requests]

        def _score(self, ids: list[int], targets: list[int]) -> tuple[float, bool]:
            if not targets:
                return 0.0, True
            kept = ids[-max(1, self.longest + 1 - len(targets)) :]
            if len(kept) + len(targets) > self.longest + 1:
                raise Refused(f"a continuation of {len(targets):,} tokens is longer than the model's {self.longest:,} positions")
            value, greedy = _ask("score", ids=kept, targets=targets)
            return float(value), bool(greedy)

        def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
            """Return the log-likelihood of each whole text, in windows of the model's length."""
            return [self._rolling(self.tok_encode(request.args[0], add_special_tokens=False)) for request in requests]

        def _rolling(self, ids: list[int]) -> float:
            windows = get_rolling_token_windows(token_list=ids, prefix_token=self.prefix_token_id, max_seq_len=self.longest, context_len=1)
            return math.fsum(self._score(before, after)[0] for before, after in map(make_disjoint_window, windows))

        def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
            """Return what the model writes after each context, greedily."""
            return [self._generate(*request.args) for request in requests]

        def _generate(self, text: str, settings: Mapping[str, Any]) -> str:
            if (settings.get("do_sample") and float(settings.get("temperature", 1.0)) > 0) or int(settings.get("num_beams", 1)) > 1:
                raise Refused("it samples or searches with beams, and models are compared by greedy decoding alone")
            until = settings.get("until") or []
            tokens = int(settings.get("max_gen_toks") or settings.get("max_new_tokens") or 0)
            ids = self.tok_encode(text)[-max(1, self.longest - (tokens or 256)) :]
            said: str = _ask("generate", ids=ids, until=[until] if isinstance(until, str) else list(until), tokens=tokens)
            return said

        def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
            """Return a conversation as the model's own template writes it."""
            text: str = _ask("chat", messages=chat_history, answer=add_generation_prompt)
            return text

    return Piped()


def run(order: Mapping[str, Any]) -> dict[str, Any]:
    """Evaluate the tasks of an order and return the answer. Raises Refused, and whatever the harness raises."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=order["include"] or None)
    if unknown := [name for name in order["tasks"] if name not in manager.all_tasks]:
        where = f" and {order['include']}" if order["include"] else ""
        raise Refused(f"lm-evaluation-harness{where} has no task {unknown[0]!r}")
    results = simple_evaluate(
        model=_model(order["context"], order["beginning"]),
        tasks=list(order["tasks"]),
        task_manager=manager,
        limit=order["limit"] or None,
        bootstrap_iters=0,
        torch_random_seed=None,
        apply_chat_template=order["chat_template"],
    )
    samples: Mapping[str, list[Mapping[str, Any]]] = results["samples"]
    metric, _, wanted = order["metric"].partition(",")
    rows = [(task, sample) for task, given in samples.items() for sample in _filtered(task, given, wanted)]
    if not rows:
        raise Refused("the tasks have no items")
    metric = metric or rows[0][1]["metrics"][0]
    items = [_item(task, sample, metric) for task, sample in rows]
    directions = {results["higher_is_better"].get(task, {}).get(metric) for task in samples} - {None}
    if len(directions) > 1:
        raise Refused(f"of {metric} more is better in some of these tasks and less in others; give each its own [[validate.tasks]]")
    return {
        "metric": metric, "better": "lower" if directions == {False} else "higher", "items": items,
        "metrics": _figures(results["results"]),
    }  # fmt: skip


def _filtered(task: str, samples: list[Mapping[str, Any]], wanted: str) -> list[Mapping[str, Any]]:
    """Return the samples of one of a task's filters: the one that is wanted, else its first."""
    names = list(dict.fromkeys(sample["filter"] for sample in samples))
    if wanted and wanted not in names:
        raise Refused(f"the task {task} has no filter {wanted!r}; it has {', '.join(names)}")
    return [sample for sample in samples if sample["filter"] == (wanted or names[0])]


def _item(task: str, sample: Mapping[str, Any], metric: str) -> dict[str, Any]:
    if metric not in sample["metrics"]:
        raise Refused(f"the task {task} has no metric {metric!r}; it has {', '.join(sample['metrics'])}")
    value, weight = sample[metric], 1.0
    if metric in PERPLEXITIES and value[1] > 0:
        value, weight = -value[0] / value[1], float(value[1])  # a log-likelihood, and the words or bytes that it is of
    try:
        score = float(value)
    except (TypeError, ValueError):
        raise Refused(f"{metric} of the task {task} is no mean over its items; name another metric") from None
    return {"id": f"{task}/{sample['doc_id']}/{sample['doc_hash'][:16]}", "score": score, "weight": weight}


def _figures(results: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return every number of the results as "task metric", without standard errors."""
    figures = {}
    for task, values in results.items():
        for key, value in values.items():
            name = key.removesuffix(",none")
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if number and "_stderr" not in key and key not in ("alias", "sample_len"):
                figures[f"{task} {name}"] = float(value)
    return dict(list(figures.items())[:100])


def main() -> None:
    """Read the order, answer it, and end."""
    os.dup2(2, 1)
    order = json.loads(sys.stdin.readline())
    try:
        _say({"ask": "answer", **run(order)})
    except Refused as error:
        _say({"ask": "failed", "cause": str(error)})
    except Exception as error:
        import traceback

        traceback.print_exc()
        text = " ".join(str(error).split())[:500]
        _say({"ask": "failed", "cause": f"lm-evaluation-harness raised {type(error).__name__}: {text}"})
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
