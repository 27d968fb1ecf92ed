"""What is said of the daemon before its exports: what is wrong with it, its roots, what it does not take, and how many exports there are.

For `ckptd status` and the page, in the reader's language.
"""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING

from daemon.contract import units
from daemon.contract.faults.text import local_time, one_line
from daemon.contract.language.catalog import language, to_translate, translated, translated_plural, translated_text
from daemon.contract.language.lists import bracketed, clauses, labelled
from daemon.journal.states import ENDED_JOB
from daemon.operating.monitoring.reasons import waiting
from daemon.operating.monitoring.status import rows
from daemon.operating.wording.exports import counted

if TYPE_CHECKING:
    from daemon.journal.overview import TargetState
    from daemon.operating.monitoring.live import RootState
    from daemon.operating.monitoring.status import Snapshot

_OPEN = ("running", "stopped", "waiting", "paused")
_VERDICTS = (to_translate("healthy"), to_translate("unwell"), to_translate("full"))


def notices(value: Snapshot, most: int | None) -> list[tuple[str, str, str]]:
    """(label, text, style of the label) of what there is to say before the exports."""
    return [
        *_daemon(value),
        *_notices(value),
        *_roots(value),
        *_directories(value, most),
        *_undelivered(value),
        *_deliveries(value),
        *_kept(value),
        *_queue(value),
    ]


def _daemon(value: Snapshot) -> list[tuple[str, str, str]]:
    daemon = value.daemon
    if not daemon.running:
        file = value.config or (daemon.configuration and daemon.configuration.file)
        start = (
            translated("start it with `ckptd run --config {file}`; the state is {state}")
            if file
            else translated("start it with `ckptd run --config FILE` (`ckptd init` writes FILE); the state is {state}")
        ).format(file=shlex.quote(file or ""), state=value.state_directory)
        label = translated("not running:")
        if not daemon.killed:
            return [(label, start, "yellow")]
        ended = translated(
            "the daemon did not shut down cleanly: it was killed or it crashed, or the machine stopped. It was last seen alive at {time}."
            " To continue, {start}"
        )
        return [(label, ended.format(time=local_time(daemon.said, "seconds"), start=start), "red")]
    if daemon.host:
        there = translated(
            "a ckptd on {host} (pid {pid}, since {time}) works with this state; run `ckptd status` there to see its exports. This machine"
            " does not open its journal, since the file system does not show it the lock"
        )
        text = there.format(host=daemon.host, pid=daemon.pid, time=local_time(daemon.started))
        return [(translated("running on another machine:"), text, "yellow")]
    verdict = daemon.verdict or ("healthy" if daemon.healthy else "unwell")
    if daemon.stopping:
        stopping = translated(
            "(pid {pid}) since {time}: it starts nothing new, and ends when the running stages have stopped; a second signal ends them at"
            " once"
        )
        return [(translated("stopping"), stopping.format(pid=daemon.pid, time=local_time(daemon.stopping, "seconds")), "yellow")]
    known = translated("(pid {pid}, since {time})").format(pid=daemon.pid, time=local_time(daemon.started))
    style = "red" if verdict != "healthy" else "yellow" if daemon.starved else "green"
    short = translated("running, {verdict}, short of CPU time") if daemon.starved else translated("running, {verdict}")
    return [(short.format(verdict=translated(verdict)), known, style)]


def _notices(value: Snapshot) -> list[tuple[str, str, str]]:
    """What a person should know before anything else."""
    waits = translated("{sentence}; work waits until there is enough. {delete}")
    notices = [
        (translated("no room"), waits.format(sentence=translated_text(disk.sentence()), delete=translated_text(disk.delete)), "red")
        for disk in value.disks
    ]
    notices += [(translated("configuration"), translated_text(value.config_problem), "red")] if value.config_problem else []
    notices += [(translated("unwell"), translated_text(why), "red") for why in value.daemon.unwell]
    notices += [(translated("short of CPU time"), translated_text(why), "yellow") for why in value.daemon.starved]
    notices += [(translated("scheduler"), translated_text(why), "yellow") for why in value.daemon.schedulers]
    if value.daemon.page is not None and value.daemon.page.problem:
        notices.append((translated("page"), translated_text(value.daemon.page.problem), "yellow"))
    if (value.daemon.verdict == "unwell" or value.daemon.healthy is False) and not (value.daemon.unwell or value.disks):
        notices.append((translated("unwell"), translated("The daemon does not say why: see `ckptd logs`."), "red"))
    restarted = translated("at {time}: {sentence} It was restarted.")
    notices += [
        (translated("thread"), restarted.format(time=local_time(death.at), sentence=translated_text(death.sentence())), "yellow")
        for death in value.daemon.deaths
    ]  # fmt: skip
    if value.last_end is not None:
        ended = translated("at {time}. {why}").format(time=local_time(value.last_end.at), why=translated_text(value.last_end.why))
        notices.append((translated("ckptd ended by itself"), ended, "red"))
    if value.paused:
        paused = translated("since {time}: no stage is started; `ckptd queue resume` continues the work")
        notices.append((translated("paused"), paused.format(time=local_time(value.paused)), "yellow"))
    loaded = value.daemon.configuration if value.daemon.running else None
    if loaded and loaded.problem:
        notices.append((translated("the last reload was refused:"), translated_text(one_line(loaded.problem)), "red"))
    if loaded and loaded.is_of_another_file(value.config):
        other = (
            translated("the daemon that is shown here works on {other}, not on {file}")
            if loaded.file
            else translated("the daemon that is shown here works without a configuration file, not on {file}")
        )
        notices.append((translated("configuration"), other.format(other=loaded.file, file=value.config), "yellow"))
    if (journal := value.daemon.journal) and journal.problem:
        notices.append((translated("journal"), translated_text(journal.problem), "red"))
    if rebuilt := value.journal:
        text = translated("from {source} at {time}; the damaged file is {file}").format(
            source=rebuilt.get("from"), time=local_time(rebuilt.get("at")), file=rebuilt.get("set_aside")
        )
        notices.append((translated("the journal was damaged and rebuilt"), text, "yellow"))
    return notices


