"""Requests and answers of the processes that run models cross the pipe whole, errors and numbers that JSON lacks among them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from handlers.validate.engines.registry import EngineSpec
from handlers.validate.workers import protocol, worker
from handlers.validate.workers.client import WorkerFailed, answer_in
from handlers.validate.workers.protocol import Ahead, AskStats, Decoding, Greedy, Load, PaddedBatch, Padding, Rebase, Teacher


def crossed(value: Any) -> Any:
    return json.loads(json.dumps(value))


@pytest.fixture
def commands(tmp_path: Path) -> worker.Commands:
    return worker.Commands(EngineSpec(engine="onnx", folder=str(tmp_path)).model_dump())


def test_the_worker_has_a_method_for_each_request_and_no_other(commands: worker.Commands) -> None:
    methods = {name for name in dir(commands) if not name.startswith("_")}
    assert methods == set(protocol.REQUESTS)


@pytest.mark.parametrize(
    "request_",
    [
        Load(),
        Rebase(values="dequantized"),
        Greedy(ids=[5, 6], tokens=3, verify=True),
        Teacher(ids=[1, 2], keep=[0], out="rows.npy", types=[0, 1], bare=True),
        Padding(batch=PaddedBatch(prompts=[[1], [1, 2]], continuations=[[], []]), side="right"),
    ],
)
def test_a_request_arrives_as_it_was_sent(request_: protocol.Request[Any]) -> None:
    assert protocol.request_of(crossed(request_.line)) == request_


def test_an_answer_arrives_with_infinity_in_it_and_with_what_was_not_measured_as_none() -> None:
    sent = Decoding(tokens=[7], cache_error=math.inf, cache_errors={"two graphs": math.inf})
    assert answer_in(crossed(sent.model_dump()), Greedy(ids=[1], tokens=1)) == sent
    assert answer_in({"tokens": [7]}, Greedy(ids=[1], tokens=1)).cache_error is None


def test_an_answer_to_another_request_is_not_taken() -> None:
    with pytest.raises(ValidationError):
        answer_in(crossed(Decoding(tokens=[7]).model_dump()), AskStats())


def test_an_error_in_the_worker_is_raised_by_the_client_with_its_cause(commands: worker.Commands) -> None:
    with pytest.raises(WorkerFailed, match="NoneType") as caught:  # nothing has been loaded
        answer_in(crossed(worker.answer(commands, Greedy(ids=[1], tokens=1).line)), Greedy(ids=[1], tokens=1))
    assert caught.value.code == "engine" and "Traceback" in str(caught.value.details)


def test_the_time_that_a_request_may_take_follows_the_tokens_that_it_runs() -> None:
    assert Greedy(ids=[1, 2, 3], tokens=4).work_tokens == 7
    assert Teacher(ids=[1, 2], targets=[3], keep=[], out="").work_tokens == 3
    assert Padding(batch=PaddedBatch(prompts=[[1], [1, 2]], continuations=[[3], [4]])).work_tokens == 5
    ahead = Ahead(requests=[one.line for one in (Greedy(ids=[1, 2, 3], tokens=4), Teacher(ids=[1, 2], targets=[3], keep=[], out=""))])
    assert ahead.work_tokens == 7 + 3, "a batch has the time of its texts"
    assert (AskStats().work_tokens, AskStats.reads_model, Load.reads_model, Rebase.reads_model) == (0, False, True, True)
