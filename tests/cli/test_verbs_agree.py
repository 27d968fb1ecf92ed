"""What the daemon does with a directory is what `explain`, `export` and `status` say of it: the same rules on random trees of checkpoints.

The tracker, the intake and the journal are the real ones, on a clock of the test's own; the verbs are called as functions.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from daemon.cli.export.checkpoint_argument import checkpoint_at
from daemon.config.places.paths import prepare
from daemon.config.settings import Settings
from daemon.contract.faults.errors import Permanent, UsageError
from daemon.journal.journal import Journal
from daemon.operating.monitoring.explain import CheckpointExplanation, RunExplanation, explain
from daemon.watching.taking.intake import Intake
from daemon.watching.tracker import Tracker
from tests.simulation.files import make_weights

RAM = Path("/dev/shm")
LONG_AGO = 1_700_000_000
WEIGHTS = make_weights(Random(7))
CONFIG = json.dumps({"peft_type": "LORA", "r": 8, "base_model_name_or_path": "pico"}).encode()
ADAPTER = {"adapter_config.json": CONFIG, "adapter_model.safetensors": WEIGHTS}
MODEL = {"config.json": b"{}", "model.safetensors": WEIGHTS}
Files = dict[str, bytes]


def state_of(step: int) -> bytes:
    return json.dumps({"global_step": step, "max_steps": 20, "log_history": []}).encode()


CONTENTS: dict[str, Files] = {
    "nothing": {},
    "an adapter": ADAPTER,
    "an adapter's configuration": {"adapter_config.json": CONFIG},
    "an adapter's weights": {"adapter_model.safetensors": WEIGHTS},
    "half an adapter": {**ADAPTER, "adapter_model.safetensors": WEIGHTS[:-100]},
    "a trainer's adapter, step 4": {**ADAPTER, "training_args.bin": b"x", "trainer_state.json": state_of(4)},
    "a trainer's adapter, step 8": {**ADAPTER, "training_args.bin": b"x", "trainer_state.json": state_of(8)},
    "a trainer's adapter without its state": {**ADAPTER, "training_args.bin": b"x"},
    "a state of the trainer": {"trainer_state.json": state_of(4)},
    "a state that is no JSON": {"trainer_state.json": b"{"},
    "a model": MODEL,
    "a model of a training": {**MODEL, "training_args.bin": b"x"},
    "a trainer's model": {**MODEL, "trainer_state.json": state_of(4), "optimizer.pt": b"x"},
    "a model without a shard": {"config.json": b"{}", "model.safetensors.index.json": b'{"weight_map": {"lora": "m.safetensors"}}'},
    "what says that it is incomplete": {"checkpoint-is-incomplete.txt": b""},
    "a list of modules": {"modules.json": b'[{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]'},
    "a part of DCP": {"__0_0.distcp": b"x"},
    "a metadata file": {".metadata": b"x"},
    "a part of FSDP": {"pytorch_model_fsdp_0/__0_0.distcp": b"x"},
    "FSDP that can't be read": {"pytorch_model_fsdp_0/__0_0.distcp": b"x", "pytorch_model_fsdp_0/.metadata": b"x"},
    "a piece in safetensors": {"shard-00001-model-00001-of-00001.safetensors": WEIGHTS},
    "a Lightning file": {"epoch=0-step=6.ckpt": b"not an archive"},
    "DeepSpeed of Lightning": {"checkpoint/mp_rank_00_model_states.pt": b"x", "latest": b"checkpoint", "zero_to_fp32.py": b""},
    "DeepSpeed of Trainer": {"global_step4/mp_rank_00_model_states.pt": b"x", "latest": b"global_step4", "zero_to_fp32.py": b""},
    "litgpt's": {"lit_model.pth": b"x"},
    "litgpt's adapter": {"lit_model.pth.lora": b"x"},
    "an export": {"MANIFEST.json": b"{}", "report.json": b"{}"},
    "a manifest": {"MANIFEST.json": b"{}"},
    "a journal": {"journal.sqlite3": b"", "pins/1": b""},
}  # fmt: skip
NAMES = ["run", "checkpoint-4", "checkpoint-8", "checkpoint-0004", "checkpoint-abc", "step-4", "final", "adapter", "ref", "sharded",
         "models", "optimizer_0", "tmp-checkpoint-4", ".hidden", "x-tmp", "epoch=0-step=6", "epoch=0-step=6.ckpt", "last.ckpt"]  # fmt: skip
PLACES = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join)
PIECES = ("DCP", "DCP of an adapter", "a Lightning file that can be read", "FSDP", "FSDP of an adapter")
"""Contents that `pieces` makes."""


def trees(contents: Sequence[str]) -> st.SearchStrategy[dict[str, list[str]]]:
    """Place → what lies there: anything below anything, or a run's directory with something in it."""
    held = st.lists(st.sampled_from(contents), min_size=1, max_size=2)
    anywhere = st.dictionaries(PLACES, held, min_size=1, max_size=6)
    run = st.builds(
        lambda own, inside: {"team/run": own, **{f"team/run/{name}": kinds for name, kinds in inside.items()}},
        held, st.dictionaries(st.sampled_from(NAMES), held, max_size=3),
    )  # fmt: skip
    return anywhere | run


