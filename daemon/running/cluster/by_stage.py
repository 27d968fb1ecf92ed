"""One executor of several: some stages run on this box, others by a scheduler, as `[cluster]` says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from daemon.config.cluster import ClusterSettings
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats.stages import StageSpec
from daemon.contract.jobs.messages import StageContext, StageResult
from daemon.contract.jobs.processes import elsewhere
from daemon.contract.jobs.processes.elsewhere import ORDERS, Claim, Orders
from daemon.running.attempts.executor import Attempt, Bounds, Executor, Order
from daemon.running.cluster.executor import ClusterExecutor, Terms
from daemon.running.cluster.port import Scheduler
from daemon.running.cluster.ray.scheduler import Ray, why_not
from daemon.running.cluster.slurm.scheduler import Options, Slurm

LOCAL = "local"


class ByStage:
    """`local` and the cluster that is configured, each for its stages. What an earlier configuration handed in stays with the scheduler
    that has it: `clusters` are all of them."""

    def __init__(self, settings: ClusterSettings, local: Executor, clusters: Mapping[str, ClusterExecutor]) -> None:
        self._settings, self._local, self._clusters = settings, local, clusters
        self._cluster = clusters.get(settings.executor) or next(iter(clusters.values()))

    def prepare(self) -> None:
        """As `Executor.prepare`."""
        self._local.prepare()
        self._cluster.prepare()

    def _queue(self, stage: str) -> str:
        return queue_of(self._settings, stage)

    def runs_here(self, spec: StageSpec) -> bool:
        """As `Executor.runs_here`."""
        return self._queue(spec.name) == LOCAL

    def start(self, order: Order) -> Attempt:
        """As `Executor.start`."""
        queue = self._queue(order.context.stage)
        return self._local.start(order) if queue == LOCAL else self._cluster.start(order, terms_of(self._settings, queue))

    def getting_ready(self, context: StageContext, bounds: Bounds) -> bool:
        """As the local executor's, for stages of this box."""
        ask = getattr(self._local, "getting_ready", None)
        return self._queue(context.stage) == LOCAL and ask is not None and bool(ask(context, bounds))

    def reclaim(self, id: str | None, folder: Path, bounds: Bounds) -> Attempt | StageResult | None:
        """As `Executor.reclaim`: the folder says whose the attempt is, whatever the configuration is now. What nobody was asked for is made
        anew where the configuration says."""
        orders = elsewhere.get(folder, ORDERS, Orders)
        unasked = orders is not None and orders.submission == "none" and orders.scheduler != self._settings.executor
        if unasked and elsewhere.take(folder, Claim(by="daemon")):
            return None
        owner: Executor = self._clusters.get(orders.scheduler, self._cluster) if orders is not None else self._local
        return owner.reclaim(id, folder, bounds)

    def tidy(self) -> None:
        """As `Executor.tidy`."""
        self._local.tidy()

    def at_work(self, jobs: Path) -> Mapping[str, Path]:
        """As `Executor.at_work`."""
        return {**self._local.at_work(jobs), **self._cluster.at_work(jobs)}


def queue_of(settings: ClusterSettings, stage: str) -> str:
    """`local`, or the name of the queue that a stage is handed in to, "" for the one without a name."""
    for pattern, place in settings.stages.items():
        if fnmatchcase(stage, pattern):
            return "" if place == settings.executor and place != LOCAL else place
    return LOCAL if settings.executor == LOCAL else ""


def terms_of(settings: ClusterSettings, queue: str) -> Terms:
    """What is asked for attempts of a queue; of the queue without a name for ""."""
    options = settings.queues.get(queue) or (settings.ray if settings.executor == "ray" else settings.slurm)
    python = {"python": str(settings.python)} if settings.python is not None else {}
    return Terms(
        queue=queue, prefix=options.prefix or settings.prefix, cpus=options.cpus, memory=int(options.memory), gpus=options.gpus,
        scratch=options.scratch, most_seconds=60.0 * settings.most_minutes, **python,
    )  # fmt: skip


def slurm_of(settings: ClusterSettings) -> Slurm:
    """Slurm with the options of all queues."""
    rows = {"": settings.slurm, **settings.queues}
    return Slurm({
        name: Options(row.partition, row.account, row.qos, row.constraint, row.options) for name, row in rows.items()
    })  # fmt: skip


def ray_of(settings: ClusterSettings) -> Ray:
    """Ray with the custom resources of all queues."""
    custom = {"": settings.ray.resources, **{name: row.resources for name, row in settings.queues.items()}}
    return Ray(settings.ray.address, str(settings.ray.python or ""), custom)


def scheduler_of(settings: ClusterSettings) -> Scheduler:
    """The scheduler that is configured. Raises UsageError where this machine lacks what it takes."""
    if settings.executor != "ray":
        return slurm_of(settings)
    if refused := why_not(settings.ray.address, str(settings.ray.python or "")):
        raise UsageError(FaultCode.CONFIG_INVALID, 'use cluster.executor = "ray"', *refused)
    return ray_of(settings)


def tail_of(settings: ClusterSettings, folder: Path) -> str:
    """The end of what the scheduler itself says of the attempt in `folder`, "" for nothing and where it gives no answer."""
    orders = elsewhere.get(folder, ORDERS, Orders)
    if orders is None:
        return ""
    scheduler: Scheduler = ray_of(settings) if orders.scheduler == Ray.name else slurm_of(settings)
    return scheduler.tail(orders.token, folder)


def with_cluster(settings: ClusterSettings, local: Executor, command: Sequence[str] = ()) -> Executor:
    """The executor of a configuration. `command`: as for `ClusterExecutor`. Raises UsageError as `scheduler_of`."""
    terms = terms_of(settings, "")
    schedulers: list[Scheduler] = [slurm_of(settings), ray_of(settings), scheduler_of(settings)]
    clusters = {known.name: ClusterExecutor(known, terms, settings.late_seconds, command) for known in schedulers}
    return ByStage(settings, local, clusters)
