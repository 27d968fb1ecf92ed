"""A trainer's state of any length is read as Python's own parser reads it, in memory of a fixed size."""

from __future__ import annotations

import io
import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.checkpoints import trainer_state
from daemon.checkpoints.trainer_state import HISTORY, LOSSES, read, read_long

NUMBERS = st.one_of(st.integers(-(10**20), 10**20), st.floats())
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=6))
ROWS = st.dictionaries(st.sampled_from(["loss", "step", "eval_loss", "grad_norm", "text"]), SCALARS, max_size=4)
STATES = st.dictionaries(
    st.one_of(st.sampled_from([HISTORY, "global_step", "best_metric"]), st.text(max_size=4)),
    st.one_of(SCALARS, st.lists(st.one_of(ROWS, SCALARS), max_size=6), st.dictionaries(st.text(max_size=3), SCALARS, max_size=3)),
    max_size=5,
)

WINDOWS = st.one_of(st.integers(1, 40), st.integers(41, 4096))


def shortened(value: Any) -> Any:
    """What is kept of a state that fits."""
    if isinstance(value, dict) and isinstance(value.get(HISTORY), list):
        rows = [row for row in value[HISTORY] if isinstance(row, dict)]
        with_loss = [place for place, row in enumerate(rows) if "loss" in row][-LOSSES:]
        evaluated = [place for place, row in enumerate(rows) if any(key.startswith("eval_") for key in row)][-1:]
        return {**value, HISTORY: [rows[place] for place in sorted({*with_loss, *evaluated})]}
    return value


def outcome(text: bytes, window: int) -> Any:
    try:
        return repr(read_long(io.BytesIO(text), window))
    except (ValueError, RecursionError):
        return None


@settings(max_examples=400, deadline=None)
@given(STATES, st.sampled_from([None, 2]), WINDOWS)
def test_read_in_windows_of_any_size_it_says_what_the_whole_says(state: dict[str, Any], indent: int | None, window: int) -> None:
    text = json.dumps(state, indent=indent).encode()
    assert outcome(text, window) == repr(shortened(json.loads(text)))


@settings(max_examples=400, deadline=None)
@given(STATES, WINDOWS, st.data())
def test_what_is_no_json_for_the_whole_is_none_in_windows(state: dict[str, Any], window: int, data: st.DataObject) -> None:
    text = bytearray(json.dumps(state).encode())
    place = data.draw(st.integers(0, len(text) - 1))
    if data.draw(st.booleans()):
        del text[place:]
    else:
        text[place] = data.draw(st.integers(0, 255))
    try:
        whole = json.loads(bytes(text).decode("utf-8-sig"))
    except (ValueError, RecursionError):
        whole = None
    assert outcome(bytes(text), window) == (repr(shortened(whole)) if isinstance(whole, dict) else None)


@pytest.mark.parametrize("text", [b"", b"[]", b"{} {}", b'{"log_history": [{}', b'{"a" 1}', b"{1: 2}", b"[" * 100_000])
def test_what_is_no_object_is_refused(text: bytes) -> None:
    assert outcome(text, 7) is None


def test_a_long_log_needs_no_more_memory_than_a_short_one(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    with path.open("w") as stream:
        stream.write('{\n  "best_metric": NaN,\n  "log_history": [\n')
        for step in range(1, 60_001):
            stream.write(json.dumps({"epoch": step / 7, "grad_norm": 1.25, "loss": 1 / step, "step": step}) + ",\n")
        stream.write('{"eval_loss": 0.5, "step": 60000}], "global_step": 60000}')
    assert path.stat().st_size > 3 * trainer_state.WHOLE
    tracemalloc.start()
    state = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert math.isnan(state["best_metric"]) and state["global_step"] == 60_000
    assert len(state[HISTORY]) == LOSSES + 1 and state[HISTORY][-1] == {"eval_loss": 0.5, "step": 60000}
    assert [row["step"] for row in state[HISTORY][:-1]] == list(range(60_001 - LOSSES, 60_001))
    assert peak < 8 << 20


def test_whoever_reads_a_long_log_gives_way_to_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(trainer_state.time, "sleep", pauses.append)
    rows = b",".join([b'{"loss": 1, "step": 2}'] * 64_000)
    assert read_long(io.BytesIO(b'{"log_history": [' + rows + b"]}"))[HISTORY][0] == {"loss": 1, "step": 2}
    assert len(pauses) >= len(rows) / 80_000 and 0 < max(pauses) < 0.001, (
        "without a pause another thread waits up to 5 ms for the interpreter"
    )


def test_rows_that_hold_objects_are_read_in_a_time_that_grows_as_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    loads = json.loads
    monkeypatch.setattr(trainer_state.json, "loads", lambda text: (calls.append(len(text)), loads(text))[1])
    rows = [{"loss": step, "parts": {"a": step}, "more": [{}, {}]} for step in range(20_000)]
    text = json.dumps({HISTORY: rows}, separators=(",", ":")).encode()
    assert len(read_long(io.BytesIO(text))[HISTORY]) == LOSSES
    assert sum(calls) <= 3 * len(text)


def test_the_bound_of_values_is_that_of_one_value_and_not_of_what_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_state, "MOST_VALUES", 300)
    allowed = {name: [1] * 290 for name in "abcd"}
    assert read_long(io.BytesIO(json.dumps(allowed, separators=(",", ":")).encode()), 256) == allowed
    for name in "abcd":
        text = json.dumps({**allowed, name: [1] * 320}, separators=(",", ":")).encode()
        with pytest.raises(ValueError, match="more than the 300 values"):
            read_long(io.BytesIO(text), 256)
