"""What `ckptd bench` prints, on terminals of any width."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from daemon.cli.views.benchmark import bench_lines
from daemon.contract.jobs.processes.benchmark import Bench
from tests.bench.made import BENCH, point, variant


def lines(value: Bench, width: int | None) -> list[str]:
    return [line.plain for line in bench_lines(value, width)]


def test_a_wide_terminal_shows_every_place_with_its_spread() -> None:
    rows = [line.split() for line in lines(BENCH, 100) if line.startswith("onnx-int8-weight ")]
    assert rows[0][1:] == ["1", "987", "MiB", "7.25", "s", "1.75", "s", "1.21", "GiB"]
    assert rows[2][1:] == ["1", "1", "16", "49.4", "ms", "±10", "%", "30,862", "±10", "%", "2.5", "×", "±10", "%"]
    assert len(rows) == 2 + 8


def test_a_narrow_one_shows_medians_by_threads_and_rows() -> None:
    shown = lines(BENCH, 60)
    assert [line for line in shown if line.endswith((" row", " rows"))] == [
        "1 thread, 1 row", "1 thread, 64 rows", "16 threads, 1 row", "16 threads, 64 rows",
    ]  # fmt: skip
    rows = [line.split() for line in shown if line.startswith("onnx-int8-weight ") and line.endswith("2.5 ×")]
    assert len(rows) == 8 and rows[0][1:] == ["16", "49.4", "ms", "30,862", "2.5", "×"] and "±" not in " ".join(shown)


@given(
    threads=st.lists(st.sampled_from([1, 2, 64]), min_size=1, max_size=3, unique=True).map(sorted),
    batches=st.lists(st.sampled_from([1, 8, 4096]), min_size=1, max_size=3, unique=True).map(sorted),
    width=st.integers(60, 120), faster=st.floats(0.001, 500), kind=st.sampled_from(["causal", "seq2seq", "encoder"]),
)  # fmt: skip
def test_no_line_is_wider_than_the_terminal(threads: list[int], batches: list[int], width: int, faster: float, kind: str) -> None:
    points = tuple(point(one, batch, length, faster=faster) for one in threads for batch in batches for length in (1, 131072))
    made = variant("onnx-activations-int8").model_copy(update={"points": points})
    value = BENCH.model_copy(update={"threads": tuple(threads), "batches": tuple(batches), "variants": (made,), "kind": kind})
    assert [line for line in lines(value, width) if cell_len(line) > width] == []
