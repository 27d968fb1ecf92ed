"""Declarations of other packages that are wrong in themselves: each is left out with a sentence, and whatever there is goes on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from daemon.config.settings import _Settings
from daemon.contract.formats import catalog
from daemon.contract.formats.declaration import Format, FormatEntry, Limits, Variant
from daemon.contract.formats.thresholds import Thresholds
from daemon.contract.jobs.options import ExportOptions, MergeOptions, ValidateOptions
from daemon.contract.jobs.plan import plan
from daemon.contract.values import Frozen
from handlers.onnx.format import FORMAT as ONNX
from handlers.pytorch.format import FORMAT as PYTORCH
from tests.formats.test_catalog import declared, strangers, variant
from tests.sampling import some

__all__ = ["strangers"]
ROOT = Path(__file__).parents[2]
PACKAGE = Path(__file__).parent / "npz" / "npz_format"


class Sound(Frozen):
    level: int = 3
    names: tuple[str, ...] = ("a",)


class Required(Frozen):
    level: int


class WrongDefault(Frozen):
    level: int = "three"  # type: ignore[assignment]


class NoJson(Frozen):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    level: object = object()


class Raising(Frozen):
    level: int = Field(default_factory=lambda: 1 // 0)


class Secret(Frozen):
    token: SecretStr = SecretStr("")


class Unordered(Frozen):
    names: frozenset[str] = frozenset({"a", "b"})


class Renamed(Frozen):
    level: int = Field(default=3, alias="depth")


class Shouting(Frozen):
    LEVEL: int = 3


class NotFrozen(BaseModel):
    level: int = 3


def mine(**changes: Any) -> Format:
    return replace(declared(variant("mine"), name="mine"), **changes)


@pytest.mark.parametrize("options", [Required, WrongDefault, NoJson, Raising, Secret, Unordered, Renamed, Shouting, NotFrozen, dict, 3])
def test_options_that_could_not_be_written_and_read_are_refused(strangers: Any, options: Any) -> None:
    known = strangers.take(mine(options=options, section="mine"))
    (problem,) = known.problems
    assert "mine" not in known.variants and "onnx" in known.variants
    assert "[mine]" in problem or "options" in problem
    assert strangers.take(mine(options=Sound, section="mine")).problems == ()


@pytest.mark.parametrize(
    "section", ["work", "anchored", "json", "copy", "model_config", "_x", "MINE", "a-b", "config", "fault", "validate"]
)
def test_a_section_that_is_something_else_in_the_settings_is_refused(strangers: Any, section: str) -> None:
    known = strangers.take(mine(options=Sound, section=section))
    assert f"its section can't be named {section!r}" in known.problems[0] and section not in known.sections


def test_all_that_settings_are_made_of_is_kept_from_formats() -> None:
    own = {name for name in vars(_Settings) if not name.startswith("_")} | set(_Settings.model_fields)
    assert {name for name in own if not hasattr(BaseModel, name)} <= catalog.OWN_SECTIONS


def test_the_keys_that_stages_may_depend_on_are_those_that_there_are() -> None:
    kinds = {"export": ExportOptions, "merge": MergeOptions, "validation": ValidateOptions}
    assert catalog.OWN_KEYS.keys() == kinds.keys()
    assert all(keys == set(kinds[section].model_fields) for section, keys in catalog.OWN_KEYS.items())


@pytest.mark.parametrize("name", ["../../x", "report.json", "rejected", "a b", "", "A", "-x", "x" * 65, "a.b", "é"])
def test_a_variant_whose_name_can_be_no_folder_or_key_is_refused(strangers: Any, name: str) -> None:
    assert "the name of a variant can't be" in strangers.take(mine(variants=(variant(name),))).problems[0]


def test_there_is_one_merged_model_and_one_form_for_each_level(strangers: Any) -> None:
    merged = declared(replace(variant("mine"), traits=frozenset({"merged"})), name="mine", order=1)
    assert "mine can't be the merged model, which is pytorch" in strangers.take(merged).problems[0]
    known = strangers.take(declared(variant("mine", form_of="onnx", level="int8"), name="mine", order=1))
    assert "mine can't be onnx in int8, which is onnx-int8" in known.problems[0]
    assert known.quantized["onnx", "int8"] == "onnx-int8"


@pytest.mark.parametrize("path", ["export.nosuch", "nosuch", "limits.threads", "onnx.nosuch"])
def test_a_stage_that_depends_on_a_setting_that_nobody_has_is_refused(strangers: Any, path: str) -> None:
    known = strangers.take(mine(variants=(variant("mine", settings=(path,)),)))
    assert f"mine depends on a setting {path}, which does not exist" in known.problems[0]


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.floats(), st.text(max_size=3), st.lists(st.text(max_size=2), max_size=2),
    st.tuples(st.one_of(st.none(), st.integers(), st.just("onnx"))), st.just({}), st.just(frozenset({"onnx"})), st.just(dict), st.just(len),
)  # fmt: skip
FIELDS = sorted({*Variant.__dataclass_fields__} - {"limits"})


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    of_format=st.dictionaries(st.sampled_from(sorted(Format.__dataclass_fields__)), ODD, max_size=1),
    of_variant=st.dictionaries(st.sampled_from(FIELDS), ODD, max_size=2),
    of_limits=st.dictionaries(st.sampled_from(sorted(Limits.__dataclass_fields__)), ODD, max_size=1),
)
def test_no_value_in_a_declaration_keeps_the_plan_from_being_made(
    strangers: Any, of_format: dict[str, Any], of_variant: dict[str, Any], of_limits: dict[str, Any]
) -> None:
    limits = replace(PYTORCH.variants[0].limits, **of_limits)
    odd = replace(variant("mine"), **{"limits": limits, **of_variant})
    strangers.odd = replace(mine(variants=(odd,)), **of_format)
    catalog.use([*strangers.ours, FormatEntry(value="strangers:odd")])
    formats = catalog.catalog()
    for one in ONNX.variants:
        assert one.name in formats.variants
    names = [spec.name for spec in plan(formats.variants)]
    assert names[0] == "merge" and names[-1] == "report" and len(set(names)) == len(names)
    assert all(isinstance(limits, Thresholds) for limits in formats.thresholds.values())


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Any]:
    """Runs verbs where a package is installed whose declaration is a given text."""
    site = tmp_path / "site"
    shutil.copytree(PACKAGE, site / "npz_format")
    shutil.copytree(PACKAGE, site / "single")
    metadata = site / "npz-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: npz\nVersion: 1.0\n")

    def run(text: str, entry: str = "npz_format.format:FORMAT") -> dict[str, Any]:
        (metadata / "entry_points.txt").write_text(f"[ckptd.formats]\nnpz = {entry}\n")
        (site / "npz_format" / "format.py").write_text(text)
        path = os.pathsep.join([str(site), str(ROOT)])
        done = subprocess.run(
            [sys.executable, "-m", "daemon", "formats", "--json"], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60,
            env={**os.environ, "PYTHONPATH": path, "XDG_STATE_HOME": str(tmp_path / "state")},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        value: dict[str, Any] = json.loads(done.stdout)
        assert "onnx" in value["variants"]
        return value

    yield run


SOUND = (PACKAGE / "format.py").read_text()


@pytest.mark.parametrize(
    ("more", "said"),
    some([
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("class Own(BaseException): pass\nraise Own('x')", "Own: x"),
        ("class Own(Exception):\n def __str__(self): raise ValueError\nraise Own", "Own: no message"),
        ("raise ValueError('a\\n\\nb')", "ValueError: a b"),
        ("def deep(): deep()\ndeep()", "RecursionError: maximum recursion depth exceeded"),
    ], of=2),
)  # fmt: skip
def test_whatever_a_declaration_raises_is_one_sentence(box: Any, more: str, said: str) -> None:
    assert box(f"{SOUND}\n{more}\n")["problems"] == [f"the format npz_format.format:FORMAT was left out: {said}"]


def test_what_a_declaration_prints_is_not_in_an_answer(box: Any) -> None:
    assert "npz" in box(f"{SOUND}\nprint('hello')\n")["variants"]


def test_a_toolchain_that_nobody_has_is_a_lack_of_that_variant_alone(box: Any) -> None:
    value = box(SOUND.replace('needs=("npz",),', 'needs=("npz",), toolchain="nosuch",'))
    rows = value["variants"]
    assert rows["npz"]["available"] and not rows["npz-coarse"]["available"]
    assert "its toolchain 'nosuch' is not known" in json.dumps(rows["npz-coarse"])


def test_a_module_that_is_no_package_is_found_by_another_python_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "single_format.py").write_text("FORMAT = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert catalog._root("single_format") == str(tmp_path)
    assert catalog._root("nosuch") == catalog._root("sys") == catalog._root("") == ""
    assert FormatEntry(value="single_format:FORMAT", root=str(tmp_path)).root
