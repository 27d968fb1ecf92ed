"""What `ckptd check` finds out about the machines of a scheduler: a probe job says what they see."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from daemon.config.places.paths import make_private
from daemon.config.settings import Settings
from daemon.contract.disk.files import write_atomic
from daemon.contract.faults.errors import UsageError
from daemon.contract.jobs.plan import plan
from daemon.contract.jobs.processes import elsewhere
from daemon.contract.jobs.processes.elsewhere import PROBE, PROBED, Probe, Probed
from daemon.contract.jobs.tasks import evaluated
from daemon.contract.version import __version__
from daemon.running.cluster.by_stage import queue_of, scheduler_of, terms_of
from daemon.running.cluster.executor import environment_there, write_script
from daemon.running.cluster.port import NOT_SEEN, Refused, Resources, Scheduler, State, Unsure
from daemon.running.rules.resume_keys import library_version

PROBE_SECONDS = 60.0
"""For the probe's answer; a busy cluster may let it wait longer, which is no fault."""
LOOK_SECONDS = 0.5
SKEW_SECONDS = 10.0
"""From which on it is said that clocks differ."""
LIBRARIES = ("torch", "transformers", "peft", "safetensors", "onnx", "onnxruntime")


MOST_NAMES, MOST_SAID = 16, 300
SAID_SECONDS = 5.0
"""For the answer of a probe whose job is gone and whose output is seen already."""
NEVER = ("the cluster has no machine", "no machine of the cluster has")
"""How the reasons of Ray begin for which a job waits until the cluster grows."""


@dataclass(frozen=True)
class _Silence:
    """Why a probe gave no answer, as the end of a sentence. `is_fault`: an attempt would fare no better."""

    why: str
    is_fault: bool = False


@dataclass(frozen=True)
class ClusterHere:
    """What was found, for each queue that is used."""

    facts: dict[str, str]
    """`cluster`: the machines that answered."""
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def examine_cluster(settings: Settings, scheduler: Scheduler | None = None) -> ClusterHere:
    """Hand in a probe to each queue that a stage uses, and wait for the answers. `scheduler`: instead of the configured one."""
    if not settings.cluster.is_used:
        return ClusterHere({})
    try:
        known = scheduler or scheduler_of(settings.cluster)
    except UsageError as error:
        return ClusterHere({}, (f"cluster: {error.fault.cause}; {error.fault.remedy}",))
    facts, problems, warnings = dict[str, str](), list[str](), list[str]()
    stages = plan(
        settings.variants, speed=settings.validate.speed_tokens > 0, sharded=True,
        evaluate=evaluated(settings.validate.tasks, settings.variants),
    )  # fmt: skip
    used = {queue_of(settings.cluster, spec.name) for spec in stages}
    for queue in (queue for queue in ("", *settings.cluster.queues) if queue in used):
        name = f"{known.name} queue {queue}" if queue else known.name
        try:
            answer = _probe(settings, known, queue)
        except Unsure as error:
            problems.append(f"cluster: {known.name} gives no answer ({error}); attempts would wait until it does")
            break
        except Refused as error:
            problems.append(f"cluster: {name} does not take a probe ({error}); correct the keys of [cluster]")
            continue
        except OSError as error:
            problems.append(f"cluster: the probe's folder can't be written ({error.strerror}: {error.filename})")
            break
        if isinstance(answer, _Silence):
            (problems if answer.is_fault else warnings).append(f"cluster: the probe in {name} {answer.why}")
            continue
        facts[name] = f"{answer.host}, {answer.cores} cores" + (f", {len(answer.gpus)} GPUs" if answer.gpus else "")
        problems += _problems_of(answer)
        skew = answer.time - time.time()
        if abs(skew) > SKEW_SECONDS:
            way = "ahead" if skew > 0 else "behind"
            warnings.append(f"cluster: the clock of {answer.host} is {abs(skew):.0f} s {way}; so are the times in its logs")
    answers = {"cluster": "; ".join(f"{name}: {answer}" for name, answer in facts.items())} if facts else {}
    return ClusterHere(answers, tuple(problems), tuple(warnings))


