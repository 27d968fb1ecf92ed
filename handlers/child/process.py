"""How a child process behaves: it ends with its parent, runs at low priority, and is the first that the kernel kills when memory runs out.

Called by `handlers/__main__.py` and by the validation's worker processes, before heavy imports.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib.metadata
import io
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TextIO, TypeVar

from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.messages import ChildLimits, StageContext
from daemon.contract.jobs.processes import large_pages
from daemon.contract.parent import end_with_parent
from handlers.child.progress import StopFlag

EXIT_OTHER_PARENT = 75
_PR_SET_THP_DISABLE, _PR_GET_THP_DISABLE = 41, 42
_COLLECT_AFTER = (100_000, 10, 20)
"""Objects, and rounds of the younger generations, after which Python's collector looks for garbage.

Its defaults look after every 700 objects. The libraries and what an exporter builds are millions that stay, and nearly all of what goes is
freed without the collector: a fifth of an export's time was spent in looking. What does hold large memory in cycles is collected by hand.
"""
_NO_CORE = 1
"""Bytes of a core file: less than any holds, so none is written. Unlike 0 it also holds where cores go to a program by a pipe."""
_LIBRARIES = (
    "torch", "transformers", "peft", "safetensors", "tokenizers", "sentencepiece", "onnx", "onnxruntime", "onnxruntime_genai", "onnxscript",
    "onnxslim", "optimum", "numpy",
)  # fmt: skip
"""Modules, named as their distributions, that several formats load."""

_ROOM = 140_000
"""Values that a frame says it holds, of 8 bytes each: a little more than a mebibyte, so that its piece has two. Pages that nobody writes to
take no memory."""

Result = TypeVar("Result")

_stop = StopFlag()


def bind(limits: ChildLimits) -> None:
    """Tie this process to its parent, take the scheduling class that `limits` names, and collect garbage less often.

    The kernel kills the child when the parent's spawning thread ends. Between fork and this call nothing does,
    so a child that already has another parent ends itself.
    """
    end_with_parent()
    if limits.parent_pid and os.getppid() != limits.parent_pid:
        os._exit(EXIT_OTHER_PARENT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the daemon, which ends its children in order
    gc.set_threshold(*_COLLECT_AFTER)
    faulthandler.enable()  # a crash of a library leaves the Python stack in the attempt's log
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (_NO_CORE, _NO_CORE))
    with contextlib.suppress(OSError):
        os.nice(max(0, limits.nice - os.nice(0)))
    if limits.nice and os.getsid(0) == os.getpid():  # the group is the whole session's: never that of somebody's shell
        # A session of its own is a scheduling group of its own (sched(7), autogroup), and the groups share the processor by the
        # groups' nice values alone: without this line an idle child takes half of what a busy training would have.
        with contextlib.suppress(OSError), open("/proc/self/autogroup", "w", encoding="utf-8") as stream:
            stream.write(str(limits.nice))
    if limits.idle:
        with contextlib.suppress(OSError, AttributeError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        with contextlib.suppress(Exception):
            import psutil

            psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="utf-8") as stream:
        stream.write(str(limits.oom_score_adj))


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Collect nothing meanwhile, and never what is there in the end: libraries stay, and to look through them takes time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def small_pages() -> Iterator[None]:
    """Take memory in pages of 4 KiB meanwhile, whatever its allocator asks for: where much is asked for and hardly any is written to."""
    library = ctypes.CDLL(None)
    before = library.prctl(_PR_GET_THP_DISABLE, 0, 0, 0, 0)
    library.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    try:
        yield
    finally:
        library.prctl(_PR_SET_THP_DISABLE, max(0, before), 0, 0, 0)


def with_room(call: Callable[[], Result]) -> Result:
    """Call a function with a piece of Python's stack of its own, in which all further calls find room.

    CPython keeps the frames of calls in pieces of 16 KiB. Where calls in a loop cross the end of one, each of them has a new piece mapped
    and unmapped again: twenty thousand times in an export. A frame that asks for more gets a piece of twice its size, and shares the rest.
    """
    return call()


with_room.__code__ = with_room.__code__.replace(co_stacksize=_ROOM)


def stop_at_safe_points() -> StopFlag:
    """Let a first SIGTERM only ask the stage to stop from now on, so that no call into a library is broken; a second one ends it."""

    def ask(number: int, frame: FrameType | None) -> None:
        _stop.asked = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, ask)
    return _stop


def told_to_stop() -> bool:
    """Return whether the stage of this process was asked to stop; its own processes were asked at the same time, and have ended."""
    return _stop.asked


def take_standard_output() -> TextIO:
    """Keep the pipe to the daemon for progress alone; whatever libraries print goes where stderr goes."""
    private = os.dup(sys.stdout.fileno())
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return io.TextIOWrapper(os.fdopen(private, "wb"), encoding="utf-8", line_buffering=True)


_ROUNDING = (
    "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE",
)  # fmt: skip
"""Variables by which libraries compute products of fp32 in bf16 or TF32 where the processor can."""


_KEPT_KERNELS = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
"""Variables that say how many kernels torch and oneDNN keep, one for each number of rows and shape of weights, of half a megabyte each. By
default it is 1024: a model that reads a few hundred texts of unlike lengths would leave a gigabyte behind."""
_MOST_KERNELS = 64
_SPINS = 3_000
"""Times that a thread of OpenMP looks whether it can go on before it sleeps."""


def set_environment(limits: ChildLimits, temporary: str) -> None:
    """Bound the threads of every numeric library, keep the hub out, and put temporary files where the daemon cleans."""
    if kept := large_pages.removed(os.environ.pop(large_pages.NAME, "")):
        os.environ[large_pages.NAME] = kept
    threads = str(limits.threads)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ[name] = threads
    for name in _KEPT_KERNELS:
        os.environ.setdefault(name, str(_MOST_KERNELS))
    for name in _ROUNDING:
        os.environ.pop(name, None)  # fp32 is computed in fp32, whatever the box's owner allows the training
    # Threads that spin while they wait would take cores from the training. For the tenth of a millisecond in which another one ends its
    # part they do: to sleep and be woken takes as long as many of a model's products, and two threads were slower than one.
    os.environ["OMP_WAIT_POLICY"], os.environ["GOMP_SPINCOUNT"] = "PASSIVE", str(_SPINS)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"
    if limits.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["TMPDIR"] = temporary
    tempfile.tempdir = temporary
    if (torch := sys.modules.get("torch")) is not None:  # loaded before, it has read the variables already
        torch.set_num_threads(limits.threads)


def prepare(context: StageContext) -> None:
    """Environment and folders of one attempt."""
    os.makedirs(context.staging, exist_ok=True)
    os.makedirs(context.temporary, exist_ok=True)
    set_environment(context.limits, context.temporary)


def peak_rss() -> int:
    """Largest resident set of this process so far, in bytes.

    VmHWM of proc(5), since Linux carries ru_maxrss of the parent across fork and exec.
    """
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def cpu_seconds() -> float:
    """Processor time of this process and of those that it has started and waited for, user and system, in seconds; getrusage(2)."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def loaded_versions() -> dict[str, str]:
    """Versions of the libraries that this process has imported."""
    versions = {"python": sys.version.split()[0]}
    for name, distribution in {**{name: name for name in _LIBRARIES}, **catalog().modules}.items():
        if name in sys.modules:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                versions[distribution] = importlib.metadata.version(distribution)
    return versions
