"""Slurm's four verbs, by sbatch(1), squeue(1) and scancel(1), and where a site has it its accounting, by sacct(1).

A job's name is the attempt's token. squeue lists a job for `MinJobAge` seconds (300 by default) after its end, with the state in which it
ended; after that it is absent, which is as good: how an attempt ended is in its folder. Only why Slurm ended it is forgotten then, and of
jobs that squeue no longer knows sacct is asked for that. A command that fails, or gives no answer in time,
says nothing about any job.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

from daemon.contract.jobs.processes.elsewhere import OUTPUT
from daemon.running.cluster.port import ABSENT, CALL_SECONDS, Full, Refused, Resources, Sighting, State, Unasked, Unsure
from daemon.running.cluster.slurm.words import ENDINGS, PAUSED, PENDING, reason_in_words

ACCOUNTED_DAYS, NAMES = 7, 50
"""How long ago a job may have been handed in that the accounting is asked for, and of how many with one call."""
SILENT_SECONDS = 600.0
"""Before an accounting that gave no answer is asked again: it may be down, or there is none."""
_SURELY_NOT = re.compile(r"Batch job submission failed: (.*)|sbatch: (?:error|fatal): (Invalid .*|invalid .*|Unable to open file .*)")
_LATER = re.compile(r"limit|temporarily|unavailable|drained|too many", re.IGNORECASE)
_NO_ANSWER = re.compile(r"contact|timed out|communicat|connect|socket|slurm_?ctld|credential", re.IGNORECASE)


@dataclass(frozen=True)
class Options:
    """Options of sbatch, as a site has them; "" and 0 leave the site's default."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    more: tuple[str, ...] = ()
    """Further options, as they are."""

    def words(self) -> list[str]:
        """As words of the command line."""
        named = {"partition": self.partition, "account": self.account, "qos": self.qos, "constraint": self.constraint}
        return [*(f"--{name}={value}" for name, value in named.items() if value), *self.more]


