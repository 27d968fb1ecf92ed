"""A measurement that nobody made, with all that one can hold."""

from __future__ import annotations

from daemon.contract.jobs.processes.benchmark import Bench, BenchedVariant, BenchMachine, BenchPoint, BenchStart, Spread

SENTENCE = "Could not measure onnx: it was killed by SIGKILL, which the kernel does when memory runs out. Fix: free memory."


def spread(median: float) -> Spread:
    """A figure of five rounds whose quartiles are a tenth below and above."""
    return Spread(median=median, low=0.9 * median, high=1.1 * median, rounds=5)


def point(threads: int, batch: int, length: int, *, faster: float = 2.5, pytorch: bool = True) -> BenchPoint:
    """A place; with figures of PyTorch where `pytorch`."""
    own = BenchPoint(
        threads=threads, batch=batch, length=length, prefill_seconds=spread(0.1234 / faster), tokens_per_second=spread(12345 * faster)
    )
    if not pytorch:
        return own
    return own.model_copy(
        update={
            "pytorch_prefill_seconds": spread(0.1234), "pytorch_tokens_per_second": spread(12345), "prefill_over_pytorch": spread(faster),
            "speed_over_pytorch": spread(faster),
        }
    )  # fmt: skip


def variant(name: str, *, pytorch: bool = True) -> BenchedVariant:
    """One that was measured everywhere but at one place."""
    places = [(threads, batch, length) for threads in (1, 16) for batch in (1, 64) for length in (16, 4096)]
    left_out = BenchPoint(threads=16, batch=64, length=8192, problem="The model has 4096 positions.")
    starts = tuple(BenchStart(threads=one, start_seconds=7.25, load_seconds=1.75, peak_rss_bytes=1234 << 20) for one in (1, 16))
    points = (*(point(*place, pytorch=pytorch) for place in places), left_out)
    return BenchedVariant(variant=name, size_bytes=987 << 20, starts=starts, points=points)


BENCH = Bench(
    folder="/srv/exports/a-run-with-a-long-name-of-a-person/step-500", export_id="run-500-0123456789ab", run="run", step=500,
    created="2026-11-23T08:00:00+00:00", kind="causal", task="text-generation", lengths=(16, 4096, 8192), batches=(1, 64), threads=(1, 16),
    tokens=32, rounds=5, limit_seconds=300.0, seconds=301.5, no_pytorch=None,
    cut=("onnx-int8-weight with 16 threads: 3 of 5 rounds were made.",), notes=("pytorch-adapter was left out: it runs over its base.",),
    variants=(
        variant("pytorch", pytorch=False), variant("onnx-int8-weight"),
        BenchedVariant(variant="onnx", size_bytes=1, fault=SENTENCE, code="worker-lost"),
    ),
    machine=BenchMachine(
        cpu="A processor with a long name @ 2.50GHz", features=("avx2",), architecture="x86_64", logical_cores=16, usable_cores=8,
        memory_bytes=1 << 36, load=1.25, kernel="Linux 6.1",
    ),
    versions={"ckptd": "1.0.0", "onnxruntime": "1.22.0"},
)  # fmt: skip
