"""A wrong configuration is refused as a whole, by dotted path, with what would be right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.config.loading import load
from daemon.config.settings import Settings
from daemon.contract.errors import UsageError

Refusal = Callable[..., str]


def test_everything_that_is_wrong_is_said_in_one_error(refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:  # R5.4, R5.5
    monkeypatch.setenv("CKPTD_LIMITS__JOB", "2")
    monkeypatch.setenv("CKPTD_WOTCH", "x")
    said = refusal(
        '[watch]\nroot = ["/data/runs"]\nroots = ["/data/runs"]\ndepth = "deep"\n'
        '[wacth]\nx = 1\n'
        '[select]\npolicy = "every"\n'
        '[output]\ndirectory = "/data/runs/exports"\n'
        '[export]\nvariants = ["pytorch", "onxx"]\nopset = 11\n'
    )  # fmt: skip
    for expected in (
        "watch.root: is not a known key; did you mean 'roots'?",
        "watch.depth: ",
        "(it is 'deep')",
        "wacth: is not a known key; did you mean 'watch'?",
        "select.every: must be at least 1",
        "output.directory: /data/runs/exports lies inside the watched root /data/runs",
        "for example '/data/runs-exports'",
        "export.variants: there is no variant 'onxx'; did you mean 'onnx'?",
        "export.opset: ",
        "CKPTD_LIMITS__JOB (environment): names no setting; did you mean 'CKPTD_LIMITS__JOBS'?",
        "CKPTD_WOTCH (environment): names no setting; did you mean 'CKPTD_WATCH'?",
    ):
        assert expected in said


def test_a_wrong_item_of_a_list_does_not_hide_conflicts_elsewhere(refusal: Refusal) -> None:  # R5.4
    said = refusal('[notify]\non = ["won"]\n[select]\npolicy = "every"\n')
    assert "notify.on.0: " in said
    assert "select.every: " in said


def test_a_wrong_value_in_the_environment_does_not_hide_conflicts_in_the_file(
    refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:  # R5.4
    monkeypatch.setenv("EXPORT_QUANTIZATION_LEVEL", "int3")
    said = refusal('[select]\npolicy = "every"\n')
    assert "export.quantization: " in said
    assert "int8" in said
    assert "select.every: " in said


def test_an_unknown_limit_of_a_threshold_is_named_with_the_nearest_one(refusal: Refusal) -> None:  # R5.5
    said = refusal("[validate.thresholds.onnx]\nagrement = 0.9\n")
    assert "validate.thresholds.onnx.agrement: is not a known key; did you mean 'agreement'?" in said


def test_thresholds_of_an_unknown_variant_are_named_with_the_nearest_one(refusal: Refusal) -> None:  # R5.5
    said = refusal("[validate.thresholds.onnx-int9]\nagreement = 0.9\nkl = 1\nerror = 1\n")
    assert "validate.thresholds.onnx-int9: there is no such variant; did you mean 'onnx-int8'?" in said


@pytest.mark.parametrize("key", ["output", "state"])
@pytest.mark.parametrize("below", ["", "/deep/down"])
def test_nothing_of_ours_may_lie_inside_a_watched_root(refusal: Refusal, tmp_path: Path, key: str, below: str) -> None:  # R5.5
    root = tmp_path / "runs"
    said = refusal(f'[watch]\nroots = ["{root}"]\n[{key}]\ndirectory = "{root}{below}"\n')
    assert f"{key}.directory: {root}{below} lies inside the watched root {root}" in said
    assert f"for example '{root}-" in said


def test_what_is_suggested_instead_is_accepted(refusal: Refusal, loaded: Callable[..., Settings], tmp_path: Path) -> None:  # R5.5
    text = '[watch]\nroots = ["%s/runs"]\n[output]\ndirectory = "%s"\n'
    suggestion = refusal(text % (tmp_path, tmp_path / "runs" / "out")).split("for example '")[1].split("'")[0]
    assert loaded(text % (tmp_path, suggestion)).output.directory == Path(suggestion)


def test_a_way_into_a_root_through_a_symlink_is_refused_too(refusal: Refusal, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    assert "output.directory: " in refusal(f'[watch]\nroots = ["{tmp_path}/runs"]\n[output]\ndirectory = "{tmp_path}/link/exports"\n')


def test_a_folder_whose_name_only_begins_like_a_root_is_no_conflict(loaded: Callable[..., Settings], tmp_path: Path) -> None:
    settings = loaded(f'[watch]\nroots = ["{tmp_path}/runs"]\n[output]\ndirectory = "{tmp_path}/runs-exports"\n')
    assert settings.output.directory == tmp_path / "runs-exports"


@pytest.mark.parametrize(
    ("naming", "why"),
    [
        ("{run}", "must hold {run} and {step}"),
        ("step-{step}", "must hold {run} and {step}"),
        ("{run}/{stage}-{step}", "knows no {stage}; the fields are {run}, {step}, {identity}, {date}"),
        ("{run}/{step", "is not a naming pattern"),
        ("{run:d}/{step}", "is not a naming pattern"),
        ("{run}/{step!x}", "is not a naming pattern"),
        ("{run}/{step}/{variant}", "can't hold {variant}: an export holds all its variants, each in a folder of its name; leave it out"),
        ("/{run}/{step}", "must be a relative path"),
        ("../{run}/{step}", "must be a relative path"),
        ("{run}//{step}", "must be a relative path"),
        (".hidden/{run}/{step}", "must be a relative path"),
    ],
)
def test_a_naming_pattern_that_would_lose_exports_is_refused(refusal: Refusal, naming: str, why: str) -> None:  # R5.2, R5.5
    said = refusal(f'[output]\nnaming = "{naming}"\n')
    assert f"output.naming: {why}" in said
    assert "{run}" in said.split(why)[1] or "{run}" in why or "leave it out" in why


def test_naming_patterns_with_every_field_are_taken(loaded: Callable[..., Settings]) -> None:  # R5.2
    assert loaded('[output]\nnaming = "{date}/{run}/{step:06d}-{identity}"\n').output.naming == "{date}/{run}/{step:06d}-{identity}"
    every = "{model_name}/{run}-{epoch}-{metric}-{quantization}-{date}-{identity}/{step}"
    assert loaded(f'[output]\nnaming = "{every}"\n').output.naming == every


def test_a_daemon_without_a_root_is_refused_and_an_export_is_not(refusal: Refusal, loaded: Callable[..., Settings]) -> None:  # R5.4
    assert "watch.roots: is empty" in refusal("", need_roots=True)
    assert loaded("").watch.roots == ()


def test_nothing_left_to_make_is_refused(refusal: Refusal) -> None:  # R5.5
    assert "export.variants: nothing is left to make" in refusal('[export]\nvariants = ["onnx-int8"]\nquantization = "none"\n')


def test_a_file_that_is_missing_or_no_toml_or_no_utf8_ends_in_one_sentence(tmp_path: Path) -> None:  # R5.4
    file = tmp_path / "config.toml"
    said = []
    for content in (None, b"[watch\nroots = 1\n", b"\xff\xfe[watch]\n"):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(UsageError) as caught:
            load(file)
        said.append(str(caught.value))
    assert "there is no such file" in said[0]
    assert "it is not TOML: " in said[1]
    assert "line 1" in said[1]
    assert "UTF-8" in said[2]
    for sentence in said:
        assert sentence.startswith(f"Could not read the configuration ({file}): ")
        assert ". Fix: " in sentence
        assert "\n" not in sentence
