"""An interrupted merge goes on at the file where it stopped, and ends with the bytes of one that nothing disturbed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from daemon.contract import ChildLimits, Outcome, StageContext, StageResult
from daemon.durable import sha256_file
from daemon.errors import Permanent, Retryable
from handlers.merge import MergeReport, ledger, merge_adapter, stage
from tests import models
from tests.merge import helpers

ROOT = Path(__file__).parents[2]
CHILD = """
import sys
from pathlib import Path
import torch
from handlers.merge import merge_adapter
print("ready", flush=True)
print(merge_adapter(*(Path(one) for one in sys.argv[1:4]), resume=True).resumed_files)
"""
FULL_DISK = """
set -u
mount -t tmpfs -o size="$ROOM" tmpfs "$OUT" || exit 99
"$PYTHON" -c "$CHILD" "$ADAPTER" "$BASE" "$OUT"; echo "first: $?"
mount -o remount,size=64m "$OUT"
"$PYTHON" -c "$CHILD" "$ADAPTER" "$BASE" "$OUT"; echo "second: $?"
cd "$OUT" && find . -type f | sort | xargs sha256sum
"""


@dataclass(frozen=True)
class Case:
    """A sharded base, an adapter for it, and what an undisturbed merge of both gives."""

    base: Path
    adapter: Path
    digests: dict[str, str]
    seconds: float
    """Of the undisturbed merge."""

    @property
    def shards(self) -> list[str]:
        """Names of the weight files."""
        return sorted(name for name in self.digests if name.endswith(".safetensors"))

    def merge(self, output: Path, **options: Any) -> MergeReport:
        """Merge, or go on with a merge, in this process."""
        return merge_adapter(self.adapter, self.base, output, resume=True, **options)

    def interrupted(self, output: Path, finished: int) -> Path:
        """A folder in which a merge was stopped as soon as so many files were finished."""
        output.mkdir()

        def stop(fraction: float, message: str) -> None:
            if len(noted(output)) == finished:
                raise Stop

        with pytest.raises(Stop):
            self.merge(output, progress=stop)
        assert len(noted(output)) == finished
        return output


class Stop(Exception):
    """Ends a merge at a safe point."""


def digests(folder: Path) -> dict[str, str]:
    """Relative path → SHA-256 of everything below a folder, hidden files too."""
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def noted(folder: Path) -> list[str]:
    """Files that the ledger in a folder calls finished."""
    path = folder / ledger.LEDGER
    return sorted(json.loads(path.read_bytes())["files"]) if path.exists() else []


def marks(folder: Path, names: list[str]) -> dict[str, tuple[int, int]]:
    """What changes when a file is written again."""
    return {name: ((folder / name).stat().st_ino, (folder / name).stat().st_mtime_ns) for name in names}


def shard(single: Path, base: Path, size: str) -> Path:
    """The model in `single` in files of at most `size`."""
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(single, dtype=torch.bfloat16).save_pretrained(base, max_shard_size=size)
    return base


def make_case(folder: Path, base: Path) -> Case:
    adapter = helpers.make_adapter(base, folder / "adapter")
    output = folder / "undisturbed"
    output.mkdir()
    started = time.monotonic()
    merge_adapter(adapter, base, output)
    return Case(base, adapter, digests(output), time.monotonic() - started)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("resume")
    made = make_case(folder, shard(models.make_base(folder / "single"), folder / "base", "60KB"))
    assert len(made.shards) >= 4
    return made


def start(case: Case, output: Path, **environment: str) -> subprocess.Popen[str]:
    output.mkdir(exist_ok=True)
    command = [sys.executable, "-c", CHILD, str(case.adapter), str(case.base), str(output)]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)


def resume_and_check(case: Case, output: Path, *, most_repeated: int = 1) -> MergeReport:
    """Go on with a merge and hold it against the invariants: same bytes, whole files untouched, little repeated."""
    kept = noted(output)
    before = marks(output, kept)
    whole = [name for name in case.shards if (output / name).exists() and sha256_file(output / name) == case.digests[name]]
    report = case.merge(output)
    assert digests(output) == case.digests
    assert marks(output, kept) == before, "a finished file was written again"
    assert report.resumed_files == len(kept)
    assert report.resumed_bytes == sum((output / name).stat().st_size for name in kept)
    assert len(whole) - len(kept) <= most_repeated
    return report


@pytest.mark.parametrize(
    ("point", "finished"),
    [
        ("merge.ledger.opened", 0), ("merge.shard.written", 0), ("merge.shard.synced", 0), ("merge.shard.recorded", 1),
        ("merge.ledger.removed", None),
    ],
)  # fmt: skip
def test_a_merge_killed_at_any_point_repeats_at_most_one_file(case: Case, tmp_path: Path, point: str, finished: int | None) -> None:  # R6.5
    child = start(case, tmp_path / "out", CKPTD_FAULT=point)
    child.communicate(timeout=120)
    assert child.returncode == -signal.SIGKILL, f"the point {point} was never reached"
    if finished is not None:
        assert len(noted(tmp_path / "out")) == finished
    # Once the ledger is gone the merge was done: only what follows it, the sealing, stands between this and a success.
    resume_and_check(case, tmp_path / "out", most_repeated=1 if finished is not None else len(case.shards))


def test_a_merge_killed_after_every_file_advances_by_one_file_each_time(case: Case, tmp_path: Path) -> None:  # R6.5
    for finished in range(1, len(case.shards) + 1):
        child = start(case, tmp_path / "out", CKPTD_FAULT="merge.shard.recorded")
        child.communicate(timeout=120)
        assert child.returncode == -signal.SIGKILL
        assert len(noted(tmp_path / "out")) == finished
    assert resume_and_check(case, tmp_path / "out").resumed_files == len(case.shards)


@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_merge_killed_at_random_times_ends_with_the_same_bytes(tmp_path: Path, rounds: int) -> None:  # R6.5
    single = models.make_base(tmp_path / "single", hidden_size=256, intermediate_size=1024, num_hidden_layers=6)
    case = make_case(tmp_path, shard(single, tmp_path / "base", "1MB"))
    seed = int(os.environ.get("CKPTD_TEST_SEED", str(time.time_ns())))
    print(f"CKPTD_TEST_SEED={seed}; an undisturbed merge took {case.seconds:.3f} s and makes {len(case.shards)} files")
    chance = random.Random(seed)
    for number in range(rounds):
        output = tmp_path / f"out-{number}"
        child = start(case, output)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0, 2 * case.seconds))
        child.kill()
        child.communicate(timeout=60)
        print(f"round {number}: {len(noted(output))} files were finished")
        done = child.returncode == 0 or not (output / ledger.LEDGER).exists()
        resume_and_check(case, output, most_repeated=len(case.shards) if done else 1)
        shutil.rmtree(output)


def test_a_merge_stopped_at_a_safe_point_keeps_its_files_and_its_progress(case: Case, tmp_path: Path) -> None:  # R6.1 R6.5
    output = case.interrupted(tmp_path / "out", 2)
    share = sum((output / name).stat().st_size for name in noted(output)) / sum((case.base / name).stat().st_size for name in case.shards)
    seen: list[tuple[float, str]] = []
    before = marks(output, noted(output))
    case.merge(output, progress=lambda fraction, message: seen.append((fraction, message)))
    assert marks(output, list(before)) == before
    assert digests(output) == case.digests
    merging = [fraction for fraction, message in seen if message.startswith("merging")]
    assert share < merging[0] and merging[-1] == 1.0
    assert [fraction for fraction, _ in seen] == sorted(fraction for fraction, _ in seen)


def flip(path: Path) -> None:
    """Another byte at the same size and the same times."""
    times = path.stat()
    with open(path, "r+b") as stream:
        stream.seek(-5, os.SEEK_END)
        byte = stream.read(1)[0]
        stream.seek(-5, os.SEEK_END)
        stream.write(bytes([byte ^ 0x10]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def into_link(path: Path) -> None:
    path.rename(path.parent / "elsewhere")
    path.symlink_to("elsewhere")


DAMAGES: dict[str, Callable[[Path], None]] = {
    "flipped": flip,
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 1),
    "missing": Path.unlink,
    "link": into_link,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_finished_file_that_was_damaged_since_is_made_again_and_no_other(case: Case, tmp_path: Path, damage: str) -> None:  # R1.5
    output = case.interrupted(tmp_path / "out", 3)
    first, second, third = noted(output)
    before = marks(output, [first, third])
    DAMAGES[damage](output / second)
    assert case.merge(output).resumed_files == 2
    assert digests(output) == case.digests
    assert marks(output, [first, third]) == before
    assert not (output / second).is_symlink()


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    value = json.loads(path.read_bytes())
    change(value)
    path.write_text(json.dumps(value))


LEDGERS: dict[str, Callable[[Path], None]] = {
    "torn": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "garbage": lambda path: path.write_bytes(bytes(range(256))) and None,
    "a list": lambda path: path.write_text("[1, 2]") and None,
    "newer": lambda path: edit(path, lambda value: value.update(version=value["version"] + 1)),
    "other engine": lambda path: edit(path, lambda value: value["made_for"].update(engine=0)),
    "other adapter": lambda path: edit(path, lambda value: value["made_for"]["adapters"][0].update({"adapter_config.json": "0"})),
    "wrong entry": lambda path: edit(path, lambda value: value["files"].update({"x.safetensors": 5})),
    "missing": Path.unlink,
}


@pytest.mark.parametrize("kind", LEDGERS)
def test_a_ledger_that_does_not_belong_here_makes_the_merge_begin_again(case: Case, tmp_path: Path, kind: str) -> None:
    output = case.interrupted(tmp_path / "out", 2)
    LEDGERS[kind](output / ledger.LEDGER)
    assert case.merge(output).resumed_files == 0
    assert digests(output) == case.digests


def test_a_ledger_cannot_name_files_outside_of_the_merge(case: Case, tmp_path: Path) -> None:
    output = case.interrupted(tmp_path / "out", 1)
    outside = tmp_path / "outside"
    outside.write_text("mine")
    entry = {"size": 4, "sha256": sha256_file(outside)}
    edit(output / ledger.LEDGER, lambda value: value["files"].update({"../outside": entry, "notes": entry}))
    (output / "notes").write_text("mine")
    assert case.merge(output).resumed_files == 1
    assert digests(output) == case.digests
    assert outside.read_text() == "mine"


@pytest.mark.parametrize("what", ["base", "adapter", "adapter's scale"])
def test_another_base_or_adapter_makes_the_merge_begin_again(case: Case, tmp_path: Path, what: str) -> None:
    base, adapter = shutil.copytree(case.base, tmp_path / "base"), shutil.copytree(case.adapter, tmp_path / "adapter")
    mine = Case(base, adapter, case.digests, case.seconds)
    output = mine.interrupted(tmp_path / "out", len(case.shards) - 1)
    if what == "base":
        flip_back = (base / case.shards[-1]).stat()
        helpers.rewrite(base / case.shards[-1], lambda table: [tensor.mul_(2) for tensor in table.values()])
        assert (base / case.shards[-1]).stat().st_size == flip_back.st_size
    elif what == "adapter":
        helpers.rewrite(adapter / "adapter_model.safetensors", lambda table: [tensor.mul_(2) for tensor in table.values()])
    else:
        helpers.edit_config(adapter, lora_alpha=5)
    report = mine.merge(output)
    assert report.resumed_files == 0
    (tmp_path / "fresh").mkdir()
    merge_adapter(adapter, base, tmp_path / "fresh")
    assert digests(output) == digests(tmp_path / "fresh") != case.digests


def test_another_dtype_of_the_output_makes_the_merge_begin_again(case: Case, tmp_path: Path) -> None:
    output = case.interrupted(tmp_path / "out", 2)
    assert case.merge(output, dtype="float32").resumed_files == 0
    (tmp_path / "fresh").mkdir()
    merge_adapter(case.adapter, case.base, tmp_path / "fresh", dtype="float32")
    assert digests(output) == digests(tmp_path / "fresh") != case.digests


def test_a_merge_into_files_of_another_size_goes_on_where_it_stopped(case: Case, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()

    def stop(fraction: float, message: str) -> None:
        if len(noted(output)) == 2:
            raise Stop

    with pytest.raises(Stop):
        case.merge(output, progress=stop, shard_bytes=100_000)
    assert case.merge(output, shard_bytes=100_000).resumed_files == 2
    (tmp_path / "fresh").mkdir()
    merge_adapter(case.adapter, case.base, tmp_path / "fresh", shard_bytes=100_000)
    assert digests(output) == digests(tmp_path / "fresh")


def test_a_base_that_changes_while_it_is_merged_is_noticed_and_nothing_of_it_is_kept(case: Case, tmp_path: Path) -> None:
    base, output = shutil.copytree(case.base, tmp_path / "base"), tmp_path / "out"
    output.mkdir()
    mine = Case(base, case.adapter, case.digests, case.seconds)

    def disturb(fraction: float, message: str) -> None:
        if len(noted(output)) == 2:
            os.utime(base / case.shards[2])

    with pytest.raises(Retryable, match="changed while it was read") as caught:
        mine.merge(output, progress=disturb)
    assert caught.value.fault.code == "base-changed"
    assert mine.merge(output).resumed_files == 0
    assert digests(output) == case.digests


def test_whatever_else_lies_in_the_folder_is_removed(case: Case, tmp_path: Path) -> None:
    output = case.interrupted(tmp_path / "out", 2)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("stays")
    (output / f".{ledger.LEDGER}.4711.tmp").write_text("{")
    (output / "tokenizer.json").write_text("{}")
    (output / "folder/deeper").mkdir(parents=True)
    (output / "folder/deeper/file").write_text("x")
    (output / "link").symlink_to(precious)
    assert case.merge(output).resumed_files == 2
    assert digests(output) == case.digests
    assert sorted(path.name for path in output.iterdir()) == sorted(case.digests)
    assert (precious / "file").read_text() == "stays"


def test_without_resume_a_folder_that_is_not_empty_is_refused_and_left_alone(case: Case, tmp_path: Path) -> None:
    output = case.interrupted(tmp_path / "out", 2)
    before = digests(output)
    with pytest.raises(Permanent, match="the output folder is not empty") as caught:
        merge_adapter(case.adapter, case.base, output)
    assert caught.value.fault.code == "output-not-empty"
    assert digests(output) == before


def test_a_disk_that_fills_up_between_two_files_costs_no_finished_one(case: Case, tmp_path: Path) -> None:  # R6.2 R6.5
    out = tmp_path / "out"
    out.mkdir()
    sizes = [(case.base / name).stat().st_size for name in case.shards]
    room = sum(-(-size // 4096) * 4096 for size in sizes[:3]) + 16384
    environment = {
        **os.environ, "PYTHON": sys.executable, "CHILD": CHILD, "ADAPTER": str(case.adapter), "BASE": str(case.base), "OUT": str(out),
        "ROOM": str(room),
    }  # fmt: skip
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    answer = subprocess.run(
        [*unshare, "bash", "-c", FULL_DISK], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    said = answer.stdout + answer.stderr
    assert "No space left on device" in answer.stderr and "first: 1\n" in answer.stdout, said
    resumed = answer.stdout.partition("first: 1\nready\n")[2].partition("\n")[0]
    assert resumed in ("2", "3") and "second: 0\n" in answer.stdout, said
    lines = answer.stdout.partition("second: 0\n")[2].splitlines()
    assert {line.split()[1].removeprefix("./"): line.split()[0] for line in lines} == case.digests


def run_stage(context: StageContext, **environment: str) -> int:
    """The stage as the daemon starts it; gives the exit code."""
    job = Path(context.result).with_name("job.json")
    job.write_text(context.model_dump_json())
    command = [sys.executable, "-m", "handlers", str(job)]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, timeout=120, check=False).returncode


def test_the_stage_goes_on_in_a_renamed_staging_folder_and_seals_no_hidden_file(case: Case, tmp_path: Path) -> None:  # R6.5
    first = helpers.context(tmp_path / "job", case.adapter, case.base)
    assert run_stage(first, CKPTD_FAULT="merge.shard.recorded") == -signal.SIGKILL
    before = marks(Path(first.staging), noted(Path(first.staging)))
    second = first.model_copy(update={"attempt": 2, "staging": str(tmp_path / "job/staging-2")})
    Path(first.staging).rename(second.staging)
    assert run_stage(second) == 0
    result = StageResult.model_validate_json(Path(second.result).read_bytes())
    assert {entry.path: entry.sha256 for entry in result.files} == case.digests == digests(Path(second.staging))
    assert (result.figures["resumed_files"], len(before)) == (1, 1)
    assert result.figures["resumed_bytes"] == (Path(second.staging) / next(iter(before))).stat().st_size
    assert marks(Path(second.staging), list(before)) == before


def test_a_stage_that_is_told_to_stop_ends_between_two_blocks_and_keeps_its_files(tmp_path: Path) -> None:  # R6.5
    single = models.make_base(tmp_path / "single", hidden_size=256, intermediate_size=1024, num_hidden_layers=6)
    case = make_case(tmp_path, shard(single, tmp_path / "base", "1MB"))
    context = helpers.context(tmp_path / "job", case.adapter, case.base)
    context = context.model_copy(update={"limits": ChildLimits(resumable=True, nice=0, idle=False)})
    job = tmp_path / "job/job.json"
    job.write_text(context.model_dump_json())
    child = subprocess.Popen([sys.executable, "-m", "handlers", str(job)], cwd=ROOT, stdout=subprocess.DEVNULL)
    while not noted(Path(context.staging)):
        assert child.poll() is None
        time.sleep(0.001)
    child.send_signal(signal.SIGSTOP)  # so that the merge can't end before it is told to
    child.send_signal(signal.SIGTERM)
    child.send_signal(signal.SIGCONT)
    assert child.wait(60) == 0
    result = StageResult.model_validate_json(Path(context.result).read_bytes())
    assert result.outcome is Outcome.INTERRUPTED
    assert 0 < resume_and_check(case, Path(context.staging)).resumed_files < len(case.shards)


def test_the_digests_that_a_merge_hands_on_are_those_of_its_files(case: Case, tmp_path: Path) -> None:
    report = case.merge(case.interrupted(tmp_path / "out", 2))
    assert report.digests == {name: case.digests[name] for name in case.shards}


def test_a_merge_by_peft_begins_again_in_an_emptied_folder(pico_base: Path, tmp_path: Path) -> None:
    adapter = helpers.make_adapter(pico_base, tmp_path / "adapter", init_lora_weights="olora")
    (tmp_path / "fresh").mkdir()
    merge_adapter(adapter, pico_base, tmp_path / "fresh")
    context = helpers.context(tmp_path / "job", adapter, pico_base)
    staging = Path(context.staging)
    for name in ("model-00001-of-00002.safetensors", "model.safetensors.index.json", ledger.LEDGER):
        (staging / name).write_text("half")
    output = stage.run(context, helpers.reporter())
    assert (output.strategy, output.figures["resumed_files"]) == ("peft", 0)
    assert digests(staging) == digests(tmp_path / "fresh")


def test_a_full_fine_tune_begins_again_without_touching_the_pin(pico_base: Path, tmp_path: Path) -> None:
    pin = shutil.copytree(pico_base, tmp_path / "pin")
    before = digests(pin)
    context = helpers.context(tmp_path / "job", pin, None, method="full")
    staging = Path(context.staging)
    os.link(pin / "model.safetensors", staging / "model.safetensors")  # as an interrupted attempt placed it
    (staging / "config.json").write_text("half")
    (staging / "pytorch_model.bin").write_text("half")
    output = stage.run(context, helpers.reporter())
    assert output.figures["resumed_files"] == 0
    assert sorted(digests(staging)) == ["config.json", "generation_config.json", "model.safetensors"]
    assert digests(pin) == before
    assert os.path.samefile(pin / "model.safetensors", staging / "model.safetensors")
