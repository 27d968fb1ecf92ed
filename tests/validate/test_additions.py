"""Several adapters over one base: the live model has them all, each with its factor, and a merge that lacks one is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.contract.faults.errors import Permanent
from daemon.contract.jobs.messages import ADDITIONS, Addition, ArtifactCheck, StageContext, Verdict
from handlers.adapter import stage as adapter_stage
from handlers.merge import merge_adapter
from handlers.merge import stage as merge_stage
from handlers.validate.checks.live.rounded import FAITHFUL
from handlers.validate.engines.registry import EngineSpec
from tests import models
from tests.merge import helpers
from tests.validate.bench import beside_live

Mixture = tuple[tuple[Path, float], ...]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A base in fp32, an adapter, and another one over other layers too. Read only."""
    folder = tmp_path_factory.mktemp("mixture")
    base = models.make_base(folder / "base", dtype="float32")
    first = helpers.make_adapter(base, folder / "first", seed=3)
    second = helpers.make_adapter(base, folder / "second", seed=4, r=2, target_modules=["q_proj", "down_proj"], use_rslora=True)
    return base, first, second


def checked(base: Path, first: Path, merged: Path, scratch: Path, weight: float, others: Mixture) -> ArtifactCheck:
    """The verdict about a merged folder beside the live model with this mixture."""
    additions = tuple((str(folder), factor) for folder, factor in others)
    spec = EngineSpec(engine="live", folder=str(first), base=str(base), weight=weight, additions=additions)
    check, reference = beside_live(spec, merged, scratch)
    assert reference.adapter is not None and reference.adapter.error_max is not None
    assert reference.adapter.error_max > 0.05, "the bare base is bare of all adapters"
    return check


def test_the_merge_of_all_equals_the_live_model_of_all_and_one_that_lacks_any_does_not(
    made: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    (base, first, second), weight = made, 0.6
    mixtures: dict[str, tuple[float, Mixture]] = {
        "all": (weight, ((second, 0.7),)), "without": (weight, ()), "other factor": (weight, ((second, -0.7),)),
        "other own factor": (weight + 0.5, ((second, 0.7),)),
    }  # fmt: skip
    for name, (factor, others) in mixtures.items():
        (tmp_path / name).mkdir()
        merge_adapter(first, base, tmp_path / name, weight=factor, adapters=others)
        check = checked(base, first, tmp_path / name, tmp_path / f"{name} checked", *mixtures["all"])
        error = check.figures["error_max"]
        assert (check.verdict, error < 1e-4) == ((Verdict.PASSED, True) if name == "all" else (Verdict.FAILED, False)), (name, error)


@pytest.mark.parametrize("others", [(), (0.7,)])
def test_deltas_of_an_embedding_that_are_added_up_are_rounded_with_the_sum_alone(others: tuple[float, ...], tmp_path: Path) -> None:
    base = models.make_base(tmp_path / "base", tie_word_embeddings=False)
    first, second = (
        helpers.make_adapter(base, tmp_path / str(seed), seed=seed, target_modules=["q_proj", "embed_tokens"], copies=False)
        for seed in (3, 4)
    )
    (tmp_path / "merged").mkdir()
    mixture = tuple((second, factor) for factor in others)
    merge_adapter(first, base, tmp_path / "merged", weight=0.6, adapters=mixture)
    check = checked(base, first, tmp_path / "merged", tmp_path / "scratch", 0.6, mixture)
    assert check.figures["merge_error"] < FAITHFUL / 5


def context(work: Path, base: Path, first: Path, second: Path, **mixture: float) -> StageContext:
    """A job of the first adapter with the second one pinned beside it."""
    plain = helpers.context(work, first, base)
    additions = (Addition(name="second", path=str(second), weight=0.7, digest="0" * 64),)
    return plain.model_copy(update={"checkpoint": plain.checkpoint.model_copy(update={"additions": additions, **mixture})})


def test_the_stage_merges_what_is_pinned(made: tuple[Path, Path, Path], tmp_path: Path) -> None:
    base, first, second = made
    (tmp_path / "pin").mkdir()
    for source, target in ((first, tmp_path / "pin"), (second, tmp_path / "pin" / ADDITIONS / "0")):
        target.mkdir(parents=True, exist_ok=True)
        for file in source.iterdir():
            (target / file.name).write_bytes(file.read_bytes())
    job = context(tmp_path / "work", base, tmp_path / "pin", tmp_path / "no such folder", weight=0.6)
    merge_stage.run(job, helpers.reporter())
    (tmp_path / "expected").mkdir()
    merge_adapter(first, base, tmp_path / "expected", weight=0.6, adapters=[(second, 0.7)])
    weights = "model.safetensors"
    assert (tmp_path / "work/staging" / weights).read_bytes() == (tmp_path / "expected" / weights).read_bytes()


@pytest.mark.parametrize(("weight", "named"), [(1.0, "second"), (0.5, "second")])
def test_an_adapter_that_is_not_merged_alone_is_not_published_alone(
    weight: float, named: str, made: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    base, first, second = made
    with pytest.raises(Permanent, match=f"merges {named} together with it, so the adapter alone is not the model that was verified"):
        adapter_stage.run(context(tmp_path, base, first, second, weight=weight), helpers.reporter())


@pytest.mark.parametrize("options", [{"use_dora": True}, {"modules_to_save": ["norm"]}, {"init_lora_weights": "pissa"}])
def test_a_factor_is_refused_for_what_is_no_plain_lora(options: dict[str, object], pico_base: Path, tmp_path: Path) -> None:
    adapter = helpers.make_adapter(pico_base, tmp_path / "adapter", **options)
    (tmp_path / "out").mkdir()
    with pytest.raises(Permanent, match="only plain LoRA adapters can be combined or used with a factor"):
        merge_adapter(adapter, pico_base, tmp_path / "out", weight=0.5)
