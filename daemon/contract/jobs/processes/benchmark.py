"""What `ckptd bench` asks of a child, and what the child measures. Pure.

The request is part of the job file (`StageContext.bench`). The child writes `Measurements` into `MEASURED` in its staging folder after each
measurement, so that what is finished counts when it is killed in the next one.
"""

from __future__ import annotations

from pydantic import Field

from daemon.contract.faults.errors import Fault
from daemon.contract.values import Frozen

STAGE = "bench"
ENTRY = "handlers.validate.bench:run"
PAGE_STAGE = "bench-page"
PAGE_ENTRY = "handlers.report.pages.bench_page:run"
"""It reads the `Bench` in the file `PAGE_INPUT` of its input `bench`, and writes `PAGE`."""
MEASURED = "measured.json"
PAGE_INPUT = "bench.json"
PAGE = "bench.html"
PEER = ""
"""What stands for the merged model in PyTorch in place of a variant."""


class Unit(Frozen):
    """One variant with one number of threads: what is measured as a whole, or not at all."""

    variant: str
    folder: str
    threads: int
    alone: bool = False
    """Without PyTorch beside it: both together did not fit into the memory."""


class BenchRequest(Frozen):
    """What is to be measured."""

    units: tuple[Unit, ...]
    """In order. PyTorch is loaded once for those that follow each other with the same number of threads."""
    peer: str | None
    """Folder of the merged model, to run in PyTorch in turns with each variant."""
    lengths: tuple[int, ...]
    """Tokens of a prompt, a source or a text."""
    batches: tuple[int, ...]
    """Rows that run together."""
    tokens: int
    """Tokens that are decoded for each row."""
    rounds: int
    seconds: float
    """When no new round is begun any more, counted from the start."""


class Spread(Frozen):
    """One figure over the rounds."""

    median: float
    """The median."""
    low: float
    """The first quartile: a quarter of the rounds was below."""
    high: float
    """The third quartile: a quarter of the rounds was above."""
    rounds: int
    """Rounds that it was measured in."""


class BenchPoint(Frozen):
    """What was measured with one number of threads, rows and tokens. A figure is None where it was not measured."""

    threads: int
    """Threads of the runtime."""
    batch: int
    """Rows that ran together."""
    length: int
    """Tokens of each row."""
    prefill_seconds: Spread | None = None
    """Time to the first token: the pass over the whole batch. For an encoder-decoder the encoding and the first token; for an encoder
    all of its work."""
    tokens_per_second: Spread | None = None
    """Tokens decoded per second after that, those of all rows; for an encoder, tokens read per second."""
    pytorch_prefill_seconds: Spread | None = None
    """The same of the merged model in PyTorch, in turns with it."""
    pytorch_tokens_per_second: Spread | None = None
    """The same of the merged model in PyTorch, in turns with it."""
    prefill_over_pytorch: Spread | None = None
    """Speed of the first pass divided by PyTorch's, from the pairs of turns."""
    speed_over_pytorch: Spread | None = None
    """Speed of the work after it divided by PyTorch's, from the pairs of turns."""
    problem: str | None = None
    """Why it was not measured, as a sentence."""


class BenchStart(Frozen):
    """The model's process with one number of threads."""

    threads: int
    """Threads of the runtime."""
    start_seconds: float
    """From the start of a new process to its first answer."""
    load_seconds: float
    """The part of it in which the model was loaded."""
    peak_rss_bytes: int
    """Peak memory of the process over all measurements, with interpreter and libraries."""


class Measured(Frozen):
    """What came of one unit."""

    variant: str
    threads: int
    start: BenchStart | None = None
    points: tuple[BenchPoint, ...] = ()
    fault: Fault | None = None
    """Why nothing, or not all of it, could be measured."""


class Measurements(Frozen):
    """What a child has measured so far."""

    done: tuple[Measured, ...] = ()
    current: tuple[str, int] | None = None
    """Variant (or `PEER`) and threads of what it works on now."""
    partial: Measured | None = None
    """What it has measured of that so far."""
    kind: str | None = None
    """How the models run: "causal", "seq2seq" or "encoder"."""
    task: str | None = None
    peer_problem: str | None = None
    """Why PyTorch could not be compared with, or not to the end, as a sentence."""
    cut: tuple[str, ...] = ()
    """What the limit of time left out, as sentences."""
    versions: dict[str, str] = Field(default_factory=dict)


class BenchedVariant(Frozen):
    """One variant of the export."""

    variant: str
    """Its name."""
    size_bytes: int
    """Size of its files."""
    starts: tuple[BenchStart, ...] = ()
    """Its process, for each number of threads."""
    points: tuple[BenchPoint, ...] = ()
    """Its speed."""
    fault: str | None = None
    """Why it could not be measured, or not completely, and what to do, as a sentence."""
    code: str | None = None
    """The fault's code."""

    @property
    def measured(self) -> bool:
        """Whether there is any figure of its speed."""
        return any(point.tokens_per_second is not None for point in self.points)


class BenchMachine(Frozen):
    """The machine on which it was measured."""

    cpu: str | None
    """Model name of the processor."""
    features: tuple[str, ...]
    """Instruction sets by which libraries choose how they compute."""
    architecture: str
    """Instruction set, for example `x86_64`."""
    logical_cores: int | None
    """Hardware threads."""
    usable_cores: int
    """Those of them that this process may use."""
    memory_bytes: int
    """Memory of the whole machine."""
    load: float
    """Processes that wanted to run when it began: the mean of the last minute."""
    kernel: str
    """Operating system's kernel and release."""


class Bench(Frozen):
    """The speed of an export's variants on this machine."""

    folder: str
    """The export's folder."""
    export_id: str | None
    """The export's id."""
    run: str | None
    """Name of the run."""
    step: int | None
    """Step of the training."""
    created: str
    """When the measurement began; ISO 8601 in UTC."""
    kind: str | None
    """How the models run: `causal` (they decode), `seq2seq` (they encode, then decode) or `encoder` (one pass)."""
    task: str | None
    """What they are for, as model hubs name it."""
    lengths: tuple[int, ...]
    """Tokens of a row that were asked for."""
    batches: tuple[int, ...]
    """Rows that were asked for."""
    threads: tuple[int, ...]
    """Numbers of threads that were asked for."""
    tokens: int
    """Tokens decoded for each row."""
    rounds: int
    """Rounds that were asked for."""
    limit_seconds: float
    """The limit of the time."""
    seconds: float
    """The time that it took."""
    no_pytorch: str | None
    """Why there is no comparison with PyTorch, as a sentence."""
    cut: tuple[str, ...]
    """What the limit of time left out, as sentences."""
    notes: tuple[str, ...]
    """Variants that were left out, or measured in another way, and why, as sentences."""
    variants: tuple[BenchedVariant, ...]
    """The variants, in the order of the formats."""
    machine: BenchMachine
    """The machine."""
    versions: dict[str, str]
    """Versions of the libraries that the models ran with, and of ckptd."""
