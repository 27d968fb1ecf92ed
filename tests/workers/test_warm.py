"""Attempts that are forked from a process with PyTorch loaded; the other tests here start children in both ways."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from daemon.contract.jobs.messages import ChildLimits, Outcome
from daemon.contract.jobs.plan import all_specs
from daemon.running.attempts.executor import Order
from daemon.running.workers import warm
from daemon.running.workers.executor import LocalExecutor
from daemon.running.workers.worker import Worker, _job_file, environment_of
from daemon.system.processes import procfs
from tests.workers.conftest import make_ready
from tests.workers.helpers import BOUNDS, SCRIPT, fault_of, make_context, until, wait


def environment() -> dict[str, str]:
    return environment_of(BOUNDS)


@pytest.fixture
def quick(adopting: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What attempts are forked from loads nothing."""
    monkeypatch.setattr(warm, "HANDLERS", (sys.executable, str(SCRIPT)))
    yield
    warm.end_all()


def make(folder: Path, case: str, name: str = "attempt", warm_seconds: float = 60, **limits: object) -> Worker:
    (folder / name).mkdir()
    context = make_context(folder, entry=case, **limits).model_copy(update={"result": str(folder / name / "result.json")})
    bounds = BOUNDS.__class__(**{**vars(BOUNDS), "warm": warm_seconds})
    return Worker(Order(context, folder / name, bounds))


def ready(**limits: object) -> warm.Loaded:
    make_ready(make_context(Path("/nowhere"), **limits), environment())
    return warm._all[0]


def ended(pid: int, seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while (known := procfs.entry(pid)) is not None and not known.dead and time.monotonic() < end:
        time.sleep(0.01)
    return known is None or known.dead


def test_the_first_attempt_is_started_the_next_ones_are_forked_one_after_the_other(adopting: None, tmp_path: Path) -> None:
    """With the real entry and the real libraries."""
    try:
        first = make(tmp_path, "", "first")
        assert not isinstance(first.process, warm.Forked)
        assert wait(first).outcome is Outcome.PERMANENT, "there is no checkpoint"
        source, light = warm._all
        assert (source.kind.libraries, light.kind.libraries) == ("torch", "light")
        end = time.monotonic() + 120
        while not source.ready:
            assert time.monotonic() < end
            time.sleep(0.05)
        seen = set()
        for name in ("second", "third"):
            worker = make(tmp_path, "", name)
            assert isinstance(worker.process, warm.Forked) and procfs.entry(worker.process.pid).parent == source.process.pid
            result = wait(worker)
            assert result.outcome is Outcome.PERMANENT and {"torch", "transformers"} <= set(_loaded(source.process.pid))
            assert ended(worker.process.pid)
            seen.add(worker.process.pid)
        assert len(seen) == 2 and warm._all == [source, light] and not source.attempts
    finally:
        warm.end_all()
    assert ended(source.process.pid)


def _loaded(pid: int) -> list[str]:
    text = Path(f"/proc/{pid}/maps").read_text()
    return [name for name, part in (("torch", "libtorch"), ("transformers", "tokenizers")) if part in text]


def test_an_attempt_ends_with_the_process_that_it_was_forked_from(quick: None, tmp_path: Path) -> None:
    source = ready()
    worker = make(tmp_path, "beats")
    until(worker, lambda: worker._heard > worker.started)
    os.kill(source.process.pid, signal.SIGKILL)
    assert fault_of(wait(worker)).code == "killed"
    assert ended(worker.process.pid)
    again = make(tmp_path, "beats", "again")
    assert not isinstance(again.process, warm.Forked), "the dead one is not asked"
    again.hurry()
    wait(again)


PROGRAM = """
import sys, time
from pathlib import Path
from daemon.running.workers import warm
from tests.workers import test_warm
warm.HANDLERS = (sys.executable, sys.argv[2])
source = test_warm.ready()
worker = test_warm.make(Path(sys.argv[1]), "beats")
assert isinstance(worker.process, warm.Forked)
print(source.process.pid, worker.process.pid, flush=True)
time.sleep(600)
"""


def test_both_end_with_the_daemon(tmp_path: Path) -> None:  # R6.5
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path), str(SCRIPT)], stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        pids = [int(word) for word in daemon.stdout.readline().split()]
        assert len(pids) == 2
        daemon.kill()
        assert all(ended(pid) for pid in pids)


