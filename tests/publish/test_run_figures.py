"""Which checkpoint of a run its artifacts speak for: comparable figures alone, after quantization, and never the divergence."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from daemon.config.settings import RetentionSettings, SelectSettings
from daemon.contract.advice.which import Standing, Unranked, advice, standing
from daemon.contract.jobs.messages import CheckpointRef
from daemon.contract.jobs.points import ArtifactPoint, StepPoint
from daemon.contract.jobs.run_figures import latest, point_of
from daemon.journal.journal import Journal
from daemon.journal.rows import JobRow
from daemon.publishing.retention import Export, plan_removal, ranked_by_quality
from daemon.publishing.run_figures import figures_of_run, of_run, published_of, read_report, run_figures
from tests.journal.entries import WORK

QUALITY = SelectSettings(best_by="quality")


def artifact(perplexity: float | None = None, *, size: int = 100, verdict: str = "passed", **quality: float) -> ArtifactPoint:
    found = {**quality, **({} if perplexity is None else {"perplexity": perplexity})}
    return ArtifactPoint(
        verdict=verdict, published=verdict == "passed", size_bytes=size, kl=0.01, quality=found,
        by_text={name: by_text(name, value) for name, value in found.items()},
    )  # fmt: skip


def by_text(metric: str, value: float, texts: int = 12, tokens: int = 40) -> tuple[tuple[float, float], ...]:
    """Texts that are harder or easier for every model alike, so that any difference between two of them is one."""
    if metric == "perplexity":
        return tuple((tokens * (math.log(value) + 0.1 * (number - (texts - 1) / 2)), float(tokens)) for number in range(texts))
    return tuple((float(number < round(100 * value)), 1.0) for number in range(100))


def point(step: int, *, texts: str = "a", made: int | None = None, loss: float | None = None, **artifacts: ArtifactPoint) -> StepPoint:
    return StepPoint(
        export=f"run-{step}", step=step, status="succeeded", finished=f"2026-01-01T{step if made is None else made:06}", loss=loss,
        comparison=texts, artifacts={name.replace("_", "-"): one for name, one in artifacts.items()},
    )  # fmt: skip


def report(step: int, *, perplexity: float | None = 8.0, prompts: tuple[str, ...] = ("a", "b"), **more: Any) -> dict[str, Any]:
    figures: dict[str, Any] = {"kl": 0.02, "agreement": 0.98}
    if perplexity is not None:
        figures |= {"perplexity": perplexity, "by_text": {"perplexity": by_text("perplexity", perplexity), "kl": [[0.1, 40]]}}
    row = {"variant": "onnx-int4", "verdict": "passed", "published": True, "size_bytes": 10, "figures": figures}
    return {
        "export_id": f"run-{step}", "status": "succeeded", "finished": f"2026-01-01T00:{step:02}:00+00:00", "task": "text-generation",
        "checkpoint": {"root": "/runs", "run": "run", "step": step, "ending": False, "metadata": {"loss": 2.0, "best_global_step": 4}},
        "configuration": {"validation": {"samples": 2, "new_tokens": 6}}, "reference": {"dtype": "float32"},
        "stages": [{"name": "reference", "figures": {"prompts": list(prompts)}}], "artifacts": [row], **more,
    }  # fmt: skip


def best_of(*points: StepPoint, variant: str = "") -> tuple[str, int] | str:
    found = standing(points, variant=variant)
    return (found.variant, found.pick.step) if isinstance(found, Standing) else found.why


def test_the_best_is_the_one_whose_smallest_artifact_is_the_best_and_not_the_trainers() -> None:
    points = (
        point(300, loss=1.3, onnx=artifact(7.9, size=400), onnx_int4=artifact(8.1)),
        point(400, loss=1.21, onnx=artifact(7.7, size=400), onnx_int4=artifact(8.4)),
    )
    assert best_of(*points) == ("onnx-int4", 300)
    assert best_of(*points, variant="onnx") == ("onnx", 400)
    ground = "by the perplexity of onnx-int4, step 300 is the best of 2 exports: 8.1 against 8.4 of step 400 ("
    interval = "1.04 ×, 1.04 to 1.04, 480 tokens of 12 texts)."
    deploy = "Deploy step 300; its report recommends none of its artifacts."
    assert advice(points, 400) == f"The trainer's best is step 400 (loss 1.21); {ground}{interval} {deploy}"
    assert advice(points, 300) == f"The trainer's best is step 300 (loss 1.3); {ground}{interval} {deploy}"
    assert advice(points, None) == f"The trainer names no best step; {ground}{interval} {deploy}"
    known = (points[0].model_copy(update={"recommended": "onnx-int4: 3 × as fast as PyTorch"}), points[1])
    assert advice(known, 400).endswith(" Deploy step 300, onnx-int4: 3 × as fast as PyTorch.")


def test_of_scores_more_is_better_and_perplexity_comes_first() -> None:
    assert best_of(point(1, onnx=artifact(accuracy=0.8)), point(2, onnx=artifact(accuracy=0.7))) == ("onnx", 1)
    both = (point(1, onnx=artifact(9.0, accuracy=0.9)), point(2, onnx=artifact(8.0, accuracy=0.1)))
    assert best_of(*both) == ("onnx", 2)


def test_with_divergence_alone_nothing_is_chosen_and_that_is_said() -> None:
    points = (point(1, onnx=artifact()), point(2, onnx=artifact()))
    assert "only the divergence" in str(best_of(*points))
    assert advice(points, 2).endswith(
        "only the divergence from the live model was measured, which says nothing about the checkpoint itself."
    )


def test_only_what_passed_and_what_can_be_compared_counts() -> None:
    rejected = point(2, onnx=artifact(1.0, verdict="failed"), onnx_int8=artifact(9.0))
    assert best_of(point(1, onnx_int8=artifact(9.5)), rejected) == ("onnx-int8", 2)
    old = point(1, texts="old", onnx=artifact(1.0))
    assert best_of(old, point(2, onnx=artifact(8.0)), point(3, onnx=artifact(9.0))) == ("onnx", 2)
    gone = point(1, onnx=artifact(1.0)).model_copy(update={"kept": False})
    assert best_of(gone, point(2, onnx=artifact(8.0))) == ("onnx", 2)
    assert isinstance(standing((point(1, texts="", onnx=artifact(1.0)), point(2, texts="", onnx=artifact(2.0)))), Standing)
    unknown = standing((point(1, texts="", onnx=artifact(1.0)), point(2, texts="", onnx=artifact(2.0))))
    assert isinstance(unknown, Standing) and len(unknown.ranked) == 1, "without known texts nothing is compared"


def test_a_variant_that_seldom_passed_or_is_not_deployed_alone_is_not_compared_by() -> None:
    seldom = [point(step, onnx=artifact(9.0 - step / 10, size=400)) for step in (1, 2)]
    seldom.append(point(3, onnx=artifact(9.5, size=400), onnx_int4=artifact(10.0)))
    assert best_of(*seldom) == ("onnx", 2)
    adapter = [point(step, onnx=artifact(9.0 + step, size=400), pytorch_adapter=artifact(8.0 - step, size=1)) for step in (1, 2)]
    assert best_of(*adapter) == ("onnx", 1)


steps = st.lists(
    st.builds(
        lambda step, texts, made, onnx, int4: point(step, texts=texts, made=made, onnx=onnx, onnx_int4=int4),
        st.integers(1, 40), st.sampled_from(["a", "b", ""]), st.integers(0, 99),
        *2 * [st.builds(artifact, st.none() | st.floats(1, 100), size=st.integers(1, 9), verdict=st.sampled_from(["passed", "failed"]))],
    ),
    max_size=12, unique_by=lambda one: one.export,
)  # fmt: skip


@given(steps, st.sampled_from(["", "onnx", "onnx-int8"]))
def test_the_best_is_at_least_as_good_as_all_it_is_compared_with(points: list[StepPoint], variant: str) -> None:
    found = standing(points, 4, variant)
    assert advice(points, 4, variant).endswith(".")
    if isinstance(found, Unranked):
        return
    assert found.variant == (variant or found.variant) and found.pick is found.ranked[0] and found.pick in found.equal
    assert len({one.comparison for one in found.ranked}) == 1
    assert all(one.artifacts[found.variant].verdict == "passed" for one in found.ranked)
    assert found.value(found.leader) == min(found.value(one) for one in found.ranked)
    assert all(found.apart[one.export].sure for one in found.ranked if one not in found.equal)
    assert standing(points[::-1], 4, variant) == found, "the order in which they are read does not matter"


@given(steps, st.integers(0, 5))
def test_keep_best_by_quality_keeps_the_best_and_never_all_for_nothing(points: list[StepPoint], keep: int) -> None:
    exports = [Export(Path(f"/x/{one.export}"), "run", one.step, one.export, point=one, published=1.0) for one in points]
    ranked = ranked_by_quality(exports, "")
    assert len(set(ranked)) == len(ranked) and set(ranked) <= set(exports)
    found = standing(points)
    if isinstance(found, Standing):
        assert ranked[0].export == found.pick.export
    kept = {one.path for one, _ in plan_removal(exports, RetentionSettings(keep_best=keep, keep_last=1), 10.0, QUALITY).kept}
    assert {one.path for one in ranked[:keep]} <= kept
    if not ranked:
        assert len(plan_removal(exports, RetentionSettings(keep_best=1), 10.0, QUALITY).kept) == len(exports)


def test_new_texts_alone_do_not_take_the_best_of_before_from_keep_best() -> None:
    points = [point(1, texts="old", onnx=artifact(3.0)), point(2, texts="old", onnx=artifact(5.0)), point(3, onnx=artifact(50.0))]
    exports = [Export(Path(f"/x/{one.step}"), "run", one.step, one.export, point=one) for one in points]
    gone = plan_removal(exports, RetentionSettings(keep_best=2), 10.0, QUALITY).removed
    assert [one.step for one in gone] == [2]


def test_a_report_gives_its_point_and_texts_or_settings_that_differ_are_another_comparison() -> None:
    one = point_of(report(4))
    assert one is not None and one.artifacts["onnx-int4"].quality == {"perplexity": 8.0} and one.loss == 2.0
    others = (
        report(4, prompts=("a", "c")), report(4, configuration={"validation": {"samples": 3, "new_tokens": 6}}),
        report(4, reference={"dtype": "bfloat16"}), report(4, task="summarization"),
    )  # fmt: skip
    digests = {found.comparison for other in others if (found := point_of(other))}
    assert len(digests) == 4 and one.comparison not in digests
    data = report(4, stages=[{"name": "reference", "figures": {"texts": {"digest": "ab"}, "prompts": ["x"]}}])
    same = report(5, stages=[{"name": "reference", "figures": {"texts": {"digest": "ab"}, "prompts": ["y"]}}])
    assert point_of(data).comparison == point_of(same).comparison  # type: ignore[union-attr]
    labels = report(4, perplexity=None)
    labels["artifacts"][0]["figures"]["scores"] = {"accuracy": 0.9, "chrf": None}
    assert point_of(labels).artifacts["onnx-int4"].quality == {"accuracy": 0.9}  # type: ignore[union-attr]


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*report(1), "variant", "figures", "kl", "step"]), inner),
    max_leaves=12,
)  # fmt: skip


@given(JSON, st.sampled_from(sorted(report(1))), JSON)
def test_a_report_of_any_content_never_raises(value: object, key: str, other: object) -> None:
    point_of(value)
    found = point_of(report(1) | {key: other})
    assert found is None or isinstance(found, StepPoint)


def test_reports_are_read_from_folders_and_the_newest_remembers_those_that_are_gone(tmp_path: Path) -> None:
    def put(step: int, **more: Any) -> Path:
        folder = tmp_path / f"step-{step}"
        folder.mkdir()
        (folder / "report.json").write_text(json.dumps(report(step, **more)))
        return folder

    gone = point_of(report(2))
    assert gone is not None
    told = {"points": [gone.model_dump(mode="json"), {"odd": True}]}
    folders = [put(4), put(6, run_so_far=told), put(8, checkpoint={**report(8)["checkpoint"], "run": "other"})]
    (tmp_path / "step-9").mkdir()
    os.mkfifo(tmp_path / "step-9" / "report.json")
    reads = of_run([*folders, tmp_path / "step-9", tmp_path / "none"], "/runs", "run")
    assert [read.point.step for read in reads] == [4, 6]
    figures = figures_of_run(reads, [(read.point.step, read.metadata) for read in reads], "onnx")
    assert [(one.step, one.kept) for one in figures.points] == [(2, False), (4, True), (6, True)]
    assert (figures.trainers_best, figures.best_variant) == (4, "onnx")
    changed = report(4, perplexity=5.0)
    (folders[0] / "report.json").write_text(json.dumps(changed))
    again = read_report(folders[0])
    assert again is not None and again.point.artifacts["onnx-int4"].quality["perplexity"] == 5.0


def test_no_more_than_the_last_fifty_are_told() -> None:
    assert [one.step for one in latest(point(step) for step in range(80))] == list(range(30, 80))
    twice = point(3, onnx=artifact(1.0))
    assert latest([twice, point(3, onnx=artifact(2.0))]) == (twice,)


def test_what_an_export_takes_the_place_of_is_not_compared_with_it(tmp_path: Path) -> None:
    for step in (2, 4):
        (tmp_path / f"step-{step}").mkdir()
        (tmp_path / f"step-{step}" / "report.json").write_text(json.dumps(report(step)))
    checkpoint = CheckpointRef(
        root="/runs", run="run", step=4, path="/runs/run/checkpoint-4", layout="trainer-adapter", digest="d", method="LORA"
    )
    job = JobRow("another-4", "running", checkpoint, WORK, tmp_path, tmp_path / "step-4", None, "", None, None)
    journal = Journal(tmp_path / "journal.sqlite3")
    assert [read.point.step for read in published_of(journal, job)] == [2]
    figures = run_figures(journal, job, "")
    assert [point.step for point in figures.points] == [2]
    assert figures.folders == {"run-2": "../step-2"}
    journal.close()
