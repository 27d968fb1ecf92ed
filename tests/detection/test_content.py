"""What a directory is, its files say: whatever holds an adapter or a trained model is found, at any depth and under any name."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from daemon.checkpoints.files import fingerprint
from daemon.checkpoints.inspection import inspect
from daemon.watching import scan
from daemon.watching.scan import Scanner, ScanRules
from tests.detection.bench import Bench
from tests.detection.helpers import below, fail, passed_over, plain_adapter

ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
MODEL = ("config.json", "model.safetensors")
TRAINED = (*MODEL, "trainer_state.json")


def make(root: Path, tree: dict[str, tuple[str, ...]]) -> None:
    """Directories with empty files of these names."""
    for folder, files in tree.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for file in files:
            (root / folder / file).touch()


TREES = {
    "LLaMA-Factory": ({"saves/Qwen3-0.6B/lora/run/checkpoint-4": (), "saves/Qwen3-0.6B/lora/run": (*ADAPTER, "training_args.bin")},
                      ["saves/Qwen3-0.6B/lora/run", "saves/Qwen3-0.6B/lora/run/checkpoint-4"]),
    "Unsloth": ({"outputs/checkpoint-60": ADAPTER, "lora_model": (*ADAPTER, "tokenizer.json", "README.md")},
                ["lora_model", "outputs/checkpoint-60"]),
    "Lightning, directories": ({"logs/version_0/checkpoints/epoch=0-step=6": ADAPTER}, ["logs/version_0/checkpoints/epoch=0-step=6"]),
    "Lightning, files": ({"lightning_logs/version_0/checkpoints": ("epoch=0-step=6.ckpt",)}, ["lightning_logs/version_0/checkpoints"]),
    "torchtitan": ({"outputs/checkpoint/step-10": (".metadata", "__0_0.distcp")}, ["outputs/checkpoint/step-10"]),
    "axolotl": ({"model-out/checkpoint-16": ADAPTER, "model-out": (*ADAPTER, "config.json"), "model-out/merged": MODEL},
                ["model-out", "model-out/checkpoint-16", "model-out/merged"]),
    "a trainer's own names": ({"exp/ckpts/best_model": TRAINED, "exp/ckpts/after-epoch-3": ("adapter_model.bin", "adapter_config.json")},
                              ["exp/ckpts/after-epoch-3", "exp/ckpts/best_model"]),
    "ten levels down": ({"a/b/c/d/e/f/g/h/i/run/checkpoint-1": ()}, ["a/b/c/d/e/f/g/h/i/run/checkpoint-1"]),
}  # fmt: skip


@pytest.mark.parametrize("trainer", TREES)
def test_what_trainers_leave_is_found_whatever_it_is_called(tmp_path: Path, trainer: str) -> None:  # R1.1
    tree, expected = TREES[trainer]
    make(tmp_path, tree)
    assert below(tmp_path) == expected
    assert passed_over(tmp_path) == []


def test_a_base_model_is_seen_and_taken_only_where_a_training_wrote_it_or_all_are_wanted(tmp_path: Path) -> None:
    make(tmp_path, {"models/qwen": MODEL, "models/sharded": ("config.json", "model.safetensors.index.json"), "run/checkpoint-4": ()})
    assert below(tmp_path) == ["run/checkpoint-4"]
    assert passed_over(tmp_path) == ["models/qwen", "models/sharded"]
    assert below(tmp_path, models="all") == ["models/qwen", "models/sharded", "run/checkpoint-4"]
    make(tmp_path, {"models/qwen": ("training_args.bin",)})
    assert below(tmp_path) == ["models/qwen", "run/checkpoint-4"]


def test_what_is_ckptds_own_is_no_training(tmp_path: Path) -> None:
    make(tmp_path, {
        "exports/run/step-4": ("MANIFEST.json", "report.json"), "exports/run/step-4/pytorch": (*MODEL, "trainer_state.json"),
        "state": ("journal.sqlite3",), "state/pins/job-1": ADAPTER, "mine/pins/job-1": ADAPTER, "run/ref": ADAPTER,
        "ckptd-pins-0f/job-1": ADAPTER, "run/checkpoint-4": (),
    })  # fmt: skip
    assert below(tmp_path, ours=frozenset({str(tmp_path / "mine")})) == ["run/checkpoint-4"]
    assert passed_over(tmp_path) == []


def test_a_cache_of_a_hub_whose_files_are_links_is_no_checkpoint(tmp_path: Path) -> None:
    make(tmp_path, {"hub/models--a--b/blobs": ("1", "2"), "hub/models--a--b/snapshots/0f": (), "run/checkpoint-4": ()})
    for name, blob in (("adapter_config.json", "1"), ("adapter_model.safetensors", "2"), ("model.safetensors", "2")):
        (tmp_path / "hub/models--a--b/snapshots/0f" / name).symlink_to(f"../../blobs/{blob}")
    assert below(tmp_path) == ["run/checkpoint-4"] and passed_over(tmp_path) == []
    snapshot = tmp_path / "hub/models--a--b/snapshots/0f"
    assert Scanner().checkpoint_of(tmp_path, f"{snapshot}/adapter_config.json") is None
    assert "links are not read" in (Scanner().why_not(tmp_path, snapshot) or "")


def test_many_models_side_by_side_cost_one_look_at_what_is_around_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, {f"models/m{number}": MODEL for number in range(20)})
    listed: list[str] = []
    original = os.scandir
    monkeypatch.setattr(scan.os, "scandir", lambda path: (listed.append(str(path)), original(path))[1])
    assert len(passed_over(tmp_path)) == 20
    assert listed.count(str(tmp_path / "models")) == 2


def test_a_foreign_manifest_hides_nothing(tmp_path: Path) -> None:
    make(tmp_path, {"team": ("MANIFEST.json",), "team/run/final": ADAPTER})
    assert below(tmp_path) == ["team/run/final"]


def test_a_directory_of_many_entries_is_listed_again_only_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, {"data/set": tuple(f"{number}.txt" for number in range(scan.WIDE)), "run/checkpoint-1": ()})
    listed: list[str] = []
    now = [1000.0]
    original = os.scandir
    monkeypatch.setattr(scan.os, "scandir", lambda path: (listed.append(str(path)), original(path))[1])
    monkeypatch.setattr(scan.time, "monotonic", lambda: now[0])
    scanner = Scanner()

    def walk(seconds: float = 10.0) -> tuple[bool, list[str]]:
        listed.clear()
        now[0] += seconds
        found = [str(one.path.relative_to(tmp_path)) for one in scanner.find(tmp_path, fail)]
        return str(tmp_path / "data" / "set") in listed, found

    assert walk() == (True, ["run/checkpoint-1"])
    assert walk(0.5) == (True, ["run/checkpoint-1"]), "two changes within seconds may have one time"
    assert walk() == (True, ["run/checkpoint-1"])
    assert walk() == (False, ["run/checkpoint-1"])
    make(tmp_path, {"data/set/checkpoint-7": ()})
    assert walk() == (True, ["run/checkpoint-1", "data/set/checkpoint-7"])
    make(tmp_path, {"data/set": ADAPTER})
    assert walk()[1] == ["run/checkpoint-1", "data/set", "data/set/checkpoint-7"]


def test_a_walk_that_meets_its_bound_leaves_out_the_deepest_and_says_so(tmp_path: Path) -> None:
    make(
        tmp_path,
        {"run/checkpoint-1": (), "far/down/data": tuple(f"{number}.bin" for number in range(50)), "far/down/data/more/run/final": ADAPTER},
    )
    scanner = Scanner(most_entries=30)
    assert [str(one.path.relative_to(tmp_path)) for one in scanner.find(tmp_path, fail)] == ["run/checkpoint-1"]
    assert "are not scanned" in scanner.left_out and "watch.roots" in scanner.left_out
    scanner.most_entries = 1000
    assert len(list(scanner.find(tmp_path, fail))) == 2 and scanner.left_out == ""
    scanner.most_seconds = -1.0
    assert list(scanner.find(tmp_path, fail)) == [] and scanner.left_out != ""


def test_what_is_seen_and_not_watched_is_said_once_and_stands_in_the_trackers_list(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    make(bench.root, {"models/base": MODEL})
    for number in range(3):
        bench.tracker.scan(bench.root, time.monotonic() + number)
    (why,) = bench.tracker.listing.passed_over.values()
    assert list(bench.tracker.listing.passed_over) == [bench.root / "models" / "base"]
    assert 'set watch.models = "all"' in why
    make(bench.root, {"models/base": ("trainer_state.json",)})
    bench.tracker.scan(bench.root, time.monotonic())
    assert bench.tracker.listing.passed_over == {}


def test_a_refused_layout_that_is_gone_is_listed_no_longer(bench: Bench) -> None:
    make(bench.root, {"run/step-10": ("lit_model.pth",)})
    now = time.monotonic()
    for seconds in range(0, 40, 4):
        bench.tracker.scan(bench.root, now + seconds)
        bench.tracker.look_at_due(now + seconds)
    (why,) = bench.tracker.listing.passed_over.values()
    assert "litgpt" in why
    shutil.rmtree(bench.root / "run" / "step-10")
    bench.tracker.scan(bench.root, now + 60)
    assert bench.tracker.listing.passed_over == {}


def test_a_refused_layout_is_listed_again_by_the_first_scan_after_a_start_and_not_said_again(bench: Bench) -> None:
    make(bench.root, {"run/step-10": ("lit_model.pth",)})
    bench.pass_time(60)
    (listed,) = bench.tracker.listing.passed_over.items()
    bench.restart()
    with capture_logs() as logs:
        bench.pass_time(10)
    assert list(bench.tracker.listing.passed_over.items()) == [listed]
    assert logs == []
    shutil.rmtree(bench.root / "run" / "step-10")
    bench.pass_time(5)
    assert bench.tracker.listing.passed_over == {}


@pytest.mark.parametrize(
    ("path", "rules", "why"),
    [
        ("run/checkpoint-4", {}, None),
        ("a/b/c/run/final", {}, None),
        ("a/b/c/run/final", {"depth": 4}, "more than watch.depth = 4"),
        ("run/checkpoint-4/checkpoint-5", {}, "inside the checkpoint"),
        (".cache/run/final", {}, "hidden or temporary name"),
        ("linked/checkpoint-4", {}, "is a link"),
        ("models/base", {}, "no file there shows that a training wrote it"),
        ("models/base", {"models": "all"}, None),
        ("exports/run/step-4/pytorch", {}, "an export or the state of ckptd"),
        ("run", {}, "contains no adapter and no model"),
    ],
)
def test_the_reason_why_a_scan_does_not_come_to_a_directory_is_the_true_one(
    tmp_path: Path, path: str, rules: dict[str, object], why: str | None
) -> None:
    make(tmp_path, {
        "run/checkpoint-4/checkpoint-5": ADAPTER, "a/b/c/run/final": ADAPTER, ".cache/run/final": ADAPTER, "models/base": MODEL,
        "exports/run/step-4": ("MANIFEST.json", "report.json"), "exports/run/step-4/pytorch": TRAINED,
    })  # fmt: skip
    (tmp_path / "linked").symlink_to("run")
    said = Scanner(ScanRules(**rules)).why_not(tmp_path, tmp_path / path)  # type: ignore[arg-type]
    assert (said is None) == (why is None) and (why or "") in (said or "")
    assert (path in below(tmp_path, **rules)) == (said is None)


NAMES = st.sampled_from(["run", "checkpoint-4", "step-2", "final", "data", "lora_model", "ref", ".hidden", "tmp-x", "epoch=0-step=6"])
FILES = st.sampled_from([(), ADAPTER, MODEL, TRAINED, ("a.ckpt",), (".metadata", "__0_0.distcp"), ("MANIFEST.json", "report.json"),
                         ("adapter_config.json",), ("model-00001-of-00002.safetensors",), ("training_args.bin",)])  # fmt: skip


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=st.dictionaries(st.lists(NAMES, min_size=1, max_size=4).map("/".join), FILES, max_size=6), depth=st.sampled_from([0, 2, 3]))
def test_scans_events_and_explanations_agree_on_every_tree(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[str, tuple[str, ...]], depth: int
) -> None:
    root = tmp_path_factory.mktemp("tree")
    make(root, tree)
    scanner = Scanner(ScanRules(depth=depth))
    taken = {one.path for one in scanner.find(root, fail) if not one.passed_over}
    for folder, _, files in os.walk(root):
        path = Path(folder)
        assert (scanner.why_not(root, path) is None) == (path in taken), path
        for file in files:
            found = scanner.checkpoint_of(root, os.path.join(folder, file))
            if found is not None and scanner.would_find(root, found):
                assert found in taken, f"an event of {path / file} finds {found}, which no scan does"
        around = scanner.checkpoint_of(root, f"{folder}/") if path != root else None
        if path in taken:
            assert around == path or any(scanner.checkpoint_of(root, os.path.join(folder, file)) == path for file in files), path


def test_the_step_of_a_checkpoint_comes_from_its_state_else_from_its_name(tmp_path: Path) -> None:
    make(tmp_path, {"logs/epoch=0-step=6": ("adapter_config.json",), "lora_model": ("adapter_config.json",)})
    (tmp_path / "lora_model" / "trainer_state.json").write_text('{"global_step": 12}')
    assert inspect(tmp_path / "logs" / "epoch=0-step=6").step == 6
    assert inspect(tmp_path / "lora_model").step == 12


def test_a_config_that_is_put_into_the_run_later_makes_a_model_in_pieces_be_looked_at_again(tmp_path: Path) -> None:
    checkpoint = tmp_path / "run" / "step-4"
    make(tmp_path, {"run/step-4": (".metadata", "__0_0.distcp")})
    before = fingerprint(checkpoint)
    (tmp_path / "run" / "config.json").write_text("{}")
    later = fingerprint(checkpoint)
    assert later != before and later == fingerprint(checkpoint)
    (checkpoint / "config.json").write_text("{}")
    assert not any(name.startswith("../") for name, *_ in fingerprint(checkpoint)), "its own comes first"


def test_the_last_adapter_under_several_names_is_one_export_and_the_log_names_the_copies(bench: Bench, pico_checkpoint: Path) -> None:
    run = bench.root / "run"
    for name in ("epoch=0-step=6", "best", "final", "last"):
        plain_adapter(pico_checkpoint, run / name)
    plain_adapter(pico_checkpoint, bench.root / "other" / "final")
    with capture_logs() as said:
        bench.pass_time(60.0)
    assert sorted(str(Path(job.checkpoint.path).parent.relative_to(bench.root)) for job in bench.jobs()) == ["other", "run"]
    (ours,) = (Path(job.checkpoint.path).name for job in bench.jobs() if Path(job.checkpoint.path).parent == run)
    copies = {Path(entry["path"]).name: Path(entry["of"]).name for entry in said if entry["event"] == "a copy"}
    same_step = {"epoch=0-step=6", "final"} - {ours}
    assert copies.keys() | same_step >= {"epoch=0-step=6", "best", "final", "last"} - {ours} and set(copies.values()) == {ours}
