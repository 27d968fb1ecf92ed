"""Where a value comes from: environment over short names over the file over the defaults."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel
from pydantic_settings import BaseSettings, SettingsConfigDict

from daemon.config.environment import ListFriendlyEnv
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
    text = '[log]\nlevel = "debug"\nformat = "json"\n'
    assert loaded(text).log.level == "warning"
    monkeypatch.setenv("CKPTD_LOG__LEVEL", "error")
    assert (loaded(text).log.level, loaded(text).log.format) == ("error", "json")


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


def test_texts_to_compare_on_are_relative_to_the_file_too(loaded: Loaded, tmp_path: Path) -> None:
    """Stages run in another working directory than the command line: a path left relative is another file for each."""
    validate = loaded('[validate]\nprompts = "texts/held out.jsonl"\ndata = "~/set"\n').work.validation
    assert (validate.prompts, validate.data) == (str(tmp_path / "etc" / "texts" / "held out.jsonl"), str(Path.home() / "set"))
    assert loaded('[validate]\nprompts = ""\ndata = "/data/set"\n').work.validation.data == "/data/set"
    assert loaded("").work.validation.prompts == ""


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


def spelled(value: Any) -> str:
    """A setting's value as a person writes it into an environment variable."""
    if isinstance(value, BaseModel | dict | tuple):
        return json.dumps(value, default=lambda one: one.model_dump() if hasattr(one, "model_dump") else str(one))
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


KEYS = [(section, key) for section, inner in Settings() if isinstance(inner, BaseModel) for key in type(inner).model_fields]


def test_all_keys_together_take_their_defaults_from_their_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = load()
    for section, key in KEYS:
        monkeypatch.setenv(f"CKPTD_{section}__{key}".upper(), spelled(getattr(getattr(defaults, section), key)))
    assert load().model_dump() == defaults.model_dump()


def choices(annotation: Any) -> Iterator[Any]:
    """The members of every Literal in a type."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        yield from (member for part in get_args(annotation) for member in choices(part))


def test_every_choice_of_a_key_can_be_written_into_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    members = {
        (section, key): [*choices(type(inner).model_fields[key].annotation)]
        for section, inner in Settings() if isinstance(inner, BaseModel) for key in type(inner).model_fields
    }  # fmt: skip
    for number in range(max(map(len, members.values()))):
        chosen = {name: several[number % len(several)] for name, several in members.items() if several}
        for (section, key), member in chosen.items():
            monkeypatch.setenv(f"CKPTD_{section}__{key}".upper(), str(member))
        settings = Settings()
        for (section, key), member in chosen.items():
            assert getattr(getattr(settings, section), key) in (member, (member,)), (section, key)


class Numbers(BaseModel):
    """Kinds of keys that no section has today."""

    either: Literal["auto"] | Literal[1, 2] | None = None
    several: tuple[Literal[8, 16], ...] = ()
    named: dict[str, Literal[3, 4]] = {}
    digits: Literal["1", "2"] = "1"
    mixed: Annotated[Literal["1"] | int, "a text before a number"] = 0


class Other(BaseSettings):
    """Settings with such keys."""

    model_config = SettingsConfigDict(env_prefix="CKPTD_", env_nested_delimiter="__")
    numbers: Numbers = Numbers()


def test_a_choice_of_numbers_is_read_from_a_variable_wherever_it_stands_in_a_type(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"EITHER": "2", "SEVERAL": "8, 16", "NAMED__A": "4", "DIGITS": "2", "MIXED": "1"}
    for name, value in values.items():
        monkeypatch.setenv(f"CKPTD_NUMBERS__{name}", value)
    found = Numbers.model_validate(ListFriendlyEnv(Other)()["numbers"])
    assert (found.either, found.several, found.named, found.digits) == (2, (8, 16), {"a": 4}, "2")
    assert found.mixed == "1"


def test_a_number_that_is_no_choice_is_refused_with_the_choices(refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTD_ONNX__BLOCK_SIZE", "48")
    assert "CKPTD_ONNX__BLOCK_SIZE (environment) for onnx.block_size: must be 16, 32, 64 or 128 (it is '48')" in refusal("")


def test_a_wrong_value_of_a_variable_is_reported_as_the_variables_and_not_as_the_files(
    refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ckptd_watch__depth", "deep")
    said = refusal("[watch]\nsettle_seconds = 1\n")
    assert "\n  ckptd_watch__depth (environment) for watch.depth: must be a whole number" in said
    assert str(tmp_path) not in said and "change those values" in said


def test_beside_it_what_is_wrong_in_the_file_stays_the_files(
    refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CKPTD_WATCH__DEPTH", "deep")
    monkeypatch.setenv("CKPTD_LIMITS", '{"jobs": 0}')
    said = refusal("[watch]\nsettle_seconds = -1\n[limits]\nattempts = 0\n")
    assert "\n  watch.settle_seconds: " in said and "\n  limits.attempts: " in said
    assert "\n  CKPTD_LIMITS (environment) for limits.jobs: " in said
    assert str(tmp_path / "etc" / "config.toml") in said and "change those keys" in said


@pytest.mark.parametrize(
    ("variable", "value", "key"),
    [
        ("EXPORT_QUANTIZATION_LEVEL", "int3", "export.quantization"),
        ("EXPORT_LOG_LEVEL", "loud", "log.level"),
        ("CKPTD_EXPORT__VARIANTS", "tensorflow", "export.variants"),
        ("CKPTD_VALIDATE__THRESHOLDS__ONNX__KL", "-1", "validate.thresholds.onnx.kl"),
        ("CKPTD_NOTIFY__ON", "succeeded,sometimes", "notify.on.1"),
    ],
)
def test_every_way_to_set_a_key_is_named_when_its_value_is_wrong(
    refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch, variable: str, value: str, key: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert f"\n  {variable} (environment) for {key}: " in refusal("")


def test_a_short_name_that_a_longer_one_overrides_is_not_blamed(refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPORT_LOG_LEVEL", "debug")
    monkeypatch.setenv("CKPTD_LOG__LEVEL", "loud")
    assert "CKPTD_LOG__LEVEL (environment) for log.level: " in refusal("")


def test_settings_with_other_values_have_other_work() -> None:
    settings = Settings(export={"opset": 18})  # type: ignore[arg-type]
    before = settings.work
    assert settings.work is before, "it is worked out once"
    changed = settings.model_copy(update={"export": settings.export.model_copy(update={"opset": 19})})
    assert (changed.work.export.opset, settings.work.export.opset) == (19, 18) and changed.work.digest != before.digest
