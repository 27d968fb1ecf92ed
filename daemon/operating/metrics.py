"""Figures for Prometheus, as a text file that node_exporter's textfile collector picks up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from daemon.contract.files import write_atomic

_HELP = {
    "ckptd_jobs": "Jobs in the journal by state.",
    "ckptd_children": "Child processes that run now.",
    "ckptd_incomplete_checkpoints": "Checkpoint directories that are quiet and not complete.",
    "ckptd_outbox_pending": "Notifications that wait for delivery.",
    "ckptd_last_scan_age_seconds": "Seconds since the last scan of the roots ended.",
    "ckptd_resident_bytes": "Resident memory of the daemon itself.",
    "ckptd_disk_low": "File systems that have no room for what is to be written.",
    "ckptd_state_free_bytes": "Free bytes on the file system of the state directory.",
    "ckptd_output_free_bytes": "Free bytes on the file system of the output directory.",
    "ckptd_thread_deaths": "Deaths of the daemon's threads since it started; each was begun again.",
}


def render(jobs: Mapping[str, int], gauges: Mapping[str, float]) -> str:
    """The exposition text."""
    lines = [f"# HELP ckptd_jobs {_HELP['ckptd_jobs']}", "# TYPE ckptd_jobs gauge"]
    lines += [f'ckptd_jobs{{state="{state}"}} {count}' for state, count in sorted(jobs.items())]
    for name, value in gauges.items():
        lines += [f"# HELP {name} {_HELP[name]}", f"# TYPE {name} gauge", f"{name} {value:g}"]
    return "\n".join(lines) + "\n"


def write(file: Path, text: str) -> None:
    """Replace the file; a collector never reads half of it."""
    for folder in reversed([folder for folder in file.parents if not folder.exists()]):
        folder.mkdir()
        folder.chmod(0o755)  # counts alone, for a collector that runs as another user
    write_atomic(file, text, durable=False, mode=0o644)
