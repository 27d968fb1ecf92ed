"""A wrong configuration is refused as a whole, by dotted path, with what would be right."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from daemon.cli import common
from daemon.cli.main import app, exit_code_of, main
from daemon.config.loading import load
from daemon.config.settings import Settings
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.system.lock import locked

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


def test_a_long_text_of_a_few_tokens_is_refused(refusal: Refusal) -> None:
    assert "validate.long_tokens: write 0 for no long text, or at least 16" in refusal("[validate]\nlong_tokens = 15\n")


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("state_directory", "directory' in [state]"), ('"state.directory"', "directory' in [state]"),
        ("output-directory", "directory' in [output]"),
        ("limits_threads", "threads' in [limits]"), ("limitsThreads", "threads' in [limits]"), ("watch_roots", "roots' in [watch]"),
    ],
)  # fmt: skip
def test_a_key_that_names_its_section_too_is_answered_with_both(key: str, meant: str, refusal: Refusal) -> None:
    assert f"is not a known key; did you mean '{meant}?" in refusal(f'{key} = "x"\n')


def test_a_dotted_key_in_the_wrong_section_is_answered_with_its_own_section(refusal: Refusal) -> None:
    said = refusal('[base]\nsearch = ["/models"]\n[metrics]\nbase.map."org/name" = "/models/name"\n')
    assert "metrics.base: is not a known key; [base] is a section of its own: write 'map' below that line" in said


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("watch.settle_seconds", "a number"), ("limits.jobs", "a whole number"), ("output.kept_size", "a size"),
        ("merge.weight", "a number"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", ["true", "false"])
def test_true_and_false_are_no_numbers(refusal: Refusal, key: str, kind: str, value: str) -> None:
    assert f"{key}: must be {kind}; for example " in refusal(f"{key} = {value}\n")


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


def _floats(values: Mapping[str, object], path: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _floats(value, f"{path}{key}.")
        elif isinstance(value, float):
            yield path + key


FLOATS = [*_floats(Settings().model_dump()), "validate.thresholds.onnx.kl"]


@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
def test_a_number_that_json_does_not_have_is_refused(refusal: Refusal, value: str) -> None:  # R5.5
    for share in (True, False):  # a share has a range of its own, and what else is wrong is looked for afterwards
        keys = [key for key in FLOATS if key.endswith(".agreement") is share]
        for some in (keys[first : first + 20] for first in range(0, len(keys), 20)):
            said = refusal("".join(f"{key} = {value}\n" for key in some))
            assert [key for key in some if f"\n  {key}: " not in said] == []


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


WRONG = ('"x"', "-1", "1.5", "true", "[1]", "{ x = 1 }", "2026-01-31", "nan", "[{ y = [] }]", "99999999999")
JARGON = ("input should", "parse", "tuple", "instance", "a valid", "dictionary", "pydantic", "errno", "codec")


@pytest.mark.parametrize("value", WRONG)
def test_no_wrong_value_is_refused_in_the_words_of_a_library(write: Callable[[str], Path], value: str) -> None:
    keys = {name: getattr(field.annotation, "model_fields", {}) for name, field in Settings.model_fields.items()}
    sections = "".join(f"{name} = {value}\n" for name in keys)
    each = ""
    for name in filter(keys.get, keys):
        each += f"[{name}]\n" + "".join(f"{key} = {value}\n" for key in keys[name])
    for text in (sections, each):
        with pytest.raises(UsageError) as caught:
            load(write(text))
        lines = str(caught.value).splitlines()[1:]
        assert len(lines) >= 10
        assert not [line for line in lines if any(word in re.sub(r"\(it is .*\)", "", line).lower() for word in JARGON)]


@pytest.mark.parametrize("value", ["5", '"/a"', "[5]", "{ a = 1 }", "true"])
def test_a_key_of_the_wrong_type_is_one_mistake_and_not_also_empty(refusal: Refusal, value: str) -> None:
    """Conflicts are looked for with its default in its place, of which nothing is to be said."""
    said = refusal(f"[watch]\nroots = {value}\n[select]\nevery = 'x'\npolicy = 'every'\n", need_roots=True)
    assert "2 things are wrong" in said and "is empty" not in said and "must be at least 1" not in said


def test_a_list_that_is_no_list_is_shown_as_one(refusal: Refusal) -> None:
    assert "watch.roots: must be a list in square brackets: [\"/x\"] (it is '/x')" in refusal('[watch]\nroots = "/x"\n')
    assert "limits.jobs: must be a whole number; for example 2 (it is 'many')" in refusal('[limits]\njobs = "many"\n')
    assert "onnx.layers: must be 'last' or 'all', or a list in square brackets: [1.5] (it is 1.5)" in refusal("[onnx]\nlayers = 1.5\n")
    assert "watch: must be a section: write [watch]" in refusal("watch = 3\n")
    deploy = refusal('[export]\ndeploy = ["browsr"]\n')
    assert "(it is 'browsr'); did you mean 'browser'?" in deploy and "nothing is left" not in deploy
    assert "onnx.layers: must be 'last' or 'all', or a list in square brackets: [\"lst\"] (it is 'lst'); did you mean 'last'?" in refusal(
        '[onnx]\nlayers = "lst"\n'
    )
    assert "did you mean" not in refusal('[onnx]\noptimize = "mars"\n')


@pytest.mark.parametrize(("make", "cause", "remedy"), [
    (lambda path: path.mkdir(), "it is a folder, not a file", "name the file, for example {path}/config.toml"),
    (lambda path: path.write_bytes(b"\x7fELF\0\0\xff"), "it is not a text file", "name the TOML file"),
    (lambda path: path.write_bytes("a = 1".encode("utf-16")), "it is saved as UTF-16", "save it as UTF-8"),
    (lambda path: path.write_bytes(b"a = 1\nb = '\xe4'"), "line 2 holds a character that is not UTF-8", "save the file as UTF-8"),
    (lambda path: path.symlink_to(path), "it is a link that leads to itself", "remove or correct the link"),
    (lambda path: path.write_text("roots = ["), "it is not TOML: ", "correct that line"),
    (lambda path: path.write_text("# a\nroots = [\n\n\n"), "it is not TOML: Invalid value (at line 2, the last line)", "correct that line"),
    (lambda path: path.write_text('[watch]\nroots = ["/a"\n\nsettle_seconds = 3\n'), "it is not TOML: Unclosed array (at line 4",
     "add the missing ]; it belongs above that place"),
    (lambda path: path.write_text('[base]\nmap = { "a" = "b"\n'), "it is not TOML: Unclosed inline table (at line 2", "add the missing }}"),
    (lambda path: None, "there is no such file", "name another with --config"),
])  # fmt: skip
def test_a_file_that_can_not_be_read_is_refused_in_plain_words(
    tmp_path: Path, make: Callable[[Path], object], cause: str, remedy: str
) -> None:
    path = tmp_path / "x"
    make(path)
    with pytest.raises(UsageError) as caught:
        load(path)
    said = str(caught.value)
    assert (
        f"({path}): {cause}" in said and f"Fix: {remedy.format(path=path)}" in said and not [one for one in JARGON if one in said.lower()]
    )


def test_a_path_through_a_file_and_a_closed_file_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(UsageError, match=f"{tmp_path}/x is a file, and not a folder that could hold another file"):
        load(tmp_path / "x" / "y" / "config.toml")

    def closed(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", closed)
    with pytest.raises(UsageError, match=r"this user may not read it\. Fix: give this user access"):
        load(tmp_path / "x")


def test_a_mark_that_editors_put_before_the_text_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("[limits]\njobs = 3\n", encoding="utf-8-sig")
    assert load(tmp_path / "x").limits.jobs == 3


def test_without_any_configuration_it_is_said_where_one_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(common, "SYSTEM_CONFIG", tmp_path / "none.toml")
    for verb in ("run", "reload"):
        error = CliRunner().invoke(app, [verb]).exception
        assert isinstance(error, UsageError) and error.fault.code is FaultCode.CONFIG_MISSING
        assert f"neither {tmp_path}/ckptd/config.toml nor {tmp_path}/none.toml" in str(error) and "run `ckptd init`" in str(error)


@pytest.mark.parametrize("name", ["CKPTD_LIMITS__JBS", "CKPTD_LIMTS__JOBS"])
def test_a_misspelt_variable_is_one_mistake(refusal: Refusal, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "2")
    assert f"1 thing is wrong:\n  {name} (environment): names no setting; did you mean" in refusal("")


def test_ctrl_c_at_a_question_is_an_interruption(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def asked(*_: object, **__: object) -> None:
        raise typer.Abort

    monkeypatch.setattr("daemon.cli.common.configuration_of", asked)
    monkeypatch.setattr("daemon.cli.machine.load_settings", asked)
    monkeypatch.setattr(sys, "argv", ["ckptd", "check"])
    assert main() == 130 and "interrupted" in capsys.readouterr().err


def test_a_second_daemon_is_told_what_it_needs_of_its_own(tmp_path: Path) -> None:
    with locked(tmp_path / "lock"), pytest.raises(UsageError) as caught, locked(tmp_path / "lock"):
        pass
    assert "a state.directory of its own" in str(caught.value) and exit_code_of(caught.value) == 2
