"""Counters and histograms of what ended since the daemon's start, followed in the journal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from pydantic import ValidationError

from daemon.contract.faults.errors import CkptdError
from daemon.contract.jobs.figures import ReportFigures, figures_of
from daemon.contract.jobs.messages import Outcome, StageResult, Verdict
from daemon.journal.following import EndedAttempt, EndedJob, Follower
from daemon.journal.journal import Journal
from daemon.journal.states import ENDED_JOB
from daemon.operating.monitoring.metrics.figures import Figures


class Counted:
    """What ended since the daemon's start: counters begin with the daemon, as Prometheus expects."""

    def __init__(self, journal: Journal, stages: Iterable[str], variants: Iterable[str]) -> None:
        """`stages`, `variants`: what exports have by the present configuration."""
        self._follower = Follower(journal.database)
        self.figures = Figures("counter", "histogram")
        for state in ENDED_JOB:
            self.figures.begin("ckptd_exports_total", state=state)
            self.figures.begin("ckptd_export_duration_seconds", state=state)
        for stage in stages:
            self.figures.begin("ckptd_stage_duration_seconds", stage=stage)
            self.figures.begin("ckptd_stage_peak_memory_bytes", stage=stage)
            for outcome in Outcome:
                self.figures.begin("ckptd_attempts_total", stage=stage, outcome=outcome)
        for variant in variants:
            for verdict in Verdict:
                self.figures.begin("ckptd_artifacts_total", variant=variant, verdict=verdict)
        with contextlib.suppress(CkptdError):  # what ends from now on is counted, where the journal can be read
            self.look()

    def look(self) -> Figures:
        """The figures up to now. Raises what the journal raises."""
        news = self._follower.look()
        for attempt in news.attempts:
            self._take_attempt(attempt)
        for job in news.jobs:
            self._take_job(job)
        for seconds in news.detections:
            self.figures.observe("ckptd_detection_latency_seconds", seconds)
        for seconds in news.waits:
            self.figures.observe("ckptd_queue_duration_seconds", seconds)
        return self.figures

    def _take_attempt(self, attempt: EndedAttempt) -> None:
        self.figures.count("ckptd_attempts_total", stage=attempt.stage, outcome=attempt.outcome)
        if attempt.outcome != "succeeded" or attempt.result is None:
            return
        try:
            result = StageResult.model_validate_json(attempt.result)
        except ValidationError:
            return
        self.figures.count("ckptd_stage_seconds_total", result.seconds, stage=attempt.stage)
        self.figures.observe("ckptd_stage_duration_seconds", result.seconds, stage=attempt.stage)
        if result.peak_rss:  # 0 where its executor could not measure it
            self.figures.observe("ckptd_stage_peak_memory_bytes", result.peak_rss, stage=attempt.stage)
        if attempt.stage == "report" and (said := figures_of(result.figures, ReportFigures)) is not None:
            for variant, verdict in said.artifacts.items():
                self.figures.count("ckptd_artifacts_total", variant=variant, verdict=verdict)

    def _take_job(self, job: EndedJob) -> None:
        self.figures.count("ckptd_exports_total", state=job.state)
        if job.seconds is not None:
            self.figures.count("ckptd_export_seconds_total", job.seconds, state=job.state)
            self.figures.observe("ckptd_export_duration_seconds", job.seconds, state=job.state)
        if job.since_written is not None and job.state in ("succeeded", "partial"):
            self.figures.observe("ckptd_publication_delay_seconds", job.since_written)