def _problems_of(answer: Probed) -> list[str]:
    """What attempts would lack on the machine that answered."""
    host = answer.host
    return [
        *(f"cluster: {host} does not see {path}; mount it there by the same path" for path in answer.unseen),
        *(f"cluster: {host} has another folder at {path} than this machine: is it not mounted there?" for path in answer.others),
        *(f"cluster: {host} can't write into {path}; give the user the right there" for path in answer.unwritable),
        *([f"cluster: {host} can't use the scratch folder {answer.scratch}; make it there, or correct scratch"] if answer.scratch else []),
        *(f"cluster: {host} has {clause}; install the same releases, or set cluster.python" for clause in answer.differing),
    ]


def _probe(settings: Settings, scheduler: Scheduler, queue: str) -> Probed | _Silence:
    """What a machine of the queue answers, or why there is no answer."""
    if not settings.state_directory.exists():
        make_private(settings.state_directory)
    folder = Path(tempfile.mkdtemp(prefix="probe-", dir=settings.state_directory))
    token = f"ckptd.probe.{secrets.token_hex(6)}"
    marks = dict[Path, str]()
    try:
        terms = terms_of(settings.cluster, queue)
        for shared in (settings.state_directory, settings.output.directory, settings.pin.directory):
            if shared is not None and shared.exists():
                marks[shared.absolute() / f".{token}"] = secrets.token_hex(16)
        for mark, text in marks.items():
            write_atomic(mark, text, mode=0o600)
        writes = tuple(str(mark.parent) for mark in marks)
        reads = [str(path) for path in (*settings.base.search, *settings.base.map.values(), *settings.watch.roots) if path.exists()]
        elsewhere.put(folder, PROBE, Probe(
            read=(*reads, *writes), write=writes, marks={str(mark): text for mark, text in marks.items()},
            entries={path: names for path in reads if (names := _some_names(path))}, scratch=terms.scratch,
            versions={"ckptd": __version__, **{name: library_version(name) for name in LIBRARIES}},
        ))  # fmt: skip
        script = write_script(folder, terms, environment_there(settings.limits.pass_environment), "--probe", str(folder))
        asked = Resources(terms.cpus or 1, terms.memory or 512 << 20, PROBE_SECONDS, terms.gpus, queue=queue)
        id = scheduler.submit(token, script, asked)
        return _answer(scheduler, token, id, folder, settings)
    finally:
        for mark in marks:
            with contextlib.suppress(OSError):
                mark.unlink()
        shutil.rmtree(folder, ignore_errors=True)


def _some_names(folder: str) -> tuple[str, ...]:
    """Some entries by which a folder is known on another machine; none of one that is empty, or can't be listed."""
    try:
        with os.scandir(folder) as entries:
            return tuple(islice((entry.name for entry in entries if not entry.name.startswith((".", "lost+found"))), MOST_NAMES))
    except OSError:
        return ()


def _answer(scheduler: Scheduler, token: str, id: str, folder: Path, settings: Settings) -> Probed | _Silence:
    deadline, sighting, gone = time.monotonic() + PROBE_SECONDS, NOT_SEEN, False
    while time.monotonic() < deadline:
        if (answer := elsewhere.get(folder, PROBED, Probed)) is not None:
            return answer
        if not gone:
            sighting = scheduler.look([token]).get(token, sighting)
        if sighting.state is State.GONE and not gone:  # files may be seen late
            late = SAID_SECONDS if scheduler.tail(token, folder).strip() else settings.cluster.late_seconds
            gone, deadline = True, min(deadline, time.monotonic() + late)
        time.sleep(LOOK_SECONDS)
    if gone:
        said = " ".join(scheduler.tail(token, folder).split())[-MOST_SAID:]
        return _Silence(_ended(said, settings), is_fault=True)
    scheduler.cancel({token: id})
    why = sighting.reason or sighting.word or "the scheduler does not say why"
    if sighting.state is State.RUNNING:
        slow = f"look whether the file systems of {sighting.host or 'its machine'} answer"
        return _Silence(f"has run for up to {PROBE_SECONDS:.0f} s without an answer; {slow}")
    remedy = "look whether its machines are busy, or lower what [cluster] asks for"
    return _Silence(f"has not begun within {PROBE_SECONDS:.0f} s: {why}; {remedy}", is_fault=why.startswith(NEVER))


def _ended(said: str, settings: Settings) -> str:
    """What is said of a probe that ended without an answer. `said`: the end of its output."""
    if said:
        return f"ended without an answer; its last words are: {said}; correct cluster.python or prefix so that each machine can run it"
    return (
        f"ended without an answer or any output; mount state.directory, {settings.state_directory}, on all machines by the same path, and"
        " look whether the queue's prefix and options suit it"
    )
