"""One simulated box with the trainings of several tools below one root: which checkpoint is found, where it goes, and what `latest` is.

The bytes of a save are the concern of `tests.simulation.world`; here a save is there at once, and what varies is where trainers put it,
what they call it, when they save it, and in which order exports end. Everything follows from the seed. Tracker, intake, journal and the
publication are the real ones; the clock is virtual, and the daemon starts anew in between.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from daemon.checkpoints.layouts import PATIENCE_SECONDS
from daemon.checkpoints.names import step_of
from daemon.config.places.paths import prepare
from daemon.config.settings import Settings
from daemon.contract.disk.files import remove_tree, seal
from daemon.contract.jobs.messages import ArtifactCheck, JobFacts, Outcome, StageFacts, StageResult, Verdict
from daemon.journal.journal import Journal
from daemon.journal.rows import JobRow, StageRow
from daemon.publishing.publication import publish_job
from daemon.watching.taking.intake import Intake
from daemon.watching.tracker import Tracker
from tests.detection.helpers import open_jobs
from tests.simulation.disk import EPOCH_NS
from tests.simulation.files import STATE, TRAINERS_OWN, make_checkpoint, make_weights

SETTLE, RESCAN = 3.0, 5.0
BOUND = SETTLE + PATIENCE_SECONDS + 2 * RESCAN
"""So long after its last change every checkpoint that is to be taken has been."""

APART = ("../lora_model", "merged")
Files = dict[str, bytes]


@dataclass(frozen=True)
class Tool:
    """Where a tool puts what it saves. `{run}`: the training's own name; `{step}` and `{epoch}`: how far it is."""

    run: str
    checkpoint: str
    endings: tuple[str, ...]
    """Names of what it may save when training ends; "" is the run's own directory."""
    trainers: bool = True
    """Its checkpoints hold transformers' Trainer's files."""


TOOLS = (
    Tool("{run}", "checkpoint-{step}", ("", "final", "final_model", "merged")),  # TRL, axolotl; merged by hand
    Tool("saves/Qwen2-0.5B/lora/{run}", "checkpoint-{step}", ("",)),  # LLaMA-Factory
    Tool("team/project/{run}/deep/er/outputs", "checkpoint-{step}", ("", "adapter")),
    Tool("{run}/outputs", "checkpoint-{step}", ("../lora_model",)),  # Unsloth
    Tool("logs/lightning_logs/{run}/checkpoints", "epoch={epoch}-step={step}", ("final",), trainers=False),
    Tool("titan/{run}", "step-{step}", ("final",), trainers=False),
)


@dataclass
class Saved:
    """A checkpoint that a training saved and meant to be exported."""

    path: Path
    content: tuple[tuple[str, bytes], ...]
    apart: bool = False
    """It lies beside the run's checkpoints under a name that says nothing: a run of its own."""
    known: bool = False
    """The same as the last checkpoint of the run: no export of its own."""


@dataclass
class Training:
    """One training: its saves in the order of training."""

    tool: Tool
    folder: Path
    ends: list[tuple[str, bool]]
    """What it saves at its end: name, and whether that is the last checkpoint's content."""
    steps: list[int]
    next_at: float
    ended_at: float = float("-inf")
    hasty: bool = False
    """Two things were saved at its end so soon after each other that a scan sees both at once."""
    saved: list[Saved] = field(default_factory=list)


def content_of(files: Files) -> tuple[tuple[str, bytes], ...]:
    """What makes a checkpoint another than its neighbours: all that an export reads, but what training merely logged."""
    return tuple(sorted((name, data) for name, data in files.items() if name.endswith((".safetensors", ".json")) and name != STATE))


