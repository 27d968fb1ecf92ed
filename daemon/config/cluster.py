"""`[cluster]`: which stages run on other machines, and what is asked of their scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import ByteSize, Field, model_validator

from daemon.config.section import OptionalPath, Section


class QueueSettings(Section):
    """`[cluster.slurm]`, and each of `[cluster.queues.NAME]`: how attempts are handed in."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    options: tuple[str, ...] = ()
    cpus: int = Field(default=0, ge=0, le=4096)
    memory: ByteSize = Field(default=ByteSize(0), ge=0, validate_default=True)
    gpus: int = Field(default=0, ge=0, le=64)
    scratch: str = Field(default="", pattern=r"^($|[/$])")
    prefix: tuple[str, ...] = ()


class RaySettings(Section):
    """`[cluster.ray]`: the cluster, and what is asked for attempts that name no queue."""

    address: str = ""
    python: OptionalPath = None
    cpus: int = Field(default=0, ge=0, le=4096)
    memory: ByteSize = Field(default=ByteSize(0), ge=0, validate_default=True)
    gpus: int = Field(default=0, ge=0, le=64)
    resources: dict[str, float] = Field(default_factory=dict)
    scratch: str = Field(default="", pattern=r"^($|[/$])")
    prefix: tuple[str, ...] = ()


class NamedQueueSettings(QueueSettings):
    """Each of `[cluster.queues.NAME]`; Slurm knows no custom resources, and Ray no options of sbatch."""

    resources: dict[str, float] = Field(default_factory=dict)


SCHEDULERS = ("slurm", "ray")
OF_SBATCH = ("partition", "account", "qos", "constraint", "options")


class ClusterSettings(Section):
    """`[cluster]`: the executor of stages."""

    executor: Literal["local", "slurm", "ray"] = "local"
    stages: dict[str, str] = Field(default_factory=dict)
    jobs: int = Field(default=16, ge=1, le=100_000)
    late_seconds: float = Field(default=90.0, ge=1, le=3600)
    most_minutes: int = Field(default=0, ge=0)
    python: OptionalPath = None
    prefix: tuple[str, ...] = ()
    slurm: QueueSettings = QueueSettings()
    ray: RaySettings = RaySettings()
    queues: dict[str, NamedQueueSettings] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _stages_name_the_scheduler(cls, values: Any) -> Any:
        """With executor = "local", stages that name one scheduler run there, and all others here: as if that one were the executor, and a
        last pattern `*` said "local"."""
        if not isinstance(values, Mapping) or values.get("executor", "local") != "local" or not isinstance(values.get("stages"), Mapping):
            return values
        named = [scheduler for scheduler in SCHEDULERS if scheduler in values["stages"].values()]
        if len(named) != 1:
            return values
        return {**values, "executor": named[0], "stages": {**values["stages"], **({} if "*" in values["stages"] else {"*": "local"})}}

    @model_validator(mode="after")
    def _stages_name_a_place(self) -> Self:
        reserved = sorted({"local", *SCHEDULERS} & self.queues.keys())
        if reserved:
            raise ValueError(f"queues: {reserved[0]!r} can't be the name of a queue; stages can name it without one")
        for stage, place in self.stages.items():
            if place in SCHEDULERS and place != self.executor:
                raise ValueError(
                    f"stages: {stage!r} is to run in {place!r}, but all stages run by one scheduler, or on this machine; name one"
                )
            if place not in ("local", *SCHEDULERS, *self.queues):
                places = ", ".join(["local", *([self.executor] if self.executor != "local" else []), *self.queues])
                raise ValueError(f"stages: {stage!r} is to run in {place!r}, which is none of {places}; add [cluster.queues.{place}]")
        if self.executor == "local" and any(place != "local" for place in self.stages.values()):
            raise ValueError('stages: these run in queues of a scheduler, which cluster.executor must name, for example executor = "slurm"')
        return self

    @model_validator(mode="after")
    def _queues_ask_for_what_the_scheduler_knows(self) -> Self:
        unknown = {"slurm": ("resources",), "ray": OF_SBATCH}.get(self.executor, ())
        for name, queue in self.queues.items():
            for key in unknown:
                if getattr(queue, key):
                    raise ValueError(f'queues.{name}: {key} says nothing to executor = "{self.executor}"; leave it out')
        return self

    @property
    def is_used(self) -> bool:
        """Whether any stage may run on another machine."""
        return self.executor != "local"
