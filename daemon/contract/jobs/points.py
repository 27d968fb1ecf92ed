"""What is known of a run's exports, as data: one point for each export, with the figures of its artifacts. Pure.

`daemon.contract.jobs.run_figures` makes and judges them.
"""

from __future__ import annotations

from pydantic import ConfigDict, Field

from daemon.contract.values import Frozen

MOST_STEPS = 50
"""Exports of a run that are looked at, the latest by step."""


class Point(Frozen):
    """Documented by its attributes' docstrings, since report.json holds these too. What another version wrote beside is left out."""

    model_config = ConfigDict(extra="ignore")


class TaskPoint(Point):
    """What one of `[[validate.tasks]]` measured an artifact by."""

    metric: str = ""
    """What an item's score is."""
    more: bool = True
    """Whether more is better."""
    digest: str = ""
    """Stands for the items: values can be compared where it is equal."""


class ArtifactPoint(Point):
    """One artifact at one step; null was not measured."""

    verdict: str
    """`passed`, `failed` or `unverified`."""
    published: bool
    """Whether the export's folder holds it."""
    size_bytes: int | None = None
    """Bytes of all files."""
    kl: float | None = None
    """Divergence from the live model, in nats a position."""
    agreement: float | None = None
    """Share of positions with the live model's choice."""
    speed_over_pytorch: float | None = None
    """Its speed over PyTorch's."""
    tokens_per_second: float | None = None
    """Tokens decoded (or, by an encoder, read) a second."""
    kl_interval: tuple[float, float] | None = None
    """The 95 % interval of the divergence."""
    agreement_interval: tuple[float, float] | None = None
    """The 95 % interval of the agreement."""
    speed_range: tuple[float, float] | None = None
    """The slowest and the fastest of the turns that the speed over PyTorch's is the median of."""
    quality: dict[str, float] = Field(default_factory=dict)
    """The metrics of `run_figures.METRICS` that were measured, and the values of the user's own tasks, by their names."""
    by_text: dict[str, tuple[tuple[float, float], ...]] = Field(default_factory=dict)
    """The same for each text, or item of a task, as [sum, weight] (`daemon.contract.advice.paired`): what exports are compared by. Empty in
    reports of ckptd 1.0, and in `run_so_far` of a report."""
    tasks: dict[str, TaskPoint] = Field(default_factory=dict)
    """Task → by what it measured, in the order of the configuration; what could not be run is missing."""


class StepPoint(Point):
    """One export of a run."""

    export: str
    """Id of its job."""
    step: int
    """Optimizer step of the checkpoint."""
    ending: bool = False
    """It is what training ended with, after the checkpoint of that step."""
    status: str = ""
    """How the export ended."""
    finished: str = ""
    """When its report was written, as ISO 8601."""
    loss: float | None = None
    """What training recorded last: the loss of the evaluation, else that of the training."""
    comparison: str = ""
    """Digest of the texts and the settings of the comparison: figures of two exports can be compared where these are equal; "" where they
    are not known."""
    kept: bool = True
    """Whether its folder was there when this was read."""
    artifacts: dict[str, ArtifactPoint] = Field(default_factory=dict)
    """Variant → its figures."""
    recommended: str = ""
    """The artifact that its report recommends, with what speaks for it; "" where it recommends none."""

    @property
    def place(self) -> tuple[int, bool, str]:
        """Its place in the order of training; of two of one step the one that was made later is the later one."""
        return self.step, self.ending, self.finished

    @property
    def label(self) -> str:
        """What people call it."""
        return f"the end (after step {self.step})" if self.ending else f"step {self.step}"


class RunFigures(Point):
    """What the daemon tells the report of the run's other exports."""

    points: tuple[StepPoint, ...] = ()
    """In the order of training, at most `MOST_STEPS`."""
    trainers_best: int | None = None
    """The step that the trainer names as its best; null where it names none."""
    best_variant: str = ""
    """`select.best_variant`."""
    best_task: str = ""
    """The task that `select.best_by` names; "" where it names none."""
    folders: dict[str, str] = Field(default_factory=dict)
    """Id of an export's job → its folder, as a path from inside this export's; of those that are there."""
    latest: str = ""
    """The run's link `latest` as such a path, whether it is there already or will be; "" where the run has none."""
    best: str = ""
    """The run's link `best`, if it is there."""
