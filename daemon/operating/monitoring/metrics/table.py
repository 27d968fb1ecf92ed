"""The metrics: their names, kinds, labels and meanings. docs/operating.md has the table as a page.

Names follow Prometheus's conventions: base units, counters end in `_total`, what is counted begins with the daemon's start at 0. Light: it
imports nothing of Prometheus's library.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True)
class Metric:
    """A family of figures."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, without the last one, infinity."""


TICK_SECONDS = 15.0
"""Between two takings of the figures."""
MINUTE, HOUR, MIB = 60.0, 3600.0, 2**20
SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, MINUTE, 3 * MINUTE, 10 * MINUTE, 30 * MINUTE, HOUR, 3 * HOUR, 10 * HOUR)
"""A merge of a small adapter takes a tenth of a second, a quantization of a large model hours."""
MOMENTS = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 30.0, MINUTE, 5 * MINUTE, HOUR)
"""Fine around the default of `watch.settle_seconds`, which is in each."""
MEMORY = tuple(float(64 * MIB << doubling) for doubling in range(13))
"""64 MiB to 256 GiB."""

METRICS = (
    Metric("ckptd_build_info", "gauge", "Version of the running daemon; the value is always 1.", ("version",)),
    Metric("ckptd_figures_time_seconds", "gauge", "When these figures were taken, in seconds since the epoch."),
    Metric("ckptd_start_time_seconds", "gauge", "When the daemon was started, in seconds since the epoch."),
    Metric("ckptd_condition", "gauge", "Condition of the daemon: 1 for the present one, 0 for the others.", ("condition",)),
    Metric("ckptd_paused", "gauge", "1 while `ckptd queue pause` holds all exports, else 0."),
    Metric("ckptd_config_last_reload_successful", "gauge", "1 if the last reload succeeded, 0 if it was refused."),
    Metric("ckptd_thread_deaths", "gauge", "Threads of the daemon that failed and were restarted, since it started."),
    Metric("ckptd_resident_bytes", "gauge", "Resident memory of the daemon itself."),
    Metric("ckptd_last_scan_age_seconds", "gauge", "Seconds since the last scan of the roots ended."),
    Metric("ckptd_scan_interval_seconds", "gauge", "Seconds between scans of the roots: watch.rescan_seconds."),
    Metric("ckptd_root_up", "gauge", "1 if the root exists and its file system answers, else 0.", ("root",)),
    Metric("ckptd_incomplete_checkpoints", "gauge", "Checkpoint directories that no longer change and are not complete."),
    Metric("ckptd_unreadable_directories", "gauge", "Directories below the roots that the daemon's user can't read."),
    Metric("ckptd_lost_checkpoints", "gauge", "Checkpoints in the journal that were deleted before they could be pinned."),
    Metric("ckptd_jobs", "gauge", "Exports in the journal by state.", ("state",)),
    Metric("ckptd_jobs_waiting", "gauge", "Open exports that can't start a stage now, by the fault code of the reason.", ("reason",)),
    Metric("ckptd_oldest_open_job_age_seconds", "gauge", "Age of the oldest open export, in seconds; 0 if there is none."),
    Metric("ckptd_children", "gauge", "Running child processes."),
    Metric("ckptd_children_starved", "gauge", "Child processes that get less than half of the CPU time that they could use."),
    Metric("ckptd_children_memory_bytes", "gauge", "Memory of all child processes, in bytes."),
    Metric("ckptd_disk_low", "gauge", "File systems without enough room for what is to be written."),
    Metric("ckptd_state_free_bytes", "gauge", "Free bytes on the file system of the state directory."),
    Metric("ckptd_output_free_bytes", "gauge", "Free bytes on the file system of the output directory."),
    Metric("ckptd_outbox_pending", "gauge", "Notifications that wait for delivery, without those that quiet hours hold."),
    Metric("ckptd_deliveries", "gauge", "Deliveries of exports in the journal by target of `[[deliver]]` and state.", ("target", "state")),
    Metric("ckptd_oldest_delivery_age_seconds", "gauge",
           "Age of the oldest delivery to a target that waits, runs or failed, in seconds; 0 if there is none.", ("target",)),
    Metric("ckptd_delivered_bytes", "gauge", "Bytes sent for what lies at a target now.", ("target",)),
    Metric("ckptd_exports_total", "counter", "Exports that ended, by final state.", ("state",)),
    Metric("ckptd_artifacts_total", "counter", "Artifacts of exports that ended, by the verdict of their check.", ("variant", "verdict")),
    Metric("ckptd_attempts_total", "counter", "Attempts at a stage that ended, by outcome.", ("stage", "outcome")),
    Metric("ckptd_stage_duration_seconds", "histogram", "Duration of the successful attempts at a stage.", ("stage",), SECONDS),
    Metric("ckptd_stage_peak_memory_bytes", "histogram", "Largest memory of the successful attempts at a stage.", ("stage",), MEMORY),
    Metric("ckptd_export_duration_seconds", "histogram", "Time from start to end of the exports that ended.", ("state",), SECONDS),
    Metric("ckptd_detection_latency_seconds", "histogram",
           "Time from the last write of a checkpoint to its job in the journal, of checkpoints that were written while the daemon ran.",
           buckets=MOMENTS),
    Metric("ckptd_queue_duration_seconds", "histogram", "Time from a job in the journal to the start of its first stage.", buckets=SECONDS),
    Metric("ckptd_publication_delay_seconds", "histogram",
           "Time from the last write of a checkpoint to its published export; exports that were put back into the queue are left out.",
           buckets=SECONDS),
    Metric("ckptd_stage_seconds_total", "counter",
           "Total duration of the successful attempts at a stage, in seconds. Deprecated: use ckptd_stage_duration_seconds_sum.",
           ("stage",)),
    Metric("ckptd_export_seconds_total", "counter",
           "Total time from start to end of the exports that ended, in seconds. Deprecated: use ckptd_export_duration_seconds_sum.",
           ("state",)),
)  # fmt: skip
CONDITIONS = ("healthy", "full", "unwell")


def table(metrics: Iterable[Metric] = METRICS) -> str:
    """The page's table, in Markdown."""
    rows = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.help} |" for metric in metrics
    ]
    return "\n".join(["| name | kind | labels | what it says |", "| --- | --- | --- | --- |", *rows]) + "\n"
