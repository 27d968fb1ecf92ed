"""The job file: all that a child is told. Its names are those of `daemon.contract.jobs.messages`, from which they are imported."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from daemon.contract.formats.declaration import FormatEntry
from daemon.contract.jobs.messages import ADDITIONS, CONTRACT_VERSION, Addition, CheckpointRef, StageFacts
from daemon.contract.jobs.options import Work
from daemon.contract.jobs.points import RunFigures
from daemon.contract.jobs.processes.benchmark import BenchRequest
from daemon.contract.language.catalog import Language
from daemon.contract.values import Frozen


class ChildLimits(Frozen):
    """How a child must behave on a box that is busy training."""

    threads: int = 1
    nice: int = 19
    idle: bool = True
    """Use the idle scheduling and I/O classes."""
    oom_score_adj: int = 800
    device: str = "cpu"
    memory: int = 0
    """Bytes that it may use, with all processes that it starts; 0: it was not told."""
    parent_pid: int = 0
    """The daemon's process id: a child that finds another parent ends itself. 0: no check."""
    resumable: bool = False
    """When asked to stop, the child continues to its next safe point, since its work until then is kept; otherwise it ends at once."""


class JobFacts(Frozen):
    """What the journal knows about a job: the material of its report."""

    export_id: str
    created: str
    started: str | None = None
    checkpoint: CheckpointRef
    base: str | None = None
    work: Work
    stages: tuple[StageFacts, ...] = ()
    target: str = ""
    """Folder in which the export will be published."""
    warnings: tuple[str, ...] = ()
    run: RunFigures | None = None
    """What the run's other exports say; given to the report alone, as is the next."""
    access: str | None = None
    """Who may read the export, where its sources are open to fewer users than its folder would be."""


class StageContext(Frozen):
    """The job file: all input of a child."""

    contract: int = CONTRACT_VERSION
    job: str
    stage: str
    entry: str = ""
    """`module:function` of the code that makes the stage."""
    toolchain: str = ""
    """The toolchain whose Python runs it; "" for the one that ckptd is installed in."""
    python: str = ""
    """The Python that ckptd is installed in, for what a stage in a toolchain needs PyTorch for."""
    attempt: int
    strategy: str = "default"
    checkpoint: CheckpointRef
    pin: str
    """Folder with the pinned copy of the checkpoint's files; of one in pieces, what `consolidate` made of it."""
    base: str | None = None
    """Folder of the base model; None for a full fine-tune."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """Stage name → folder of its output, for every stage of this job that has succeeded."""
    staging: str
    """Folder to write into, on the file system of the output. Empty, but for a resumable stage (`daemon.contract.jobs.plan`), which
    finds there what interrupted attempts with the same inputs and versions left, and decides itself what of it is whole."""
    staging_inode: int = 0
    """Of that folder, as the daemon made it; 0 where it was not told."""
    result: str
    """Where the result file goes."""
    temporary: str
    """Folder for temporary files; removed by the daemon."""
    cache: str
    """Folder for what may be reused by other jobs."""
    work: Work
    key: str | None = None
    """Resume key: digest of all that determines the stage's output."""
    limits: ChildLimits = ChildLimits()
    language: Language = "en"
    """Of the pages for people; what programs read, and what is recorded, is English in every language."""
    formats: tuple[FormatEntry, ...] = ()
    """The formats that the daemon knows: a child, perhaps in another Python, takes the same ones."""
    facts: JobFacts | None = None
    """Only for the report stage."""
    bench: BenchRequest | None = None
    """Only for the stage of `ckptd bench`."""

    @property
    def additions(self) -> tuple[tuple[Path, Addition], ...]:
        """The adapters that are merged with the checkpoint's own, each with the folder of its pin."""
        return tuple((Path(self.pin, ADDITIONS, str(number)), addition) for number, addition in enumerate(self.checkpoint.additions))

    @property
    def attempt_id(self) -> str:
        """What names this attempt among all of the journal."""
        return f"{self.job}/{self.stage}/{self.attempt}"
