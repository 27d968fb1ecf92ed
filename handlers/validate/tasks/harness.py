"""Tasks of lm-evaluation-harness: it runs in its toolchain, and asks for what a model says, which is one of our engines in its own process.

Called by `stage`. `handlers.toolchains.harness` is the other end: a line of JSON each way for each request. So the harness decides what
is asked and how it is scored, for every format alike, and the live model is the one that the checks compare with.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from daemon.contract.faults.advice import quoted
from daemon.contract.jobs.messages import StageContext
from daemon.contract.jobs.options import Task
from daemon.contract.jobs.tasks import HARNESS
from handlers.texts.chat import special_tokens
from handlers.texts.rendering import ModelFiles, Rendering
from handlers.texts.rows import RowRefused
from handlers.toolchains import use
from handlers.validate.tasks.answers import Answer, Unanswered, answer_of
from handlers.validate.tasks.processes import TaskProcess
from handlers.validate.workers.client import EngineWorker
from handlers.validate.workers.protocol import Decode, Encode, Greedy, Teacher

MODULE = "handlers.toolchains.harness"
FIRST_TOKENS = 16
"""Decoded before it is looked whether the text has ended; then twice as many."""
MOST_TOKENS = 256
"""Decoded where a task names no number, as the harness does."""


def ask(task: Task, worker: EngineWorker, context: StageContext, rendering: Rendering, safe_point: Callable[[], None]) -> Answer:
    """Run a task on the model that `worker` holds. Raises Unanswered; WorkerFailed where the model can't be asked any more."""
    toolchain = use.find(context, HARNESS)
    if toolchain is None:
        install = f"`ckptd toolchain install {HARNESS}`"
        raise Unanswered(f"the toolchain {HARNESS} is not installed", f"run {install}, then `ckptd queue retry` with the export's id")
    answering = _Answering(worker, rendering, Path(context.temporary, "task-logits.npy"))
    order = {
        "tasks": list(task.harness), "include": task.include, "limit": task.limit, "metric": task.metric,
        "chat_template": task.chat_template, "context": worker.load().context_length,
        "beginning": _beginning(worker, ModelFiles.of_job(context).tokenizer),
    }  # fmt: skip
    with TaskProcess(use.command(toolchain, MODULE), Path(context.temporary), task.limit_seconds, safe_point) as process:
        process.send(json.dumps(order).encode() + b"\n")
        while (line := process.line()) is not None:
            request = json.loads(line)
            match request.pop("ask"):
                case "answer":
                    return answer_of(request, request["metric"], request["better"])
                case "failed":
                    raise Unanswered(request["cause"])
                case name:
                    process.send(json.dumps(answering.answer(name, request)).encode() + b"\n")
        process.end()
    raise Unanswered("lm-evaluation-harness ended without an answer")


def _beginning(worker: EngineWorker, tokenizer: Path) -> int | None:
    """The token that stands before a text without a context, as the harness chooses it: the one that begins texts, else the one that ends
    them; None where the tokenizer has neither."""
    tokens = special_tokens(tokenizer)
    text = tokens.get("bos_token") or tokens.get("eos_token")
    ids = worker.ask(Encode(texts=[text])).ids[0] if text else []
    return ids[-1] if ids else None


class _Answering:
    """What a model says to the requests of the harness. Texts are read by the artifact's own tokenizer."""

    def __init__(self, worker: EngineWorker, rendering: Rendering, scratch: Path) -> None:
        self._worker, self._rendering, self._scratch = worker, rendering, scratch

    def answer(self, name: str, request: dict[str, Any]) -> Any:
        """The answer to one request. Raises WorkerFailed; Unanswered for one that no model answers."""
        match name:
            case "encode":
                return self._worker.ask(Encode(texts=request["texts"])).ids
            case "score":
                return self._score(request["ids"], request["targets"])
            case "generate":
                return self._generate(request["ids"], request["until"], request["tokens"] or MOST_TOKENS)
            case "chat":
                return self._conversation(request["messages"], answer=request["answer"])
        raise Unanswered(f"lm-evaluation-harness asks for {quoted(name)}, which is not known")

    def _score(self, ids: list[int], targets: list[int]) -> tuple[float, bool]:
        """Log-likelihood of `targets` after `ids`, in nats, and whether each is the most likely token."""
        read = [*ids, *targets[:-1]]
        self._worker.ask(Teacher(ids=read, keep=list(range(len(ids) - 1, len(read))), out=str(self._scratch)))
        rows = np.load(self._scratch).astype(np.float64)
        rows -= rows.max(axis=1, keepdims=True)
        chosen = rows[np.arange(len(targets)), targets] - np.log(np.exp(rows).sum(axis=1))
        return float(chosen.sum()), bool((rows.argmax(axis=1) == targets).all())

    def _generate(self, ids: list[int], until: list[str], most: int) -> str:
        """The greedy continuation up to the first of `until`, an end token, or `most` tokens."""
        tokens = min(FIRST_TOKENS, most)
        while True:
            said = self._worker.ask(Greedy(ids=ids, tokens=tokens, stop=True)).tokens
            text = self._worker.ask(Decode(ids=said)).text
            ends = [place for mark in until if mark and (place := text.find(mark)) >= 0]
            if ends or len(said) < tokens or tokens == most:
                return text[: min(ends)] if ends else text
            tokens = min(2 * tokens, most)

    def _conversation(self, messages: list[dict[str, Any]], *, answer: bool) -> str:
        if self._rendering.template is None:
            raise Unanswered("the model has no chat template", "leave chat_template out of the task")
        try:
            text = self._rendering.template.write({"messages": messages}, answer=answer)
        except RowRefused as error:
            raise Unanswered(f"the model's chat template refuses a conversation of the task: {error}") from None
        return text.removeprefix(self._rendering.begins)  # which the tokenizer puts there itself
