"""`export.deploy`: which variants are made for which target, by the declarations of the formats that are installed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from daemon.config.loading import conflicts
from daemon.config.settings import Settings
from daemon.contract.formats.catalog import Catalog, catalog
from daemon.contract.formats.mistakes import mistakes
from daemon.contract.formats.targets import TARGETS, fitting, lacking, made_for
from daemon.contract.jobs.options import ExportOptions, Work
from daemon.contract.jobs.plan import effective_variants, resolved, stage_names, variant_names
from daemon.operating.diagnosis.doctor import examine, formats_here
from tests.formats.installed import nothing_for


def made(**export: object) -> tuple[str, ...]:
    settings = Settings(export=export)
    assert settings.variants == effective_variants(settings.work.export.variants, settings.work.export.quantization)
    return settings.variants


def test_with_deploy_alone_only_what_the_targets_need_is_made() -> None:
    assert made(deploy=["edge"]) == ("onnx-int8", "onnx-int4")
    assert made(deploy=["nvidia"]) == ("pytorch-bf16",)
    assert made() == ("pytorch", "onnx", "onnx-int8"), "without it nothing changes"


def test_beside_variants_that_are_named_it_adds() -> None:
    assert made(deploy=["laptop"], variants=["pytorch"]) == ("pytorch", "onnx-int4")
    assert made(deploy=["laptop"], variants=["pytorch"], quantization="none") == ("pytorch", "onnx-int4")
    assert made(deploy=["nvidia"], variants=["onnx"], quantization="int8") == ("pytorch-bf16", "onnx", "onnx-int8")


def test_a_job_keeps_the_variants_by_name_through_its_journal() -> None:
    work = Settings(export={"deploy": ["edge", "ios"]}).work
    again = Work.model_validate_json(work.model_dump_json())
    assert again == work and again.digest == work.digest
    assert again.export.variants[:2] == ("onnx-int8", "onnx-int4") and again.export.deploy == ("edge", "ios")
    assert {"onnx-int8", "check-onnx-int4"} <= set(stage_names(again, "trainer-adapter"))
    unnamed = ExportOptions.model_validate_json(ExportOptions(deploy=("edge",)).model_dump_json())
    assert unnamed.variants == (), "that no variants were named is kept too"


def test_without_deploy_a_jobs_digest_is_what_it_was() -> None:
    assert resolved(ExportOptions()) == ExportOptions()
    assert "deploy" not in Settings().work.model_dump(exclude_defaults=True)["export"]


@pytest.fixture
def no_ios() -> Iterator[None]:
    with nothing_for("ios"):
        yield


@pytest.mark.usefixtures("no_ios")
def test_a_target_without_a_format_is_said_by_check_and_by_a_configuration_with_nothing_else() -> None:
    settings = Settings(export={"deploy": ["ios", "edge"]})
    (said,) = [one for one in examine(settings).warnings if one.startswith("export.deploy")]
    assert said == (
        "export.deploy: nothing is made for ios (iPhones and iPads): no installed format declares it; install a package"
        " with one that does, or leave ios out"
    )
    assert not [one for one in conflicts(settings) if one.startswith("export.")]
    (problem,) = [one for one in conflicts(Settings(export={"deploy": ["ios"]})) if one.startswith("export.")]
    assert problem == said.replace("export.deploy", "export.deploy", 1)


def test_every_target_is_made_by_an_installed_format_or_said_to_be_missing(tmp_path: object) -> None:
    known = catalog()
    for target in TARGETS:
        assert bool(made_for(target, known)) != (target in lacking([target], known))
        assert set(made_for(target, known)) <= set(fitting(target, known))
    here = formats_here(Settings().state_directory)
    assert here.targets["edge"] == ("onnx-int8", "onnx-int4") and here.targets["ollama"] == ("gguf-q4_k_m",)
    assert here.targets["ios"] and here.targets["android"] == ("onnx-int8",)
    assert {name for names in here.targets.values() for name in names} <= set(variant_names())


def test_a_form_for_every_kind_of_model_comes_before_what_can_be_used_too() -> None:
    known = catalog()
    onnx = known.variants["onnx"]
    one = dataclasses.replace(onnx, name="mine", targets=frozenset({"ios"}), also_for=frozenset())
    other = dataclasses.replace(onnx, name="theirs", targets=frozenset(), also_for=frozenset({"ios"}))
    brought = dataclasses.replace(known.formats[0], name="coreml", variants=(other, one))
    known = Catalog(tuple(found for found in known.formats if found.name != "coreml"), ())
    both = Catalog((brought, *known.formats), ())
    assert [found.name for found in made_for("ios", both)] == ["mine"]
    alone = Catalog((dataclasses.replace(brought, variants=(other,)), *known.formats), ())
    assert [found.name for found in made_for("ios", alone)] == ["theirs"] and not lacking(["ios"], alone)


def test_our_own_declarations_have_no_mistakes() -> None:
    """They are not looked at where they are used."""
    assert [said for declared in catalog().formats for said in mistakes(declared)] == []


def test_a_declaration_with_a_target_that_does_not_exist_is_refused() -> None:
    wrong = dataclasses.replace(catalog().variants["onnx"], targets=frozenset({"moon"}))  # type: ignore[arg-type]
    (said,) = mistakes(dataclasses.replace(catalog().formats[0], variants=(wrong,)))
    assert "targets can't be 'moon'; it is one of 'cpu-server'" in said


@pytest.mark.parametrize("value", ["edge", ["moon"], [3]])
def test_a_configuration_with_a_target_that_does_not_exist_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="deploy"):
        Settings(export={"deploy": value})
