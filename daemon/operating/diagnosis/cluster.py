"""What `ckptd check` finds out about the machines of a scheduler: a probe job says what they see."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from daemon.config.settings import Settings
from daemon.contract.faults.errors import UsageError
from daemon.contract.jobs import elsewhere
from daemon.contract.jobs.elsewhere import PROBE, PROBED, Probe, Probed
from daemon.contract.version import __version__
from daemon.running.cluster.by_stage import scheduler_of, terms_of
from daemon.running.cluster.executor import environment_there, write_script
from daemon.running.cluster.port import Refused, Resources, Scheduler, State, Unsure
from daemon.running.rules.resume_keys import library_version

PROBE_SECONDS = 60.0
"""For the probe's answer; a busy cluster may let it wait longer, which is no fault."""
LOOK_SECONDS = 0.5
SKEW_SECONDS = 10.0
"""From which on it is said that clocks differ."""
LIBRARIES = ("torch", "transformers", "peft", "safetensors", "onnx", "onnxruntime")


@dataclass(frozen=True)
class ClusterHere:
    """What was found, for each queue that is used."""

    facts: dict[str, str]
    """`cluster`: the machines that answered."""
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def examine_cluster(settings: Settings, scheduler: Scheduler | None = None) -> ClusterHere:
    """Hand in a probe to each queue, and wait for the answers. `scheduler`: instead of the configured one."""
    if not settings.cluster.is_used:
        return ClusterHere({})
    try:
        known = scheduler or scheduler_of(settings.cluster)
    except UsageError as error:
        return ClusterHere({}, (f"cluster: {error.fault.cause}; {error.fault.remedy}",))
    facts, problems, warnings = dict[str, str](), list[str](), list[str]()
    for queue in ("", *settings.cluster.queues):
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
        if isinstance(answer, str):
            warnings.append(f"cluster: the probe in {name} has not answered within {PROBE_SECONDS:.0f} s: {answer}")
            continue
        facts[name] = f"{answer.host}, {answer.cores} cores" + (f", {len(answer.gpus)} GPUs" if answer.gpus else "")
        problems += [f"cluster: {answer.host} does not see {path}; mount it there by the same path" for path in answer.unseen]
        problems += [f"cluster: {answer.host} can't write into {path}; give the user the right there" for path in answer.unwritable]
        problems += [
            f"cluster: {answer.host} has {clause}; install the same releases, or set cluster.python" for clause in answer.differing
        ]
        skew = answer.time - time.time()
        if abs(skew) > SKEW_SECONDS:
            way = "ahead" if skew > 0 else "behind"
            warnings.append(f"cluster: the clock of {answer.host} is {abs(skew):.0f} s {way}; so are the times in its logs")
    answers = {"cluster": "; ".join(f"{name}: {answer}" for name, answer in facts.items())} if facts else {}
    return ClusterHere(answers, tuple(problems), tuple(warnings))


def _probe(settings: Settings, scheduler: Scheduler, queue: str) -> Probed | str:
    """What a machine of the queue answers, or why there is no answer yet."""
    settings.state_directory.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="probe-", dir=settings.state_directory))
    token = f"ckptd.probe.{secrets.token_hex(6)}"
    try:
        terms = terms_of(settings.cluster, queue)
        writes = (settings.state_directory, *([settings.output.directory] if settings.output.directory.exists() else []))
        reads = (*settings.base.search, *settings.base.map.values(), *settings.watch.roots)
        elsewhere.put(folder, PROBE, Probe(
            read=tuple(str(path) for path in reads if path.exists()), write=tuple(str(path.absolute()) for path in writes),
            versions={"ckptd": __version__, **{name: library_version(name) for name in LIBRARIES}},
        ))  # fmt: skip
        script = write_script(folder, terms, environment_there(settings.limits.pass_environment), "--probe", str(folder))
        id = scheduler.submit(token, script, Resources(1, 512 << 20, PROBE_SECONDS, terms.gpus, queue=queue))
        return _answer(scheduler, token, id, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _answer(scheduler: Scheduler, token: str, id: str, folder: Path) -> Probed | str:
    deadline, why = time.monotonic() + PROBE_SECONDS, "it waits"
    while time.monotonic() < deadline:
        if (answer := elsewhere.get(folder, PROBED, Probed)) is not None:
            return answer
        sighting = scheduler.look([token])[token]
        why = sighting.reason or sighting.word or why
        if sighting.state is State.GONE:
            time.sleep(LOOK_SECONDS)
            late = elsewhere.get(folder, PROBED, Probed)
            said = scheduler.tail(token, folder).strip().splitlines()
            return late or f"its job ended without an answer: {said[-1] if said else 'its folder is perhaps not seen there'}"
        time.sleep(LOOK_SECONDS)
    scheduler.cancel({token: id})
    return why