RULES = st.fixed_dictionaries({
    "depth": st.sampled_from([0, 0, 0, 2, 3]), "models": st.sampled_from(["trained", "all"]),
    "stale_seconds": st.sampled_from([20.0, 900.0]),
})  # fmt: skip
SELECTS = st.sampled_from([{}, {}, {"policy": "every", "every": 8}, {"policy": "best"}])


@dataclass(frozen=True)
class Told:
    """What is said of one directory, in one of few words, and why."""

    what: str
    why: str = ""


@pytest.fixture(scope="session")
def pieces() -> dict[str, Files]:
    """Contents that only torch can write: checkpoints in pieces that can be read."""
    import torch
    from torch.distributed.checkpoint import FileSystemWriter, save

    with tempfile.TemporaryDirectory() as folder, pytest.warns(UserWarning, match=r"torch.distributed is"):
        save({"model.weight": torch.ones(3)}, storage_writer=FileSystemWriter(folder), no_dist=True)
        dcp = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
        save({"base_model.model.q_proj.lora_A.weight": torch.ones(3)}, storage_writer=FileSystemWriter(f"{folder}/2"), no_dist=True)
        adapter = {path.name: path.read_bytes() for path in Path(folder, "2").iterdir()}
        torch.save({"state_dict": {"model.weight": torch.ones(3)}}, f"{folder}/a.ckpt")
        module = Path(folder, "a.ckpt").read_bytes()
    fsdp = [{f"pytorch_model_fsdp_0/{name}": data for name, data in files.items()} for files in (dcp, adapter)]
    return dict(zip(PIECES, (dcp, adapter, {"epoch=0-step=6.ckpt": module}, *fsdp), strict=True))


def make(root: Path, tree: dict[str, list[str]], contents: dict[str, Files]) -> None:
    """The tree, all of it older than any patience."""
    for place in tree:
        (root / place).mkdir(parents=True, exist_ok=True)
    for place, names in tree.items():
        for file, data in ((file, data) for name in names for file, data in contents[name].items()):
            path = root / place / file
            if not path.is_dir() and not path.parent.is_file():
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(data)
    for folder, _, files in os.walk(root, topdown=False):
        for name in files:
            os.utime(Path(folder, name), (LONG_AGO, LONG_AGO))


class Box:
    """A daemon without threads on the tree below `root`, which has had the time that it needs."""

    def __init__(self, home: Path, sections: dict[str, Any]) -> None:
        self.root = home / "runs"
        watch = {"roots": (self.root,), "settle_seconds": 2.0, **sections.pop("watch", {})}
        self.settings = Settings(
            watch=watch, output={"directory": home / "exports"}, state={"directory": home / "state"}, limits={"disk_reserve": 0}, **sections
        )
        paths = prepare(self.settings.state_directory, self.settings.output.directory)
        self.journal = Journal(paths.journal)
        self._intake = Intake(self.settings, self.journal, paths)
        self.at = 0.0
        self.start()

    def start(self) -> None:
        self.tracker = Tracker(self.settings.watch, self._intake, taken=lambda: None)

    def pass_time(self, seconds: float = 100.0, *, scans: bool = True) -> None:
        """Let time go by, with a scan every ten seconds."""
        end = self.at + seconds
        while self.at < end:
            if scans:
                self.tracker.scan(self.root, self.at)
            upto = self.at + 10
            while (due := self.tracker.next_due()) is not None and due <= upto:
                self.at = max(self.at, due)
                self.tracker.look_at_due(self.at)
            self.at = upto

    def did(self, path: Path) -> Told:
        """What became of a directory, by what `ckptd status` and `ckptd list` show."""
        rows = self.journal.database.read("SELECT verdict FROM seen WHERE path = ?", str(path))
        verdict = str(rows[0][0]) if rows else ""
        if path in self.tracker.listing.passed_over:
            return Told("refused" if verdict == "skipped" else "passed over", self.tracker.listing.passed_over[path])
        if path in self.tracker.listing.incomplete:
            return Told("incomplete", "; ".join(self.tracker.listing.incomplete[path].missing))
        return Told({"known": "taken", "damaged": "incomplete"}.get(verdict, verdict))

    def explained(self, path: Path) -> Told:
        """The same by `ckptd explain PATH`."""
        value = explain(self.settings, path)
        rows = value.checkpoints if isinstance(value, RunExplanation) else (value,)
        own = next((row for row in rows if row.path == str(path)), None)
        return self.meant(own) if own else Told("")

    def meant(self, row: CheckpointExplanation) -> Told:
        if row.unwatched:
            return Told("passed over", row.unwatched)
        if not row.complete:
            return Told("incomplete", "; ".join(row.missing))
        if row.refusal:
            return Told("refused", row.refusal)
        assert row.selected is not None
        return Told("taken" if row.selected.wanted else "skipped", row.selected.reason)


