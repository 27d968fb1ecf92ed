"""Where a value comes from: environment over short names over the file over the defaults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.config.loading import load
from daemon.config.settings import Settings

Loaded = Callable[..., Settings]


def test_a_ckptd_variable_overrides_the_file_and_leaves_its_neighbours(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:  # R5.6
    monkeypatch.setenv("CKPTD_LIMITS__JOBS", "3")
    settings = loaded("[limits]\njobs = 2\nattempts = 7\n")
    assert (settings.limits.jobs, settings.limits.attempts) == (3, 7)


@pytest.mark.parametrize("written", ["onnx, pytorch", '["onnx", "pytorch"]'])
def test_a_list_in_the_environment_may_be_json_or_parts_between_commas(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:  # R5.3, R5.6
    monkeypatch.setenv("CKPTD_EXPORT__VARIANTS", written)
    assert loaded("").export.variants == ("onnx", "pytorch")
    assert loaded("").variants == ("pytorch", "onnx")


def test_the_short_names_set_what_they_name(loaded: Loaded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # R5.1, R5.2, R5.6
    monkeypatch.setenv("EXPORT_OUTPUT_DIR", str(tmp_path / "out"))
    monkeypatch.setenv("EXPORT_QUANTIZATION_LEVEL", "INT8")
    monkeypatch.setenv("EXPORT_LOG_LEVEL", "DEBUG")
    settings = loaded('[export]\nvariants = ["onnx"]\nopset = 20\n')
    assert settings.output.directory == tmp_path / "out"
    assert settings.variants == ("onnx", "onnx-int8")
    assert settings.export.opset == 20
    assert settings.log.level == "debug"


@pytest.mark.parametrize(("level", "variants"), [("none", ("pytorch", "onnx")), ("int8", ("pytorch", "onnx", "onnx-int8"))])
def test_the_quantization_level_drops_or_adds_the_quantized_forms(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch, level: str, variants: tuple[str, ...]
) -> None:  # R2.1, R5.1
    monkeypatch.setenv("EXPORT_QUANTIZATION_LEVEL", level)
    assert loaded("").variants == variants


@pytest.mark.parametrize("no", ["false", "0", "no", "OFF"])
def test_enable_onnx_false_leaves_no_onnx_variant(loaded: Loaded, monkeypatch: pytest.MonkeyPatch, no: str) -> None:  # R5.6
    monkeypatch.setenv("EXPORT_ENABLE_ONNX", no)
    assert loaded("").variants == ("pytorch",)


@pytest.mark.parametrize("yes", ["true", "1", "Yes"])
def test_enable_onnx_true_adds_onnx_to_a_file_that_has_none(loaded: Loaded, monkeypatch: pytest.MonkeyPatch, yes: str) -> None:  # R5.6
    monkeypatch.setenv("EXPORT_ENABLE_ONNX", yes)
    variants = loaded('[export]\nvariants = ["pytorch"]\n').variants
    assert {"pytorch", "onnx"} <= set(variants)


def test_a_word_that_is_neither_yes_nor_no_is_refused_rather_than_taken_for_no(
    refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:  # R5.4
    monkeypatch.setenv("EXPORT_ENABLE_ONNX", "ture")
    assert "EXPORT_ENABLE_ONNX" in refusal("")


def test_ckptd_variables_win_over_short_names_and_these_over_the_file(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:  # R5.6
    monkeypatch.setenv("EXPORT_LOG_LEVEL", "warning")
    text = '[log]\nlevel = "debug"\nkeep = 2\n'
    assert loaded(text).log.level == "warning"
    monkeypatch.setenv("CKPTD_LOG__LEVEL", "error")
    assert (loaded(text).log.level, loaded(text).log.keep) == ("error", 2)


def test_an_empty_short_name_changes_nothing(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EXPORT_OUTPUT_DIR", "EXPORT_QUANTIZATION_LEVEL", "EXPORT_ENABLE_ONNX", "EXPORT_LOG_LEVEL"):
        monkeypatch.setenv(name, "")
    assert loaded('[log]\nlevel = "error"\n').log.level == "error"


def test_relative_paths_are_relative_to_the_file_and_the_home_is_expanded(loaded: Loaded, tmp_path: Path) -> None:  # R5.2
    settings = loaded(
        '[watch]\nroots = ["../runs", "~/runs"]\n[output]\ndirectory = "out"\n[state]\ndirectory = "../state"\n'
        '[base]\nsearch = ["bases"]\nmap = { "a/b" = "../b" }\n'
    )
    assert settings.watch.roots == (tmp_path / "runs", Path.home() / "runs")
    assert settings.output.directory == tmp_path / "etc" / "out"
    assert settings.state_directory == tmp_path / "state"
    assert settings.base.search == (tmp_path / "etc" / "bases",)
    assert settings.base.map == {"a/b": tmp_path / "b"}


def test_without_a_file_paths_are_relative_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load().output.directory == tmp_path / "exports"


def test_thresholds_that_name_one_limit_keep_the_defaults_of_the_rest(loaded: Loaded) -> None:  # R2.4, R5.1
    defaults = Settings().validate.thresholds
    thresholds = loaded("[validate.thresholds.onnx-int8]\nkl = 0.5\n").validate.thresholds
    assert thresholds["onnx-int8"] == defaults["onnx-int8"].model_copy(update={"kl": 0.5})
    assert {name: limits for name, limits in thresholds.items() if name != "onnx-int8"} == {
        name: limits for name, limits in defaults.items() if name != "onnx-int8"
    }


def test_the_state_directory_of_systemd_is_used_unless_the_file_names_one(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", f"{tmp_path}/a:{tmp_path}/b")
    assert loaded("").state_directory == tmp_path / "a"
    assert loaded('[state]\ndirectory = "/x"\n').state_directory == Path("/x")