def test_one_that_nobody_needs_ends_by_itself(quick: None) -> None:
    kind = warm.kind_of("torch", make_context(Path("/nowhere")).limits, environment())
    warm.get_ready(kind, 0.2, 0)
    assert ended(pid := warm._all[0].process.pid)
    warm.reap()
    assert not Path(f"/proc/{pid}").exists(), "no zombie of it is left"
    assert warm.take(kind) is None
    warm.get_ready(kind, 60, 0)
    assert len(warm._all) == 1 and warm._all[0].process.poll() is None, "the next one takes its place"


def test_attempts_with_other_limits_or_packages_are_not_forked_from_it(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ready()
    kind = source.kind
    assert warm.take(warm.kind_of("torch", ChildLimits(**{**kind.limits.model_dump(), "nice": 7}), environment())) is None
    assert warm.take(warm.kind_of("torch", kind.limits, {**environment(), "HF_HOME": "/elsewhere"})) is None
    monkeypatch.setattr(warm, "_installed", lambda: frozenset({("a.dist-info", 0)}))
    assert warm.take(warm.kind_of("torch", kind.limits, environment())) is None, "after an update of the packages"
    monkeypatch.undo()
    assert warm.take(kind) is source


def test_attempts_at_once_are_forked_from_one_and_each_ends_alone(quick: None, tmp_path: Path) -> None:
    """With unlike numbers of threads too; ended in another order than they began in, one by itself, one killed, one asked."""
    source = ready()
    before = len(os.listdir(f"/proc/{source.process.pid}/fd"))
    workers = [make(tmp_path, "beats", f"{number}", threads=1 + number) for number in range(4)]
    assert warm._all[0] is source and source.attempts == 4
    assert {procfs.entry(one.process.pid).parent for one in workers} == {source.process.pid}
    for worker in workers:
        until(worker, lambda worker=worker: worker._heard > worker.started)
    os.kill(workers[2].process.pid, signal.SIGKILL)
    assert fault_of(wait(workers[2])).code == "killed"
    last = make(tmp_path, "", "last")
    assert isinstance(last.process, warm.Forked) and wait(last).outcome is Outcome.PERMANENT
    for worker in (workers[3], workers[0]):
        worker.hurry()
        assert wait(worker).outcome is Outcome.INTERRUPTED
    assert source.attempts == 1 and all(ended(one.process.pid) for one in (workers[0], workers[2], workers[3], last))
    assert workers[1].poll() is None and not procfs.entry(workers[1].process.pid).dead
    workers[1].stop()
    wait(workers[1])
    assert not source.attempts and ended(workers[1].process.pid)
    end = time.monotonic() + 20
    while psutil.Process(source.process.pid).children():
        assert time.monotonic() < end
    assert len(os.listdir(f"/proc/{source.process.pid}/fd")) == before


def test_an_attempt_that_is_forked_too_late_does_nothing(quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same attempt is started in the ordinary way by then, and both would write into one folder. What was forked before goes on."""
    source, beside = ready(), make(tmp_path, "beats", "beside")
    until(beside, lambda: beside._heard > beside.started)
    (folder := tmp_path / "attempt").mkdir()
    context = make_context(tmp_path).model_copy(update={"result": str(folder / "result.json")})
    told = warm.order_of(_job_file(Order(context, folder, BOUNDS), source.process.pid), folder, "merge", {}, None)
    os.kill(source.process.pid, signal.SIGSTOP)
    monkeypatch.setattr(warm, "ANSWER_SECONDS", 0.2)
    with open(os.devnull, "r+b") as nothing, pytest.raises(OSError, match="does not answer"):
        source.fork(told, [nothing.fileno(), nothing.fileno()], -1)
    os.kill(source.process.pid, signal.SIGCONT)
    end, family = time.monotonic() + 20, psutil.Process(source.process.pid)
    while source._listen(0.5) or [one.pid for one in family.children()] != [beside.process.pid]:
        assert time.monotonic() < end
    assert not (folder / "result.json").exists()
    again = make(tmp_path, "beats", "again")
    assert not isinstance(again.process, warm.Forked), "it is not asked again"
    for one in (again, beside):
        one.hurry()
        assert wait(one).outcome is Outcome.INTERRUPTED
    warm.get_ready(source.kind, 60, 0)
    assert source not in warm._all and ended(source.process.pid)


def test_a_forked_attempt_computes_with_its_own_number_of_threads(adopting: None, tmp_path: Path) -> None:
    """Whatever PyTorch was told when it was loaded, in threads of Python too, whose number OpenMP keeps for each, and in its workers."""
    program = """
import os
from concurrent.futures import ThreadPoolExecutor
import torch
from daemon.contract.jobs.messages import ChildLimits
from handlers.child import process, warm

def look():
    large = torch.ones(300, 300)
    with ThreadPoolExecutor(1) as pool:
        seen = torch.get_num_threads(), pool.submit(torch.get_num_threads).result(), (large @ large).sum().item()
    print(*seen, len(os.listdir("/proc/self/task")), os.environ["OMP_NUM_THREADS"], flush=True)
    return 0

def work():
    process.set_environment(ChildLimits(threads=2), "/tmp")
    return look()

assert torch.get_num_threads() == 1
process.set_environment(ChildLimits(threads=3), "/tmp")
worker = warm.fork(work, 2)
print(worker.stdout.read().decode(), end="")
assert worker.wait(60) == 0
look()
"""
    found = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True, text=True,
    )  # fmt: skip
    worker, attempt = (line.split() for line in found.stdout.splitlines())
    assert (worker[:3], worker[4]) == (["2", "2", "27000000.0"], "2"), found.stderr
    assert (attempt[:3], attempt[4]) == (["3", "3", "27000000.0"], "3"), found.stderr
    assert int(worker[3]) > 1 and int(attempt[3]) > 2, "the threads are there"


def test_none_is_kept_where_memory_is_short_or_the_configuration_wants_none(quick: None, tmp_path: Path) -> None:
    warm.get_ready(warm.kind_of("torch", make_context(tmp_path).limits, environment()), 60, 1 << 60)
    assert warm._all == []
    assert wait(make(tmp_path, "", warm_seconds=0)).outcome is Outcome.PERMANENT
    assert warm._all == []


def test_what_runs_in_an_attempts_folder_is_found_by_it(quick: None, tmp_path: Path) -> None:
    ready()
    worker = make(tmp_path, "beats")
    until(worker, lambda: worker._heard > worker.started)
    assert LocalExecutor().at_work(tmp_path) == {worker.id: tmp_path / "attempt"}
    worker.hurry()
    wait(worker)
    assert LocalExecutor().at_work(tmp_path) == {}


def test_what_took_seconds_to_load_makes_no_room_for_what_takes_a_moment(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "MOST", 2)
    limits = [make_context(Path("/nowhere"), nice=nice).limits for nice in (1, 2, 3, 4)]
    for libraries, one in (("torch", limits[0]), ("light", limits[0]), ("light", limits[1]), ("torch", limits[2]), ("light", limits[3])):
        warm.get_ready(warm.kind_of(libraries, one, environment()), 60, 0)
    assert [(one.kind.libraries, one.kind.limits.nice) for one in warm._all] == [("torch", 1), ("torch", 3)]


def test_stages_are_forked_from_what_has_their_libraries_and_no_others(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    forked = {spec.name: warm.wanted(context.model_copy(update={"stage": spec.name})) for spec in all_specs()}
    with_torch = ("merge", "onnx", "reference", "merged", "speed", "check-pytorch-w4a16", "check-pytorch-adapter", "check-onnx-int8")
    assert {forked[name] for name in with_torch} == {"torch"}, "a check beside the model of its own weights uses PyTorch too"
    assert {forked[name] for name in ("report", "consolidate", "onnx-int8", "check-onnx")} == {"light"}


def test_what_computes_on_a_gpu_or_in_a_toolchain_or_measures_on_request_is_started(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    assert warm.wanted(context)
    for other in ({"limits": context.limits.model_copy(update={"device": "cuda"})}, {"toolchain": "optimum"}, {"stage": "bench"}):
        assert not warm.wanted(context.model_copy(update=other))


def test_what_has_the_light_libraries_has_no_torch_runs_no_thread_and_needs_what_it_is_said_to(adopting: None) -> None:
    """A library that starts a thread when it is imported could not be forked from."""
    kind = warm.kind_of("light", make_context(Path("/nowhere")).limits, environment())
    try:
        warm.get_ready(kind, 60, 0)
        end = time.monotonic() + 60
        while (source := warm.take(kind)) is None:
            assert time.monotonic() < end
            time.sleep(0.05)
        pid = source.process.pid
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert "onnxruntime" in maps and "libtorch" not in maps
        assert len(os.listdir(f"/proc/{pid}/task")) == 1
        assert psutil.Process(pid).memory_info().rss < warm.NEEDS_BYTES["light"]
    finally:
        warm.end_all()


def test_what_has_torch_has_all_that_attempts_over_a_base_import_and_runs_no_thread() -> None:
    program = """
import os, pkgutil, sys
from handlers.__main__ import LIBRARIES
for name in LIBRARIES["torch"]:
    pkgutil.resolve_name(name)
renamed = sys.modules["transformers.conversion_mapping"]._checkpoint_conversion_mapping_cache
print("peft" in sys.modules, len(os.listdir("/proc/self/task")), bool(renamed))
"""
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    said = subprocess.run([sys.executable, "-c", program], env={**os.environ, **one}, capture_output=True, text=True)
    assert said.stdout.split() == ["True", "1", "True"], said.stderr


def test_what_attempts_are_forked_from_has_built_the_models_that_each_of_them_reads_and_writes() -> None:
    program = """
import socket
from daemon.contract.jobs.messages import StageContext
from handlers.__main__ import LIBRARIES
from handlers.child.warm import _Attempts
from handlers.validate.workers.protocol import Greedy
ours, theirs = socket.socketpair()
print(StageContext.__pydantic_complete__, _Attempts(theirs, int).load(LIBRARIES["light"], ""))
print(StageContext.__pydantic_complete__, Greedy.__pydantic_complete__)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert said.stdout.split() == ["False", "True", "True", "True"], said.stderr


def test_a_package_that_comes_changes_or_goes_in_any_folder_of_pythons_path_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.syspath_prepend(str(tmp_path / "never there"))
    package = tmp_path / "site" / "npz-1.0.dist-info"
    seen = [warm._installed()]
    package.mkdir(parents=True)
    seen.append(warm._installed())
    (tmp_path / "site" / "notes.txt").touch()
    assert warm._installed() == seen[-1], "other files beside packages are none"
    os.utime(package, (1e9, 1e9))  # as another one of the same version
    seen.append(warm._installed())
    package.rename(tmp_path / "site" / "npz-1.1.dist-info")
    seen.append(warm._installed())
    shutil.rmtree(tmp_path / "site")
    seen.append(warm._installed())
    assert len(set(seen)) == 4 and seen[0] == seen[-1]


def test_an_attempt_waits_for_one_that_is_loading_and_not_for_one_that_died(quick: None, tmp_path: Path) -> None:
    executor, context = LocalExecutor(), make_context(tmp_path, entry="beats")
    bounds = BOUNDS.__class__(**{**vars(BOUNDS), "warm": 60})
    assert executor.getting_ready(context, bounds), "it is started by the question"
    (source,) = warm._all
    os.kill(source.process.pid, signal.SIGKILL)
    assert ended(source.process.pid)
    assert not executor.getting_ready(context, bounds) and warm._all == [source], "asking again does not start another one"
    worker = make(tmp_path, "beats")
    assert not isinstance(worker.process, warm.Forked)
    end = time.monotonic() + 60
    while executor.getting_ready(context, bounds):
        assert time.monotonic() < end
        time.sleep(0.02)
    forked = make(tmp_path, "beats", "second")
    assert isinstance(forked.process, warm.Forked)
    assert not executor.getting_ready(context, bounds), "what runs beside it is forked too"
    for one in (worker, forked):
        one.hurry()
        wait(one)


def test_an_attempt_without_pytorch_waits_for_what_is_loading_and_has_nothing_started(quick: None, tmp_path: Path) -> None:
    bounds = BOUNDS.__class__(**{**vars(BOUNDS), "warm": 60})
    executor, context = LocalExecutor(), make_context(tmp_path, entry="beats").model_copy(update={"stage": "onnx-int8"})
    assert not executor.getting_ready(context, bounds) and not warm._all
    warm.get_ready(warm.kind_of("light", context.limits, environment()), 60, 0)
    assert executor.getting_ready(context, bounds)
    end = time.monotonic() + 60
    while executor.getting_ready(context, bounds):
        assert time.monotonic() < end
        time.sleep(0.02)
    (source,) = warm._all
    assert source.ready


def test_no_attempt_waits_longer_than_loading_may_take(quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = BOUNDS.__class__(**{**vars(BOUNDS), "warm": 60})
    monkeypatch.setattr(warm, "LOADING_SECONDS", 0.0)
    assert not LocalExecutor().getting_ready(make_context(tmp_path, entry="beats"), bounds)


def test_nothing_waits_that_is_not_forked(quick: None, tmp_path: Path) -> None:
    context = make_context(tmp_path, entry="beats")
    bounds = BOUNDS.__class__(**{**vars(BOUNDS), "warm": 60})
    assert not LocalExecutor(["true"]).getting_ready(context, bounds)
    assert not LocalExecutor().getting_ready(context, BOUNDS.__class__(**{**vars(BOUNDS), "warm": 0}))
    assert not LocalExecutor().getting_ready(context.model_copy(update={"toolchain": "gguf"}), bounds)
    assert not LocalExecutor().getting_ready(make_context(tmp_path, entry="beats", device="cuda"), bounds) and not warm._all


def test_the_first_attempt_of_a_job_has_both_get_ready_unless_it_is_the_last_or_measures_time(quick: None, tmp_path: Path) -> None:
    for stage, ready in (("report", 0), ("onnx-int8", 2)):
        folder = tmp_path / stage
        folder.mkdir()
        context = make_context(tmp_path, entry="beats").model_copy(update={"stage": stage, "result": str(folder / "result.json")})
        worker = Worker(Order(context, folder, BOUNDS.__class__(**{**vars(BOUNDS), "warm": 60})))
        assert not isinstance(worker.process, warm.Forked) and len(warm._all) == ready
        worker.hurry()
        wait(worker)
    measuring = [spec.name for spec in all_specs() if spec.alone]
    assert measuring == ["speed"] and not warm.comes_first(make_context(tmp_path, entry="beats").model_copy(update={"stage": "speed"}))


def test_a_process_that_can_not_fork_refuses_one_attempt_and_the_others_go_on(quick: None, tmp_path: Path) -> None:
    """Where the control group allows no more tasks, or no descriptor is left."""
    source, beside = ready(), make(tmp_path, "beats", "beside")
    until(beside, lambda: beside._heard > beside.started)
    for number, (what, least) in enumerate(((resource.RLIMIT_NOFILE, 4), (resource.RLIMIT_NPROC, 0))):
        if what == resource.RLIMIT_NPROC and os.geteuid() == 0:
            continue  # root has no such limit
        before = resource.prlimit(source.process.pid, what)
        resource.prlimit(source.process.pid, what, (least, before[1]))
        started = make(tmp_path, "", f"refused {number}")
        resource.prlimit(source.process.pid, what, before)
        assert not isinstance(started.process, warm.Forked)
        wait(started)
    assert beside.poll() is None and not procfs.entry(beside.process.pid).dead
    again = make(tmp_path, "", "again")
    assert isinstance(again.process, warm.Forked) and procfs.entry(again.process.pid).parent == source.process.pid
    assert wait(again).outcome is Outcome.PERMANENT
    beside.hurry()
    assert wait(beside).outcome is Outcome.INTERRUPTED


def test_ends_are_seen_while_the_process_that_should_tell_stands_still(quick: None, tmp_path: Path) -> None:
    source = ready()
    workers = [make(tmp_path, "beats", f"{number}") for number in range(3)]
    for worker in workers:
        until(worker, lambda worker=worker: worker._heard > worker.started)
    os.kill(source.process.pid, signal.SIGSTOP)
    os.kill(workers[0].process.pid, signal.SIGKILL)
    workers[1].hurry()
    assert fault_of(wait(workers[0])).code == "killed"
    assert wait(workers[1]).outcome is Outcome.INTERRUPTED
    assert workers[2].poll() is None
    os.kill(source.process.pid, signal.SIGCONT)
    last = make(tmp_path, "", "last")
    assert wait(last).outcome is Outcome.PERMANENT and source.process.poll() is None
    workers[2].hurry()
    assert wait(workers[2]).outcome is Outcome.INTERRUPTED
    end = time.monotonic() + 20
    while psutil.Process(source.process.pid).children():
        assert time.monotonic() < end


CALLED = """
import os, subprocess, sys, time
from handlers.child import warm

def talk():
    print("x" * 300_000, end="")
    print("why", file=sys.stderr)
    return 3

def crash():
    os.abort()

def sleep():
    time.sleep(60)

print("before", end="")
done = warm.called(talk, 30)
assert (done.returncode, len(done.stdout), done.stderr) == (3, 300_000, "why\\n"), done
assert warm.called(crash, 30).returncode == -6
try:
    warm.called(sleep, 0.3)
except subprocess.TimeoutExpired:
    print(" timeout", end="")
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print(" alone", len(os.listdir("/proc/self/fd")) - START)
""".replace("START", "int(sys.argv[1])")


def test_a_call_in_a_process_of_its_own_gives_what_it_wrote_and_how_it_ended() -> None:
    before = subprocess.run(
        [sys.executable, "-c", "import os; print(len(os.listdir('/proc/self/fd')))"], capture_output=True, text=True
    ).stdout
    found = subprocess.run([sys.executable, "-c", CALLED, before.strip()], capture_output=True, text=True, timeout=60)
    assert found.stdout == "before timeout alone 0\n", (found.stdout, found.stderr)


def test_an_attempt_that_needs_one_library_is_forked_before_the_others_are_loaded(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its end is seen meanwhile; one that needs all of them waits."""
    (held := tmp_path / "held").touch()
    monkeypatch.setenv("CKPTD_TEST_HELD", str(held))
    bounds = BOUNDS.__class__(**{**vars(BOUNDS), "warm": 60, "pass_environment": ("CKPTD_TEST_HELD",)})
    executor, merge = LocalExecutor(), make_context(tmp_path, entry="beats")
    end = time.monotonic() + 60
    while executor.getting_ready(merge, bounds):
        assert time.monotonic() < end
        time.sleep(0.02)
    (source,) = warm._all
    reference = merge.model_copy(update={"stage": "reference"})
    assert not source.ready and executor.getting_ready(reference, bounds)
    (folder := tmp_path / "attempt").mkdir()
    context = merge.model_copy(update={"result": str(folder / "result.json")})
    worker = Worker(Order(context, folder, bounds))
    assert isinstance(worker.process, warm.Forked) and procfs.entry(worker.process.pid).parent == source.process.pid
    assert [other.kind.libraries for other in warm._all] == ["torch", "light"], "which is loaded beside the rest"
    until(worker, lambda: worker._heard > worker.started)
    worker.hurry()
    assert wait(worker).outcome is Outcome.INTERRUPTED
    assert not source.ready and executor.getting_ready(merge, bounds), "no more than one is forked before"
    held.unlink()
    while executor.getting_ready(reference, bounds):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert source.ready and not source.attempts and ended(worker.process.pid)


def test_one_that_waits_in_vain_goes_on_loading(quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTD_TEST_HELD", str(tmp_path / "nothing"))
    bounds = BOUNDS.__class__(**{**vars(BOUNDS), "warm": 60, "pass_environment": ("CKPTD_TEST_HELD",)})
    executor, merge = LocalExecutor(), make_context(tmp_path, entry="beats")
    end = time.monotonic() + 60
    while executor.getting_ready(merge, bounds):
        assert time.monotonic() < end
    (source,) = warm._all
    while not source.ready:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert warm.take(source.kind, "torch") is source
