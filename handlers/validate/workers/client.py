"""The stage's side of a worker: start it, send requests, find out why it ended, stop it.

Used by stages that run a model. A worker never outlives its `with` block; a request that gets no answer in its time ends the worker. Every
failure of a worker is a `WorkerFailed`; the caller decides which verdict it affects.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from daemon.contract.faults.fault_codes import Code, FaultCode, code_of
from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.messages import ChildLimits, StageContext
from daemon.contract.values import Json
from handlers.child import process, warm
from handlers.child.progress import Interrupted
from handlers.toolchains import use
from handlers.validate.engines import registry
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.workers import worker
from handlers.validate.workers.protocol import A, Failure, Load, Loaded, Request

MODULE = "handlers.validate.workers.worker"
LOAD_SECONDS = 1800.0
"""For a request that reads a whole model."""
REQUEST_SECONDS = 600.0
"""For any other."""
TOKEN_SECONDS = 20.0
"""Added for every token of a request: slow enough for a large model on a box that is busy training."""
END_SECONDS = 10.0
STDERR_LIMIT = 4000
RETRY = "run `ckptd queue retry` on the job; if it fails again, read the attempt's log"


class WorkerFailed(Exception):
    """A worker that could not do what it was asked."""

    def __init__(
        self,
        cause: str,
        remedy: str,
        details: str | None = None,
        *,
        code: Code = FaultCode.WORKER_LOST,
        transient: bool = False,
        of_precision: bool = False,
    ) -> None:
        super().__init__(cause)
        self.code = code
        self.cause = cause
        """Why, as a clause that can follow a colon."""
        self.remedy = remedy
        self.details = details
        self.transient = transient
        """Killed, hung or short of memory: the same may succeed later."""
        self.of_precision = of_precision
        """What it computed left the range of its numbers: a less quantized form may not."""


class WorkerRefused(WorkerFailed):
    """What a worker itself says that it can't do: it lives, and may be asked for something else."""


class EngineWorker:
    """One engine in a child process; it takes `Load` first, then the other requests of `protocol`."""

    def __init__(
        self, name: str, spec: EngineSpec, folder: Path, limits: ChildLimits, *, toolchain: Path | None = None, python: str = ""
    ) -> None:
        """Start it with the Python of the toolchain in `toolchain`, by default with that of this stage, or with `python`, where this stage
        runs in a toolchain and that is the one of the main environment. `folder` is for its files."""
        toolchain = toolchain or (None if python else use.own())
        self.name = name
        self.folder = spec.folder
        self._buffer = b""
        self._loaded: Loaded | None = None
        device = limits.device if spec.engine in catalog().on_gpu else "cpu"
        job = {
            "spec": spec.model_dump(),
            "limits": limits.model_copy(update={"parent_pid": os.getpid(), "device": device}).model_dump(),
            "temporary": str(folder),
            "formats": [entry.model_dump() for entry in catalog().entries],
        }
        spec_file = folder / f"worker-{name}.json"
        spec_file.write_text(json.dumps(job), encoding="utf-8")
        self._stderr = folder / f"worker-{name}.log"
        with open(self._stderr, "wb") as errors:
            # One that runs without PyTorch must not have it in memory, as in its users' programs.
            if toolchain is None and warm.is_forked() and registry.in_pytorch(spec.engine) == ("torch" in sys.modules):
                self._process: subprocess.Popen[bytes] | warm.Forked = warm.fork(lambda: worker.main(str(spec_file)), errors.fileno())
                return
            self._process = subprocess.Popen(
                use.command(toolchain, MODULE, str(spec_file), python=python),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=use.environment(toolchain),
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def load(self) -> Loaded:
        """Let the worker load its model, once; give what the engine says about itself."""
        if self._loaded is None:
            self._loaded = self.ask(Load())
        return self._loaded

    def ask(self, request: Request[A], *, limit: float | None = None) -> A:
        """Give the answer to one request. `limit` is in seconds; by default that of loading or of any other, which grows with its tokens.

        Raises WorkerRefused when the worker reports an error, WorkerFailed when it dies or gives no answer in time; Interrupted when it
        was ended together with the stage.
        """
        usual = LOAD_SECONDS if request.reads_model else REQUEST_SECONDS
        seconds = usual + TOKEN_SECONDS * request.work_tokens if limit is None else limit
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request.line).encode() + b"\n")
            self._process.stdin.flush()
        return answer_in(json.loads(self._line(seconds, request.command)), request)

    def _line(self, seconds: float, command: str) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self._process.kill()
                cause = f"it gave no answer to `{command}` within {seconds:.0f} s and was ended"
                remedy = "give the export more threads or a less busy machine, then retry the job"
                raise WorkerFailed(cause, remedy, self._stderr_end(), transient=True)
            block = os.read(descriptor, 1 << 16)
            if not block:
                raise self._died()
            self._buffer += block
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _died(self) -> WorkerFailed:
        code = self._process.wait()
        if code == -signal.SIGTERM and process.told_to_stop():
            raise Interrupted  # no verdict about the artifact: the whole stage is being ended
        end = self._stderr_end()
        last = next((line.strip() for line in reversed(end.splitlines()) if line.strip()), "")
        said = f"; it last said: {last[:300]}" if last else ""
        if code == -signal.SIGKILL:
            cause = f"its process was killed by SIGKILL, which the kernel does when memory runs out{said}"
            return WorkerFailed(cause, "free memory or raise limits.memory_fraction, then retry the job", end, transient=True)
        if code < 0:
            cause = f"its process was ended by {signal.Signals(-code).name}{said}"
            return WorkerFailed(cause, "retry the job; if it crashes again, try another release of the runtime", end, transient=True)
        return WorkerFailed(f"its process ended with code {code}{said}", RETRY, end)

    def _stderr_end(self) -> str:
        return self._stderr.read_bytes()[-STDERR_LIMIT:].decode(errors="replace")

    def close(self) -> None:
        """End the worker, gently first; safe to call again."""
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        try:
            self._process.wait(END_SECONDS if self._process.returncode is None else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> EngineWorker:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self._process.kill()
        self.close()


def toolchain_of(context: StageContext, name: str) -> Path | None:
    """Give the folder of a toolchain in whose Python a worker is to run; None for "". Raises WorkerFailed where it is not installed."""
    place = use.find(context, name) if name else None
    if name and place is None:
        install = f"`ckptd toolchain install {name}`"
        cause = f"the toolchain {name} is not installed ({install} installs it)"
        raise WorkerFailed(cause, f"run {install}", code=FaultCode.TOOLCHAIN_MISSING)
    return place


def answer_in(line: Json, request: Request[A]) -> A:
    """Give what a worker answered to `request`. Raises WorkerRefused where that is an error."""
    if "error" not in line:
        return request.answer_of(line)
    failure = Failure.model_validate(line["error"])
    memory = failure.code == FaultCode.ENGINE and ("alloc" in failure.cause.lower() or "MemoryError" in failure.cause)
    raise WorkerRefused(
        failure.cause, failure.remedy or RETRY, failure.details, code=code_of(failure.code), transient=failure.transient or memory
    )