def _roots(value: Snapshot) -> list[tuple[str, str, str]]:
    return [(translated("root"), f"{root.path} ({root.backend}{_state_of(root)})", "bold") for root in value.roots]


def _state_of(root: RootState) -> str:
    if root.silent_seconds is not None:
        silent = translated(", its file system has not answered for {time}: look at the mount and its server")
        return silent.format(time=units.running(root.silent_seconds))
    return "" if root.exists else translated(", does not exist yet")


def _directories(value: Snapshot, most: int | None) -> list[tuple[str, str, str]]:
    """What was found below the roots and is not exported: of each kind the first `most`, and how many more there are."""
    line = translated("{path} for {time}: {missing}")
    incomplete = [
        line.format(path=directory.path, time=units.running(directory.seconds), missing=translated_text("; ".join(directory.missing)))
        for directory in value.incomplete
    ]  # fmt: skip
    lost = translated("{path} at {time}: deleted {lived} after it was first seen")
    kinds = [
        (translated("incomplete"), "yellow", translated("that are incomplete"), incomplete),
        *((_waiting_for(what), "yellow", _that_wait_for(what),
           [labelled(entry.path, translated_text(entry.why)) for entry in value.delayed if waiting(entry.code) == what])
          for what in dict.fromkeys(waiting(entry.code) for entry in value.delayed)),
        (translated("seen, not watched"), "yellow", translated("that are seen and not watched"),
         [labelled(path, translated_text(why)) for path, why in value.passed_over.items()]),
        (translated("not readable"), "red", translated("that can't be read"),
         [labelled(path, translated_text(why)) for path, why in value.unreadable.items()]),
        (translated("lost"), "red", translated("that are lost"),
         [lost.format(path=row.path, time=local_time(row.last_seen), lived=units.duration(row.lived)) for row in value.lost]),
        (translated("no export ends"), "yellow", translated("of which no export ends"),
         [translated_text(again.sentence()) for again in value.rewritten]),
    ]  # fmt: skip
    notices = []
    for label, style, which, texts in kinds:
        notices += [(label, text, style) for text in texts[:most]]
        if most is not None and len(texts) > most:
            more = translated("and {count} more {which};").format(count=len(texts) - most, which=which)
            notices.append((more, translated("`ckptd status --all` lists them"), style))
    return notices


def _waiting_for(what: str) -> str:
    """`what`: "waits for …"."""  # fmt: skip
    return what.replace("waits", "waiting") if language() == "en" else translated_text(what)


def _that_wait_for(what: str) -> str:
    return f"that {what.replace('waits', 'wait')}" if language() == "en" else translated_text(what)


def _undelivered(value: Snapshot) -> list[tuple[str, str, str]]:
    """Notifications that wait, and why."""
    waiting = value.outbox.get("pending", 0)
    label = translated_plural("{count} notification waits", "{count} notifications wait", waiting).format(count=waiting)
    notices = [(label, translated("for delivery"), "yellow")] if waiting else []
    return notices + [
        (translated("not notified"), _trouble_of(target), "yellow") for target in value.notified if target.failures or target.given_up
    ]


def _deliveries(value: Snapshot) -> list[tuple[str, str, str]]:
    """Exports that do not lie where they are to be, and why."""
    notices = []
    for target in value.deliveries:
        open_, failed = target.counts.get("waiting", 0) + target.counts.get("running", 0), target.counts.get("failed", 0)
        said = [translated("{count} to be carried").format(count=open_)] if open_ else []
        said += [translated("{count} failed (`ckptd list` names them)").format(count=failed)] if failed else []
        if said:
            error = translated_text(target.error) if target.error and (failed or target.failures) else ""
            text = labelled(clauses(said), error) if error else clauses(said)
            label = translated("deliveries to {target}:").format(target=target.target)
            notices.append((label, text, "red" if failed else "yellow" if target.failures else "bold"))
    return notices


def _kept(value: Snapshot) -> list[tuple[str, str, str]]:
    loaded = value.daemon.configuration if value.daemon.running else None
    return [(translated("retention"), translated_text(loaded.retention), "bold")] if loaded and loaded.retention else []


def _trouble_of(target: TargetState) -> str:
    """Why a service does not get its notifications, and how many it did not get."""
    said = [translated("{count} wait").format(count=target.waiting)] if target.waiting else []
    said += [translated("{count} given up within a week: `ckptd notify list`").format(count=target.given_up)] if target.given_up else []
    about = bracketed(target.target, clauses(said) or translated("nothing waits"))
    return labelled(about, translated_text(target.error)) if target.error else about


def _queue(value: Snapshot) -> list[tuple[str, str, str]]:
    """How many exports there are of each kind."""
    ended = Counter({state: value.counts[state] for state in ENDED_JOB if state in value.counts})
    opened = Counter(job.activity or job.state for job in rows(value) if job.state not in ENDED_JOB)
    opened["waiting"] += opened.pop("pending", 0)
    listed = sum(job.state not in ENDED_JOB for job in value.jobs)
    opened["waiting"] += max(0, value.counts.get("running", 0) + value.counts.get("pending", 0) - listed)  # those without a row
    counts = [counted(count, state) for state in (*_OPEN, *ENDED_JOB) if (count := (opened + ended)[state])]
    return [(translated("exports"), clauses(counts), "bold")] if counts else []
