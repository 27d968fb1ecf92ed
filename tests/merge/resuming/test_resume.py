"""An interrupted merge goes on at the file where it stopped, and ends with the bytes of one that nothing disturbed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from daemon.contract.disk.files import sha256_file
from daemon.contract.jobs.messages import ChildLimits, Outcome, StageContext, StageResult
from handlers.merge import MergeReport, merge_adapter, stage
from handlers.merge.engine import resume_ledger
from tests import models
from tests.merge import helpers
from tests.merge.interrupted import ROOT, Case, Stop, digests, make_case, marks, noted, shard
from tests.sampling import some

CHILD = """
import sys
from pathlib import Path
import torch
from handlers.merge import Execution, merge_adapter
print("ready", flush=True)
print(merge_adapter(*(Path(one) for one in sys.argv[1:4]), execution=Execution(resume=True)).figures.resumed_files)
"""

FULL_DISK = """
set -u
mount -t tmpfs -o size="$ROOM" tmpfs "$OUT" || exit 99
"$PYTHON" -c "$CHILD" "$ADAPTER" "$BASE" "$OUT"; echo "first: $?"
mount -o remount,size=64m "$OUT"
"$PYTHON" -c "$CHILD" "$ADAPTER" "$BASE" "$OUT"; echo "second: $?"
cd "$OUT" && find . -type f | sort | xargs sha256sum
"""


def start(case: Case, output: Path, **environment: str) -> subprocess.Popen[str]:
    output.mkdir(exist_ok=True)
    command = [sys.executable, "-c", CHILD, str(case.adapter), str(case.base), str(output)]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)


def resume_and_check(case: Case, output: Path, *, most_repeated: int = 2) -> MergeReport:
    """Go on with a merge and hold it against the invariants: same bytes, whole files untouched, little repeated."""
    kept = noted(output)
    before = marks(output, kept)
    whole = [name for name in case.shards if (output / name).exists() and sha256_file(output / name) == case.digests[name]]
    report = case.merge(output)
    assert digests(output) == case.digests
    assert marks(output, kept) == before, "a finished file was written again"
    assert report.digests == {name: case.digests[name] for name in case.shards}
    assert report.figures.resumed_files == len(kept)
    assert report.figures.resumed_bytes == sum((output / name).stat().st_size for name in kept)
    assert len(whole) - len(kept) <= most_repeated
    return report


@pytest.mark.parametrize(
    ("point", "finished"),
    some(
        [
            ("merge.shard.written", 0), ("merge.ledger.opened", 0), ("merge.shard.recorded", 1), ("merge.shard.synced", 0),
            ("merge.ledger.removed", None),
        ],
        of=2,
    ),
)  # fmt: skip
def test_a_merge_killed_at_any_point_repeats_at_most_a_file_a_thread(
    case: Case, tmp_path: Path, point: str, finished: int | None
) -> None:  # R6.5
    child = start(case, tmp_path / "out", CKPTD_FAULT=point)
    child.communicate(timeout=120)
    assert child.returncode == -signal.SIGKILL, f"the point {point} was never reached"
    if finished is not None:
        assert len(noted(tmp_path / "out")) == finished
    # Once the ledger is gone the merge was done: only what follows it, the sealing, stands between this and a success.
    resume_and_check(case, tmp_path / "out", most_repeated=2 if finished is not None else len(case.shards))


@pytest.mark.slow
def test_a_merge_killed_after_every_file_advances_by_one_file_each_time(case: Case, tmp_path: Path) -> None:  # R6.5
    for finished in range(1, len(case.shards) + 1):
        child = start(case, tmp_path / "out", CKPTD_FAULT="merge.shard.recorded")
        child.communicate(timeout=120)
        assert child.returncode == -signal.SIGKILL
        assert len(noted(tmp_path / "out")) == finished
    assert resume_and_check(case, tmp_path / "out").figures.resumed_files == len(case.shards)


@pytest.mark.slow
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
        done = child.returncode == 0 or not (output / resume_ledger.LEDGER).exists()
        resume_and_check(case, output, most_repeated=len(case.shards) if done else 2)
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


def test_a_merge_that_fails_in_the_middle_leaves_no_file_open(case: Case, tmp_path: Path) -> None:
    def fail(fraction: float, message: str) -> None:
        if fraction > 0.3:
            raise Stop

    (tmp_path / "out").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(Stop):
            case.merge(tmp_path / "out", progress=fail)
    assert len(os.listdir("/proc/self/fd")) == before
    assert resume_and_check(case, tmp_path / "out").figures.resumed_files < len(case.shards)


@pytest.mark.slow
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


@pytest.mark.slow
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
    assert 0 < resume_and_check(case, Path(context.staging)).figures.resumed_files < len(case.shards)


def test_a_merge_by_peft_begins_again_in_an_emptied_folder(pico_base: Path, tmp_path: Path) -> None:
    adapter = helpers.make_adapter(pico_base, tmp_path / "adapter", init_lora_weights="olora")
    (tmp_path / "fresh").mkdir()
    merge_adapter(adapter, pico_base, tmp_path / "fresh")
    context = helpers.context(tmp_path / "job", adapter, pico_base)
    staging = Path(context.staging)
    for name in ("model-00001-of-00002.safetensors", "model.safetensors.index.json", resume_ledger.LEDGER):
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
