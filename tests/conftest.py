"""Fixtures that several behaviours share."""

from __future__ import annotations

import ctypes
import functools
import gc
import logging
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog

from daemon.config.sources import given_on_command_line
from daemon.journal.journal import Journal
from daemon.running.workers import containment
from tests import marian, models
from tests.hanging import pytest_configure as pytest_configure
from tests.service import Service, making
from tests.sharing import shared

os.environ["HF_HUB_OFFLINE"] = "1"
# Thousands of processes are started here, and each would compile all of our modules again where the environment says so, as many images of
# containers do: a third of what a command costs. The same is true of the tests themselves, which pytest rewrites.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Most people's Python keeps what it could not write, and tries again at its end.
os.environ.pop("PYTHONUNBUFFERED", None)
sys.dont_write_bytecode = False
# Graphs are optimized in tests/onnx/optimize/test_optimize*.py and in the demo; elsewhere it would only take its seconds at every export.
os.environ["CKPTD_ONNX__OPTIMIZE"] = "none"
# Tests read English; what speaks Chinese says so (tests/words, tests/cli/test_chinese*.py).
os.environ["LANGUAGE"] = "en"
# At the lowest priority a child waits for whatever else the box does, and a test for the child; tests/workers/test_priority.py has that.
os.environ["CKPTD_LIMITS__PRIORITY"] = "normal"
# As in a child: threads of OpenMP that spin while they wait take the cores of others; a small training cost seven times as much.
os.environ["OMP_WAIT_POLICY"], os.environ["GOMP_SPINCOUNT"] = "PASSIVE", "1000"
# Several processes share the cores already, and a second thread costs more than it spares where models are this small: OpenBLAS's looks
# for milliseconds whether numpy has more for it, fifteen times what the product took.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
# What the toys of the tests read; children get no variable that is not known or named.
os.environ["CKPTD_LIMITS__PASS_ENVIRONMENT"] = (
    "TOY_SECONDS,TOY_HOLD,TOY_LOG,TOY_REJECT,TOY_INEXACT,TOY_BROKEN,TOY_TEXT,TOY_PERPLEXITY,TOY_SWAP,CLOCK_SHIFT"
)
# What a test's own process logs: structlog draws a table of variables for each exception otherwise, which takes a second and more.
structlog.configure([structlog.processors.add_log_level, structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)])

# The same examples at every run, so that a failure is the change's; HYPOTHESIS=random looks for others. No example has a time limit: boxes
# are busy.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.register_profile("random", derandomize=False, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS", "same"))

BEGAN = time.monotonic()
gc.disable()  # until all tests are there: modules and tests stay, and to look through them again and again takes a tenth of that time

LIBC = ctypes.CDLL(None)
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
ONLY_SLOW = re.compile(r"^pytestmark = .*pytest\.mark\.slow", re.MULTILINE)
LONGEST = (
    "runner/test_two_machines.py", "deliver/contract/test_contract.py", "recheck/test_deep.py", "cluster/test_contract.py",
    "recheck/test_foreign_code.py", "validate/test_sound_artifacts.py", "runner/test_resuming.py", "cli/test_deliver.py",
    "deliver/queue/test_queue.py", "deliver/queue/test_daemon.py", "cli/test_chinese.py", "onnx/optimize/test_cached_attention.py",
    "live/test_training_exported_live.py", "cli/test_every_verb.py", "deliver/hub/test_stops.py", "layers/test_hanging.py",
    "validate/test_twins.py", "onnx/templates/test_templates.py", "words/test_recorded.py", "workers/test_remains.py",
    "onnx/optimize/test_shortcuts.py", "museum/test_exhibits.py", "static_programs/test_programs.py", "faults/test_publish.py",
    "validate/test_damage_files.py", "validate/test_seq2seq.py", "workers/test_warm.py",
)  # fmt: skip
"""Files that take longest, half a minute and more, the longest first. Of several processes none should begin with one of these when the
others end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make test-changed` ends in time for an editor's pause."""
    parser.addoption("--seconds", type=float, default=0.0, help="begin no test after so many seconds; the files named first come first")