@dataclass
class Slurm:
    """`options`: name of a queue → its options, "" for those of all."""

    options: Mapping[str, Options] = field(default_factory=dict)
    directory: str = ""
    """Folder of the commands, "" for those of PATH."""
    _silent_until: float = field(default=float("-inf"), compare=False)
    """Until when (monotonic) the accounting is not asked."""

    @property
    def name(self) -> str:
        """As `Scheduler.name`."""
        return "slurm"

    def submit(self, token: str, script: Path, resources: Resources) -> str:
        """As `Scheduler.submit`."""
        given = {
            "time": f"{max(1, ceil(resources.seconds / 60))}", "cpus-per-task": f"{max(1, resources.cpus)}",
            "mem": f"{ceil(resources.memory / (1 << 20))}M" if resources.memory else "",
            "gres": f"gpu:{resources.gpus}" if resources.gpus else "",
        }  # fmt: skip
        options = self.options.get(resources.queue) or self.options.get("") or Options()
        words = [
            "--parsable", f"--job-name={token}", "--no-requeue", "--export=NIL", "--nodes=1", "--ntasks=1", "--open-mode=append",
            f"--output={script.parent / OUTPUT}", *(f"--{name}={value}" for name, value in given.items() if value),
            *(["--exclusive"] if resources.alone else []), *options.words(), str(script),
        ]  # fmt: skip
        code, out, err = self._call("sbatch", words)
        if code == 0 and (id := out.strip().partition(";")[0]).isdigit():
            return id
        said = " ".join(err.split())[:300] or f"sbatch ended with code {code}"
        refusal = _SURELY_NOT.search(err)
        if refusal is None or _NO_ANSWER.search(refusal[0]):
            raise Unsure(said)
        raise (Full if _LATER.search(refusal[0]) else Refused)(said)

    def look(self, tokens: Collection[str]) -> Mapping[str, Sighting]:
        """As `Scheduler.look`. All jobs of this user are listed, since the names of a thousand fit into no command line."""
        code, out, err = self._call("squeue", ["--me", "--noheader", "--states=all", "--format=%i|%j|%T|%r|%N"])
        if code != 0:
            raise Unsure(" ".join(err.split())[:300] or f"squeue ended with code {code}")
        wanted, seen = set(tokens), dict[str, Sighting]()
        for line in out.splitlines():
            id, _, rest = line.strip().partition("|")
            token, _, rest = rest.partition("|")
            if token in wanted:
                word, _, rest = rest.partition("|")
                reason, _, host = rest.rpartition("|")
                sighting = _sighting(id, word, reason, host)
                if token not in seen or sighting.state is not State.GONE:  # of two with one name the one that lives
                    seen[token] = sighting
        absent = wanted - seen.keys()
        accounted = self._accounted(absent) if absent else {}
        return {token: seen.get(token) or accounted.get(token, ABSENT) for token in wanted}

    def _accounted(self, tokens: Collection[str]) -> Mapping[str, Sighting]:
        """How jobs ended that squeue has forgotten, by the site's accounting; {} where there is none."""
        ends = dict[str, Sighting]()
        ordered = sorted(tokens) if time.monotonic() >= self._silent_until else []
        for names in (ordered[first : first + NAMES] for first in range(0, len(ordered), NAMES)):
            words = ["--allocations", "--noheader", "--parsable2", f"--starttime=now-{ACCOUNTED_DAYS}days", f"--name={','.join(names)}"]
            try:
                code, out, _ = self._call("sacct", [*words, "--format=JobIDRaw,State,NodeList,JobName"])
            except Unsure:
                code, out = 1, ""
            if code != 0:
                self._silent_until = time.monotonic() + SILENT_SECONDS
                return ends
            for line in out.splitlines():
                id, word, host, token = (line.split("|", 3) + [""] * 4)[:4]
                word = word.partition(" ")[0]  # CANCELLED by 1000
                if word in ENDINGS and token in names:
                    ends[token] = _sighting(id, word, "", host)
        return ends

    def cancel(self, jobs: Mapping[str, str]) -> None:
        """As `Scheduler.cancel`."""
        known = sorted(id for id in jobs.values() if id)
        calls = [[*known]] if known else []
        calls += [[f"--name={token}"] for token, id in jobs.items() if not id]
        for words in calls:
            code, _, err = self._call("scancel", words)
            if code != 0 and "Invalid job id" not in err:
                raise Unsure(" ".join(err.split())[:300] or f"scancel ended with code {code}")

    def tail(self, token: str, folder: Path) -> str:
        """As `Scheduler.tail`."""
        try:
            return (folder / OUTPUT).read_bytes()[-4000:].decode(errors="replace")
        except OSError:
            return ""

    def _call(self, program: str, words: Sequence[str]) -> tuple[int, str, str]:
        """Exit code, output and errors of a command. Raises Unsure where there is no answer."""
        path = f"{self.directory}/{program}" if self.directory else program
        try:
            done = subprocess.run(
                [path, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=CALL_SECONDS, check=False, encoding="utf-8",
                errors="replace",
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Unsure(f"{program} gave no answer in {CALL_SECONDS:.0f} s") from None
        except OSError as error:
            raise Unasked(f"{path} can't be run: {error.strerror}") from None
        return done.returncode, done.stdout, done.stderr


def _sighting(id: str, word: str, reason: str, host: str) -> Sighting:
    if word in ENDINGS:
        return Sighting(State.GONE, id, word, "", host, ENDINGS[word])
    if word in PENDING:
        return Sighting(State.PENDING, id, word, reason_in_words(reason))
    if word in PAUSED:
        return Sighting(State.RUNNING, id, word, f"Slurm has suspended it ({word})", host, paused=True)
    return Sighting(State.RUNNING, id, word, "", host)  # RUNNING, COMPLETING, STAGE_OUT …: it has not ended
