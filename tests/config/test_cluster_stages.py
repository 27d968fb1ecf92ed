"""`[cluster]`: stages name "local", a scheduler or a queue, and what fits none is refused in words."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from daemon.cli.configuration import set_values
from daemon.config import sources
from daemon.config.cluster import ClusterSettings
from daemon.config.settings import Settings
from daemon.contract.faults.errors import UsageError

Refusal = Callable[..., str]


def test_a_stage_may_name_the_scheduler_while_all_others_run_here(loaded: Callable[..., Settings]) -> None:
    cluster = loaded(
        '[cluster]\nexecutor = "local"\nstages = { onnx = "slurm", "check-*" = "wide" }\n[cluster.queues.wide]\ncpus = 2\n'
    ).cluster
    assert (cluster.executor, cluster.is_used) == ("slurm", True)
    assert dict(cluster.stages) == {"onnx": "slurm", "check-*": "wide", "*": "local"}


def test_it_stays_so_where_the_settings_are_read_from_themselves() -> None:
    once = ClusterSettings.model_validate({"stages": {"onnx": "ray"}})
    assert ClusterSettings.model_validate(once.model_dump()) == once


@pytest.mark.parametrize(("text", "said"), [
    ('stages = { onnx = "slurm", report = "ray" }', "all stages run by one scheduler"),
    ('executor = "ray"\nstages = { onnx = "slurm" }', "all stages run by one scheduler"),
    ('executor = "slurm"\nstages = { onnx = "gpu" }', "add [cluster.queues.gpu]"),
    ('executor = "slurm"\n[cluster.queues.slurm]\ncpus = 2', "stages can name it without one"),
    ('executor = "slurm"\nstages = { onx = "local" }', "no stage fits 'onx'; did you mean 'onnx'?"),
])  # fmt: skip
def test_what_can_not_be_meant_is_refused_in_words(refusal: Refusal, text: str, said: str) -> None:
    answer = refusal(f"[cluster]\n{text}\n")
    assert said in answer and "{" not in answer, "no dictionary of Python's"


def test_the_address_of_a_ray_cluster_is_no_secret(loaded: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[cluster]\nexecutor = "ray"\n[cluster.ray]\naddress = "ray://10.0.0.5:10001"\n'
    assert loaded(text).cluster.ray.address == "ray://10.0.0.5:10001", "so that what refuses it can say why"
    monkeypatch.setattr(sources, "given_on_command_line", {})
    set_values(["cluster.ray.address=ray://10.0.0.5:10001"])
    with pytest.raises(UsageError):
        set_values(["cluster.ray.address=ray://user:secret@10.0.0.5:10001"])