def _is_quick(config: pytest.Config) -> bool:
    """Whether slow tests are left out, of whole folders: of a file that is named it is said how many were."""
    return config.option.markexpr == "not slow" and all((config.invocation_params.dir / argument).is_dir() for argument in config.args)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Spare each of the processes the import of files with slow tests alone."""
    if not collection_path.name.startswith("test_") or not _is_quick(config):
        return None
    return ONLY_SLOW.search(collection_path.read_text("utf-8")) is not None or None


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> list[pytest.Item] | None:
    """Make no items of a slow function that is left out: a third of all items, in each of the processes."""
    marks = getattr(obj, "pytestmark", ()) if name.startswith("test_") and _is_quick(collector.config) else ()
    return [] if any(mark.name == "slow" for mark in marks) else None


def _cached(owner: Any, name: str) -> None:
    """Let a function of a library remember what it gave."""
    function = getattr(owner, name, None)
    if function is not None and not hasattr(function, "cache_info"):
        setattr(owner, name, functools.cache(function))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out what would begin too late; spare each export to ONNX a third of its time: torch describes the same functions anew."""
    _cached(sys.modules.get("torch.onnx._internal.exporter._schemas"), "op_signature_from_function")
    _cached(sys.modules.get("torch._export.utils"), "_materialize_cpp_cia_ops")
    traced: Any = getattr(sys.modules.get("onnxscript._internal.values"), "TracedOnnxFunction", None)
    if traced is not None and not hasattr(traced.function_ir.fget, "cache_info"):
        traced.function_ir = property(functools.cache(traced.function_ir.fget))
    if (seconds := item.config.getoption("--seconds")) and time.monotonic() > BEGAN + seconds:
        pytest.skip(f"not run: {seconds:g} s are over")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take longest; `make test` has xdist keep the order."""
    if config.getoption("--seconds"):
        return
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_collection_finish() -> None:
    """Spare the garbage collector the tests themselves, and the graphs of the libraries most of its rounds: a tenth of the time in here."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.fixture(autouse=True)
def own_process() -> Iterator[None]:
    """What a test changes in this process ends with it: what a verb sets up for its logs, what `--set` gave, and that orphans are adopted.

    A test that starts attempts makes this process adopt orphans, as the daemon does; the next one's would stay as its zombies. No line is
    broken, which would depend on the terminal and on the length of a temporary path; tests of widths set theirs. That is for the test
    alone: pytest itself prints by the variable. All in a single fixture: each costs more than many a test does.
    """
    configured, root, columns = structlog.get_config(), logging.getLogger(), os.environ.get("COLUMNS")
    handlers, adopts, known = root.handlers[:], ctypes.c_int(), (containment._adopting, containment._root)
    LIBC.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(adopts), 0, 0, 0)
    os.environ["COLUMNS"] = "4000"
    yield
    if columns is None:
        os.environ.pop("COLUMNS", None)
    else:
        os.environ["COLUMNS"] = columns
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, adopts.value, 0, 0, 0)
    containment._adopting, containment._root = known
    given_on_command_line.clear()
    structlog.configure(**configured)
    for handler in set(root.handlers) - set(handlers):
        handler.close()
    root.handlers[:] = handlers


@pytest.fixture(scope="session", autouse=True)
def own_runtime_directory(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Daemons of the tests say that they run where no user's own verbs look, and those of the tests see them alone."""
    os.environ["XDG_RUNTIME_DIR"] = str(tmp_path_factory.mktemp("runtime"))
    os.environ["_CKPTD_RUN"] = str(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="session")
def pico_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a pico Qwen3 base in bf16, tokenizer and chat template included. Read only."""
    return shared(tmp_path_factory, "pico-base", lambda folder: models.make_base(folder / "pico"))


@pytest.fixture(scope="session")
def pico_run(pico_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run with `checkpoint-2` and `checkpoint-4`, LoRA on four linear kinds, made by Trainer. Read only."""
    return shared(tmp_path_factory, "pico-run", lambda folder: models.train_run(pico_base, folder / "pico-run"))


@pytest.fixture(scope="session")
def pico_checkpoint(pico_run: Path) -> Path:
    """`checkpoint-4` of the pico run. Read only."""
    return pico_run / "checkpoint-4"


@pytest.fixture(scope="session")
def marian_model(tmp_path_factory: pytest.TempPathFactory) -> marian.Marian:
    """A translator with SentencePiece models instead of a tokenizer.json, and an adapter of it. Read only."""
    return shared(tmp_path_factory, "marian", marian.make)


@pytest.fixture(scope="session")
def marian_export(marian_model: marian.Marian, tmp_path_factory: pytest.TempPathFactory) -> marian.Translated:
    """That translator merged and as ONNX. Read only."""
    return shared(tmp_path_factory, "marian-export", lambda folder: marian.export(marian_model, folder))


@pytest.fixture
def make_service(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Makes daemons in child processes and ends whatever is left of them."""
    yield from making(Service, tmp_path)


@pytest.fixture
def service_manager() -> Iterator[tuple[socket.socket, str]]:
    """What a service manager is to a daemon: the socket that takes its messages, and the address for $NOTIFY_SOCKET.

    Such an address has at most 107 bytes, which a temporary folder of a test may exceed.
    """
    with tempfile.TemporaryDirectory(prefix="ckptd-") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        address = os.path.join(folder, "notify")
        listening.bind(address)
        yield listening, address


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the fixture `journal` keeps its file."""
    return tmp_path / "journal.sqlite3"


@pytest.fixture
def journal(file: Path) -> Iterator[Journal]:
    """A fresh journal."""
    one = Journal(file)
    yield one
    one.close()
