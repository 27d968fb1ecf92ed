"""Mistakes in a declaration: each is found when the formats are gathered, and named with what to write instead."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from daemon.config.loading import load
from daemon.contract.formats import catalog
from daemon.contract.formats.declaration import Format, FormatEntry, Limits, Variant
from daemon.contract.formats.thresholds import Thresholds
from daemon.contract.values import Frozen
from daemon.operating.diagnosis.declared_code import flaws
from daemon.operating.diagnosis.doctor import examine, formats_here
from daemon.toolchains.registry import definitions

LIMITS = Limits("flat", cache=1e-3, padding=1e-3)


class Keys(Frozen):
    align: int = 64


class Required(Frozen):
    align: int


class OutOfRange(Frozen):
    align: int = Field(default=3, ge=16, validate_default=False)


class Loose(BaseModel):
    align: int = 64


FULL = Variant(
    "flat", "handlers.pytorch.stage:run", 1, needs=("merge",), settings=("flat.align", "merge.dtype"), limits=LIMITS,
    thresholds=Thresholds(agreement=0.97, kl=0.001, error=0.25), traits=frozenset({"cache"}),
)  # fmt: skip
SMALL = replace(FULL, name="flat-int8", needs=("flat",), form_of="flat", level="int8", fallback="flat")
FLAT = Format(
    name="flat", about="somebody's", variants=(FULL, SMALL), options=Keys, section="flat",
    engines={"flat": {"causal": "handlers.validate.engines.pytorch.torch_causal:TorchEngine"}},
)  # fmt: skip


def _small(**changes: Any) -> Format:
    return replace(FLAT, variants=(FULL, replace(SMALL, **changes)))


@pytest.fixture
def gather(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The catalog of ours and of one declaration of another package."""
    module: Any = types.ModuleType("strangers")
    monkeypatch.setitem(sys.modules, "strangers", module)
    ours = catalog.catalog().entries

    def take(declared: Any) -> catalog.Catalog:
        module.FORMAT = declared
        catalog.use([*ours, FormatEntry(value="strangers:FORMAT")])
        return catalog.catalog()

    yield take
    catalog.use(ours)


def test_a_declaration_without_a_mistake_is_taken(gather: Any) -> None:
    known = gather(FLAT)
    assert known.problems == () and {"flat", "flat-int8"} <= known.variants.keys()