class Box:
    """A world of trainings below `folder`; `run()` plays it and gives what was violated."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng, self.folder, self.now = random.Random(seed), folder, 0.0
        self.root = folder / "runs"
        self.root.mkdir(parents=True)
        self._settings = Settings(
            watch={"roots": (self.root,), "settle_seconds": SETTLE}, output={"directory": folder / "exports"},
            state={"directory": folder / "state"},
        )  # fmt: skip
        self.paths = prepare(self._settings.state_directory, self._settings.output.directory)
        self.journal = Journal(self.paths.journal)
        self.tracker = self._start()
        self._over = False
        self.published: dict[str, JobRow] = {}
        """Job → as it was entered, of all that were published."""
        self._contents: dict[str, tuple[Path, tuple[tuple[str, bytes], ...]]] = {}
        self.trainings = [self._training(number) for number in range(self.rng.randint(2, 4))]
        self.untaken = self._foreign()

    def _start(self) -> Tracker:
        return Tracker(self._settings.watch, Intake(self._settings, self.journal, self.paths), taken=lambda: None)

    def _training(self, number: int) -> Training:
        tool = self.rng.choice(TOOLS)
        ends = [(name, self.rng.random() < 0.4) for name in tool.endings if self.rng.random() < 0.6]
        steps = sorted(self.rng.sample(range(1, 400), self.rng.randint(1, 3)))
        return Training(tool, self.root / tool.run.format(run=f"run-{number}"), ends, steps, self.rng.uniform(0, 60))

    def _foreign(self) -> list[Path]:
        """What lies below the root and is no training's: a base model, a data set, a reference adapter; gives what must not be taken."""
        base = self.root / self.rng.choice(["models/org/base", "base", "cache/deep/er/models/base"])
        self._write(base, self._model())
        other = self.root / "litgpt" / "lora" / "final"  # a layout that is not exported
        self._write(other, {"lit_model.pth.lora": self.rng.randbytes(50)})
        self._write(self.root / "datasets" / "part-0", {"data.json": b"[]", "rows.safetensors": make_weights(self.rng)})
        self._write(self.root / ".cache" / "adapter", self._adapter())
        self._write(self.root / "tool" / "ref", self._adapter())
        return [base, other]

    def _model(self) -> Files:
        return {"config.json": b'{"model_type": "llama"}', "model.safetensors": make_weights(self.rng)}

    def _adapter(self) -> Files:
        return {name: data for name, data in make_checkpoint(self.rng, 1).items() if name not in TRAINERS_OWN}

    def _write(self, folder: Path, files: Files) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        moment = EPOCH_NS + int(self.now * 1e9)
        for name, data in files.items():
            (folder / name).write_bytes(data)
            os.utime(folder / name, ns=(moment, moment))

    # What trainers do

    def _save(self, one: Training) -> None:
        """The next save of a training: a checkpoint, or what it ends with."""
        step = one.steps.pop(0) if one.steps else None
        if step is not None:
            files = make_checkpoint(self.rng, step) if one.tool.trainers else self._adapter()
            path = one.folder / one.tool.checkpoint.format(step=step, epoch=len(one.saved))
            one.saved.append(Saved(path, content_of(files)))
        else:
            name, same = one.ends.pop(0)
            last = [saved for saved in one.saved if step_of(saved.path) is not None][-1]
            apart = name in APART
            files = self._model() if name == "merged" else {**self._adapter(), **dict(last.content)} if same else self._adapter()
            path = Path(os.path.normpath(one.folder / name))
            one.saved.append(Saved(path, content_of(files), apart, known=same and not apart))
        self._write(path, files)
        if step is None and not one.saved[-1].apart:
            one.hasty |= self.now - one.ended_at < 2 * BOUND
            one.ended_at = self.now
        more = bool(one.steps or one.ends)
        # Now and then at once, so that what training ends with is there before the last checkpoint is taken.
        one.next_at = self.now + self.rng.choice([0.0, 1.0, self.rng.uniform(0, BOUND), 2 * BOUND]) if more else float("inf")

    # What the daemon does

    def _scan(self) -> None:
        if not self._over and self.rng.random() < 0.05:
            self.tracker = self._start()
        self.tracker.scan(self.root, self.now)
        while (due := self.tracker.next_due()) is not None and due <= self.now + RESCAN:
            self.now = max(self.now, due)
            self.tracker.look_at_due(self.now)
        for job in open_jobs(self.journal):
            if job.id not in self._contents and job.pin.is_dir():
                pinned = {path.name: path.read_bytes() for path in job.pin.iterdir() if path.is_file()}
                self._contents[job.id] = Path(job.checkpoint.path), content_of({n: d for n, d in pinned.items() if n in _EXPORTED})

    def _publish(self, job: JobRow) -> None:
        """An export ends, with one artifact that passed."""
        assert self.journal.jobs.start(job.id, None)
        made = self.paths.staging / job.id
        rows = {}
        for name in ("pytorch", "merged", "report"):
            (made / name).mkdir(parents=True, exist_ok=True)
            (made / name / "file").write_text(f"{name} of {job.id}")
            checks = (ArtifactCheck(variant="pytorch", verdict=Verdict.PASSED),) if name == "merged" else ()
            result = StageResult(outcome=Outcome.SUCCEEDED, files=seal(made / name) if name != "merged" else (), checks=checks)
            rows[name] = StageRow(name, "succeeded", 1, 0, None, None, made / name, result, None)
        facts = tuple(StageFacts(name=name, state="succeeded", result=row.result) for name, row in rows.items())
        told = JobFacts(
            export_id=job.id, created=job.created, checkpoint=job.checkpoint, work=job.work, stages=facts, target=str(job.target)
        )
        publish_job(job, told, rows, self.paths, keep_rejected=False)
        self.journal.jobs.finish(job.id, "succeeded", None)
        remove_tree(job.pin)
        self.published[job.id] = job

    def run(self) -> list[str]:
        """Play until all trainings have ended and all exports too; gives what was violated."""
        end = float("inf")
        while self.now < end:
            for one in self.trainings:
                if one.next_at <= self.now:
                    self._save(one)
            if end == float("inf") and all(one.next_at == float("inf") for one in self.trainings):
                end, self._over = self.now + 2 * BOUND, True  # a start anew begins the quiet time anew
            before = self.now
            self._scan()
            self.now = max(before + RESCAN, self.now)
            waiting = open_jobs(self.journal)
            if waiting and self.rng.random() < 0.2:
                self._publish(self.rng.choice(waiting))
        waiting = open_jobs(self.journal)
        self.rng.shuffle(waiting)
        for job in waiting:
            self._publish(job)
        return self._check()

    # What must be true

    def _check(self) -> list[str]:
        said = []
        exported = Counter(content for _, content in self._contents.values())
        meant = [saved for one in self.trainings for saved in one.saved]
        for saved in meant:
            if exported[saved.content] == 0:
                said.append(f"{self._short(saved.path)} was missed")
        allowed = Counter(saved.content for saved in meant if not saved.known)
        said += [f"{self._short(path)} was exported {exported[content]} times, {allowed[content]} meant"
                 for path, content in self._contents.values() if exported[content] > allowed[content]]  # fmt: skip
        targets: dict[Path, set[str]] = {}
        for job in self.published.values():
            targets.setdefault(job.target, set()).add(job.checkpoint.identity)
        said += [
            f"{len(found)} checkpoints share {target.relative_to(self.paths.output)}" for target, found in targets.items() if len(found) > 1
        ]
        for path in self.untaken:
            if path not in self.tracker.listing.passed_over:
                said.append(f"{self._short(path)} is not taken, and that is not said")
        said += [f"{self._short(path)} is called not watched, and it is a training's"
                 for path in self.tracker.listing.passed_over if path not in self.untaken]  # fmt: skip
        for one in self.trainings:
            said += self._check_latest(one)
        return said

    def _check_latest(self, one: Training) -> list[str]:
        """`latest` of a run points at what was saved last in the order of training, in whichever order its exports ended."""
        own = [saved for saved in one.saved if not saved.apart and not saved.known]
        jobs = {content: job for job, (_, content) in self._contents.items()}
        last = jobs.get(own[-1].content)
        if last is None or last not in self.published or one.hasty:
            return []
        target = self.published[last].target
        link = target.with_name("latest")
        at = link.resolve() if link.is_symlink() else None
        return [] if at == target.resolve() else [f"latest of {self._short(one.folder)} is {at and at.name}, and {target.name} came last"]

    def _short(self, path: Path) -> str:
        return str(path.relative_to(self.root))

    def close(self) -> None:
        """Close the journal, remove everything."""
        self.journal.close()
        shutil.rmtree(self.folder)


_EXPORTED = frozenset({"adapter_model.safetensors", "adapter_config.json", "tokenizer.json", "config.json", "model.safetensors"})