def differences(tree: dict[str, list[str]], contents: dict[str, Files], sections: dict[str, Any]) -> list[str]:
    """Where the verbs contradict each other about a tree, in words."""
    with tempfile.TemporaryDirectory(dir=RAM if RAM.is_dir() else None) as home, capture_logs():
        root = Path(home, "runs")
        root.mkdir()
        make(root, tree, contents)
        box = Box(Path(home), sections)
        try:
            box.pass_time()
            folders = [Path(folder) for folder, _, _ in os.walk(root) if folder != str(root)]
            did = {path: box.did(path) for path in folders}
            said = [line for path in folders for line in _about(box, path, did[path])]
            said += _of_the_run(box, root, did)
            jobs = box.journal.jobs.open_ids()
            box.start()
            box.pass_time()
            again = {path: box.did(path) for path in folders}
            said += [f"{path}: after a restart {again[path]}, before {did[path]}" for path in folders if again[path] != did[path]]
            if box.journal.jobs.open_ids() != jobs:
                said.append("a restart brought or ended jobs")
        finally:
            box.journal.close()
    return [line.replace(home, "") for line in said]


def _about(box: Box, path: Path, did: Told) -> list[str]:
    said, explained = [], box.explained(path)
    if did.what == "passed over" and did != explained:
        said.append(f"{path}: status says {did}, explain {explained}")
    elif did.what in ("", "passed over"):
        if explained.what not in ("", "passed over"):
            said.append(f"{path}: the daemon has nothing about it, explain says {explained}")
    elif did.what != explained.what or (did.what == "incomplete" and did.why not in ("", explained.why)):
        said.append(f"{path}: the daemon {did}, explain {explained}")
    exported = _exported(path)
    wanted = {"taken": ("taken",), "skipped": ("taken",), "refused": ("refused",), "incomplete": ("incomplete", "refused", "")}
    if exported not in wanted.get(did.what, (exported,)):
        said.append(f"{path}: the daemon {did}, export {exported!r}")
    if did.what == "passed over" and exported == "":
        said.append(f"{path}: status says {did}, and export finds no checkpoint in it")
    return said


def _exported(path: Path) -> str:
    """What `ckptd export PATH` would do."""
    try:
        return "taken" if checkpoint_at(path).complete else "incomplete"
    except Permanent:
        return "refused"
    except UsageError:
        return ""


def _of_the_run(box: Box, root: Path, did: dict[Path, Told]) -> list[str]:
    """Whether `explain ROOT` has a line for each directory of which the daemon knows, and for no other that it would come to."""
    value = explain(box.settings, root)
    rows = {Path(row.path): box.meant(row) for row in (value.checkpoints if isinstance(value, RunExplanation) else ())}
    said = [f"explain ROOT has no line for {path}, {told}" for path, told in did.items() if told.what and path not in rows]
    return said + [f"explain ROOT has a line for {path}, {row}, and the daemon nothing"
                   for path, row in rows.items() if row.what not in ("", "passed over") and not did[path].what]  # fmt: skip


@settings(max_examples=25, deadline=None, derandomize=True)
@given(tree=trees(sorted(CONTENTS)), rules=RULES, select=SELECTS)
@example({"logs/checkpoints/epoch=0-step=6.ckpt": ["DeepSpeed of Lightning"]}, {}, {})  # the directory around it was listed as incomplete
@example({"team/run": ["an adapter's configuration"], "team/run/checkpoint-4": ["an adapter"]}, {}, {})  # explain called it incomplete
@example({"models": ["a model without a shard"]}, {}, {})  # a whole model for the scan, and nothing for export
def test_verbs_agree_on_every_tree(tree: dict[str, list[str]], rules: dict[str, Any], select: dict[str, Any]) -> None:
    assert differences(tree, CONTENTS, {"watch": rules, "select": select}) == []


@pytest.mark.slow
@pytest.mark.timeout(3000)
@settings(max_examples=2000, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees(sorted([*CONTENTS, *PIECES])), rules=RULES, select=SELECTS)
def test_verbs_agree_on_thousands_of_trees(
    pieces: dict[str, Files], tree: dict[str, list[str]], rules: dict[str, Any], select: dict[str, Any]
) -> None:
    assert differences(tree, {**CONTENTS, **pieces}, {"watch": rules, "select": select}) == []