MISTAKES = {
    "a variant that is not in a tuple": (replace(FLAT, variants=FULL), "its variants can't be Variant("),  # type: ignore[arg-type]
    "no variant": (replace(FLAT, variants=()), "it has no variants"),
    "needs without its comma": (_small(needs="flat"), """flat-int8: needs can't be 'flat'; write a tuple, (…,) with its comma"""),
    "a stage that nobody has": (_small(needs=("flatt",)), "names a stage flatt, which does not exist; did you mean 'flat'?"),
    "a trait that does not exist": (_small(traits=frozenset({"paddings"})), "traits can't be 'paddings'; it is one of 'onnx',"),
    "a set of traits": (_small(traits={"cache"}), "flat-int8: traits can't be {'cache'}; write frozenset({…})"),
    "a level that does not exist": (_small(level="int7"), "flat-int8: level can't be 'int7'; it is one of 'fp16',"),
    "a level of nothing": (_small(form_of=None), "flat-int8: level is given without form_of"),
    "a fallback to itself": (_small(fallback="flat-int8"), "flat-int8: it is its own fallback or form_of"),
    "a key that turns a cache on and is none of its settings": (_small(kv_cache="flat.cache"), "kv_cache is 'flat.cache'; write"),
    "arithmetic that does not exist": (_small(arithmetic="int8"), "flat-int8: arithmetic can't be 'int8'; it is one of 'float',"),
    "a size as text": (_small(memory_fp32="2"), "flat-int8: memory_fp32 can't be '2'; input should be a valid number"),
    "a truth for a number": (_small(version=True), "flat-int8: version can't be True; input should be a valid integer"),
    "a limit as text": (_small(limits=replace(LIMITS, cache="0.1")), "flat-int8: limits.cache can't be '0.1'"),  # type: ignore[arg-type]
    "limits of another type": (_small(limits={"cache": 1}), "limits can't be {'cache': 1}; input should be an instance of Limits"),
    "an entry without a colon": (_small(entry="flat.stage.run"), "flat-int8: entry is 'flat.stage.run'; write module:function"),
    "a name that is no folder's": (_small(name="flat/int8"), "the name of a variant can't be 'flat/int8'; it is the name of a folder"),
    "usage as text": (_small(usage="usage.md"), "flat-int8: usage can't be 'usage.md'; input should be an instance of Path"),
    "usage without its file": (_small(usage=Path("/no/usage.md")), "flat-int8: usage is /no/usage.md, which does not exist"),
    "a key that its section has not": (_small(settings=("flat.aling",)), "setting flat.aling, which does not exist; did you mean 'align'?"),
    "a section that nobody has": (_small(settings=("validate.samples",)), "samples, which does not exist; did you mean 'validation'?"),
    "a key of ours that does not exist": (_small(settings=("export.opsett",)), "which does not exist; did you mean 'opset'?"),
    "an engine that nobody has": (_small(limits=replace(LIMITS, engine="flatt")), "flatt, which does not exist; did you mean 'flat'?"),
    "a kind of model that does not exist": (replace(FLAT, engines={"flat": {"decoder": "a:B"}}), "use one of causal, seq2seq, encoder"),
    "an engine for nothing": (replace(FLAT, engines={"flat": {}}), "its engine flat supports no kind of model; name one of causal,"),
    "an engine without a colon": (replace(FLAT, engines={"flat": {"causal": "a.B"}}), "its engine flat is 'a.B'; write module:class"),
    "options without a section": (replace(FLAT, section=""), "it has options but no section"),
    "a section without options": (replace(FLAT, options=None), "it has a section 'flat' but no options"),
    "an option without a default": (replace(FLAT, options=Required), "its option align has no default"),
    "a default that is not valid": (replace(FLAT, options=OutOfRange), "OutOfRange: align can't be 3 (Input should be greater than"),
    "options of another class": (replace(FLAT, options=Loose), "its options can't be <class "),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_declaration_with_a_mistake_is_left_out_with_a_sentence(gather: Any, mistake: str) -> None:
    declared, said = MISTAKES[mistake]
    known = gather(declared)
    (problem,) = known.problems
    assert problem.startswith("the format flat (strangers:FORMAT) was left out: ")
    assert said in problem and "\n" not in problem
    assert len(known.formats) == len(known.entries) > 7 and "flat" not in [one.name for one in known.formats]


def test_what_pydantic_says_of_a_declaration_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "wrongly_limited.py").write_text(
        "from daemon.contract.formats.thresholds import Thresholds\nTHRESHOLDS = Thresholds(agreement=97, kl=0.001, error=-1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    ours = catalog.catalog().entries
    try:
        catalog.use([*ours, FormatEntry(value="wrongly_limited:FORMAT")])
        assert catalog.catalog().problems == (
            "the format wrongly_limited:FORMAT was left out: Thresholds: agreement can't be 97 (Input should be less than or equal to 1);"
            " error can't be -1 (Input should be greater than or equal to 0)",
        )
    finally:
        catalog.use(ours)


WRONG_CODE = {
    "a function that the module has not": (
        _small(entry="handlers.pytorch.stage:rum"),
        "its entry handlers.pytorch.stage:rum is wrong: the module handlers.pytorch.stage has no rum; did you mean 'run'?",
    ),
    "a module that the package has not": (
        _small(entry="handlers.pytorch.stages:run"),
        "its entry handlers.pytorch.stages:run is wrong: there is no module handlers.pytorch.stages",
    ),
    "a package that is not there": (_small(entry="no_such:run"), "its entry no_such:run is wrong: there is no module no_such"),
    "a toolchain that does not exist": (
        _small(toolchain="optimim"),
        f"its toolchain 'optimim' is not known; the names are {', '.join(definitions())}",
    ),
    "a toolchain of the check that does not exist": (
        _small(limits=replace(LIMITS, toolchain="optimim")),
        f"its toolchain 'optimim' is not known; the names are {', '.join(definitions())}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG_CODE)
def test_formats_says_what_a_package_must_change_of_what_it_names(gather: Any, tmp_path: Path, mistake: str) -> None:
    declared, said = WRONG_CODE[mistake]
    gather(declared)
    rows = formats_here(tmp_path).variants
    assert rows["flat-int8"].wrong == (said,) and not rows["flat-int8"].available
    assert not rows["flat"].wrong and rows["flat"].available


def test_an_engines_class_that_does_not_exist_is_said_without_loading_its_libraries(gather: Any) -> None:
    gather(replace(FLAT, engines={"flat": {"causal": "handlers.validate.engines.pytorch.torch_causal:TorchEngin"}}))
    (said,) = flaws(FULL)
    assert said.startswith(
        "its engine flat (causal) is wrong: the module handlers.validate.engines.pytorch.torch_causal has no TorchEngin; did you"
    )


def test_check_refuses_a_chosen_variant_that_its_package_has_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("daemon.operating.diagnosis.doctor.flaws", lambda spec: ["its entry is wrong"] if spec.name == "onnx" else [])
    file = tmp_path / "config.toml"
    file.write_text(f'[state]\ndirectory = "{tmp_path}"\n[output]\ndirectory = "{tmp_path}/out"\n[export]\nvariants = ["pytorch"]\n')
    assert examine(load(file)).problems == ()
    file.write_text(file.read_text().replace('["pytorch"]', '["pytorch", "onnx"]'))
    said = "export.variants: onnx can't be made or checked: its entry is wrong; correct its package, or leave it out"
    assert examine(load(file)).problems == (said,)


@pytest.mark.parametrize("name", sorted(catalog.catalog().variants))
def test_all_that_our_own_declarations_name_is_there(name: str) -> None:
    assert list(flaws(catalog.catalog().variants[name])) == []
