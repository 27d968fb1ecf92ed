"""What the page costs: each route over a journal of 10,000 jobs, a scrape, memory with and without it, ten open pages, and what these take
from an export.

Beside it, in the same run: `ckptd status --json` as a command on the same journal, and a bare starlette route under uvicorn. Routes are
asked once a second, so that each answer is read anew: one that is kept for others, as with several open pages, takes a few ms. Ten open
pages wait for events and ask for what they show at each; something changes every second.

`--exports N` lets a daemon export 2 N checkpoints of a tiny model, in pairs: one with ten open pages and one without, in a random order.
`export_slowdown_percent` is the median of the pairs' ratios, with its quartiles; the pages' own programs run on the same cores, which
browsers do not, so their CPU time is given beside that of the daemon. On a busy machine set CKPTD_LIMITS__PRIORITY=normal: a stage in the
idle class would get nothing there.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common, _stages
from benchmarks.daemon import cpu_seconds, write_config
from tests.ports import free_port

JOBS, PAGES = 10_000, 10
ROUTES = {
    "first_page": "/", "list_page": "/jobs", "list_page_in_the_middle": "/jobs?before=run-20-5020-0000139c",
    "failed_page": "/jobs?state=failed", "job_page": "/jobs/run-20-5020-0000139c", "trace": "/jobs/run-20-5020-0000139c/trace.json",
    "runs_page": "/runs", "run_page": "/run?name=run-03", "status": "/api/v1/status", "jobs": "/api/v1/jobs",
    "jobs_of_a_run": "/api/v1/jobs?run=run-03&state=succeeded",
    "jobs_of_a_state": "/api/v1/jobs?state=failed", "page_in_the_middle": "/api/v1/jobs?before=run-20-5020-0000139c",
    "job": "/api/v1/jobs/run-20-5020-0000139c", "runs": "/api/v1/runs", "healthz": "/healthz", "description": "/api/v1/openapi.json",
}  # fmt: skip
SCRAPE = "/metrics"
BARE = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
async def hello(request): return PlainTextResponse("ok")
uvicorn.run(Starlette(routes=[Route("/", hello)]), port=int(sys.argv[1]), log_level="error")
"""


def get(port: int, path: str) -> tuple[float, int]:
    """Milliseconds of a request on a connection of its own, and its code; 0 where nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    began = time.perf_counter()
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return 1000 * (time.perf_counter() - began), answer.status
    except OSError:
        return 0.0, 0
    finally:
        connection.close()


@contextlib.contextmanager
def serving(argv: list[str], port: int) -> Iterator[psutil.Popen]:
    """A server that answers."""
    process = psutil.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=_common.ROOT)
    try:
        while port and get(port, "/")[1] != 200:
            if process.poll() is not None:
                raise RuntimeError(f"{' '.join(argv)} ended")
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        process.wait(60)


def daemon_with(folder: Path, port: int) -> list[str]:
    """The command of a daemon with a page; of one without for port 0."""
    config = write_config(folder)
    if port:
        config.write_text(f'{config.read_text()}[page]\nlisten = "127.0.0.1:{port}"\n')
    return _common.python("-m", "daemon", "run", "--config", str(config))


def routes_ms(folder: Path, rounds: int) -> dict[str, Any]:
    """p50 and p95 of each route, of the bare route and of the command, in ms, in turns; then what ten open pages take."""
    from tests.page.filled import fill

    port, bare = free_port(), free_port()
    argv = daemon_with(folder, port)
    fill(folder / "state", folder / "out", JOBS)
    paths = {**ROUTES, "scrape": SCRAPE}
    taken: dict[str, list[float]] = {name: [] for name in (*paths, "bare_starlette", "command")}
    with serving(argv, port) as daemon, serving(_common.python("-c", BARE, str(bare)), bare):
        for number in range(rounds + 1):
            began = time.monotonic()
            for name, path in paths.items():
                milliseconds, status = get(port, path)
                if status != 200:
                    raise RuntimeError(f"{path} answers with {status}")
                taken[name].append(milliseconds)
            taken["bare_starlette"].append(get(bare, "/")[0])
            if number % 5 == 0 or number == rounds:  # the first of each is left out below, and few rounds need a second too
                taken["command"].append(1000 * _common.run_child([*argv[:3], "status", "--json", *argv[4:]])[0])
            time.sleep(max(0.0, 1.1 - (time.monotonic() - began)))
        figures: dict[str, Any] = {f"{name}_p50_ms": statistics.median(each[1:]) for name, each in taken.items()}
        figures |= {f"{name}_p95_ms": statistics.quantiles(each[1:], n=20)[-1] for name, each in taken.items() if name != "command"}
        figures |= open_pages(daemon, folder, port, 2 * rounds / 3)
    figures["route_p95_ms"] = max(figures[f"{name}_p95_ms"] for name in ROUTES)
    figures["scrape_ms"] = figures.pop("scrape_p95_ms")
    figures["status_over_command"] = figures["status_p50_ms"] / figures["command_p50_ms"]
    return figures


def look_again(connection: http.client.HTTPConnection) -> None:
    """Ask for the first page, on a new connection where the server has closed the one that was idle for long."""
    for _ in range(2):
        try:
            connection.request("GET", "/", headers={"Accept": "text/html"})
            connection.getresponse().read()
            return
        except ConnectionError:
            connection.close()
    raise RuntimeError("the page does not answer")


@contextlib.contextmanager
def pages_open(port: int, count: int) -> Iterator[None]:
    """Open pages, as browsers have them: a stream each, and a connection by which they look again at each change."""
    end = threading.Event()

    def look() -> None:
        streams, asks = (http.client.HTTPConnection("127.0.0.1", port, timeout=60) for _ in range(2))
        with contextlib.closing(streams), contextlib.closing(asks):
            streams.request("GET", "/events")
            stream = streams.getresponse()
            while (line := stream.readline()) and not end.is_set():
                if line.startswith(b"event: "):
                    look_again(asks)

    watchers = [threading.Thread(target=look, daemon=True) for _ in range(count)]
    for watcher in watchers:
        watcher.start()
    try:
        yield
    finally:
        end.set()
        for watcher in watchers:
            watcher.join(20)


def open_pages(daemon: psutil.Popen, folder: Path, port: int, seconds: float) -> dict[str, float]:
    """CPU time of the daemon without and with PAGES open pages, in percent of a core, while something changes every second."""
    from daemon.journal.journal import Journal

    journal = Journal(folder / "state" / "journal.sqlite3")

    def spent() -> float:
        before, until, paused = cpu_seconds(daemon), time.monotonic() + seconds, False
        while time.monotonic() < until:
            paused = not paused
            journal.controls.pause_all(paused)
            time.sleep(1)
        return 100 * (cpu_seconds(daemon) - before) / seconds

    without = spent()
    with pages_open(port, PAGES):
        time.sleep(3)
        with_pages = spent()
    journal.controls.pause_all(False)
    journal.close()
    return {"cpu_percent_without_open_pages": without, "cpu_percent_with_open_pages": with_pages, "open_pages": PAGES}


TRAIN = """
import sys
from pathlib import Path
from tests.models import train_run
train_run(Path(sys.argv[1]), Path(sys.argv[2]), steps=int(sys.argv[3]), save_steps=1)
"""


def exports_beside(folder: Path, pairs: int) -> dict[str, float]:
    """What PAGES open pages take from exports of a tiny model, with JOBS earlier ones in the journal."""
    from tests.page.filled import fill

    port, base = free_port(), _stages.make_base(folder / "base")
    _common.run_child(_common.python("-c", TRAIN, str(base), str(folder / "training"), str(2 * pairs + 1)))
    taken: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
    argv = daemon_with(folder / "daemon", port)
    fill(folder / "daemon" / "state", folder / "daemon" / "out", JOBS)
    with serving(argv, port) as daemon:
        exported(daemon, folder, 1)  # with which the daemon loads what it needs
        for pair in range(pairs):
            for place, is_open in enumerate(random.sample((False, True), 2)):
                with pages_open(port, PAGES if is_open else 0):
                    taken[is_open].append(exported(daemon, folder, 2 + 2 * pair + place))
    both = list(zip(taken[True], taken[False], strict=True))
    ratios = [100 * (beside[0] / alone[0] - 1) for beside, alone in both]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "export_slowdown_percent": middle, "export_slowdown_low": low, "export_slowdown_high": high, "exports": 2 * pairs,
        "export_s": statistics.median(seconds for seconds, *_ in taken[False]),
        "daemon_cpu_percent_of_pages": statistics.median(100 * (beside[1] - alone[1]) / beside[0] for beside, alone in both),
        "client_cpu_percent_of_pages": statistics.median(100 * beside[2] / beside[0] for beside, _ in both),
    }  # fmt: skip


def exported(daemon: psutil.Popen, folder: Path, step: int) -> tuple[float, float, float]:
    """Seconds of an export, and CPU seconds of the daemon and of this program meanwhile."""
    run, arrives = f"new-{step}", folder / "arrives" / f"new-{step}"
    shutil.copytree(folder / "training" / f"checkpoint-{step}", arrives / f"checkpoint-{step}")
    before = cpu_seconds(daemon), time.process_time()
    os.rename(arrives, folder / "daemon" / "runs" / run)
    while True:
        time.sleep(0.5)
        with contextlib.closing(sqlite3.connect(folder / "daemon" / "state" / "journal.sqlite3", timeout=30)) as journal:
            row = journal.execute("SELECT state, started, ended FROM job WHERE run = ? AND ended IS NOT NULL", (run,)).fetchone()
        if row is not None:
            if row[0] != "succeeded":
                raise RuntimeError(f"the export of {run} ended as {row[0]}")
            began, ended = map(datetime.fromisoformat, row[1:])
            return (ended - began).total_seconds(), cpu_seconds(daemon) - before[0], time.process_time() - before[1]


def memory(folder: Path, settle: float) -> dict[str, float]:
    """Resident MiB of a daemon without and with a page that has answered each route once, idle beside each other."""
    port = free_port()
    with serving(daemon_with(folder / "without", 0), 0) as without, serving(daemon_with(folder / "with", port), port) as with_page:
        for path in ("/", *ROUTES.values(), SCRAPE):
            get(port, path)
        time.sleep(settle)
        return {
            "idle_rss_mb": without.memory_info().rss / (1 << 20),
            "idle_rss_with_page_mb": with_page.memory_info().rss / (1 << 20),
        }


def main() -> None:
    parser = _common.parser(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=30, help="requests to each route, at least 2")
    parser.add_argument("--exports", type=int, default=0, help="pairs of exports, with and without open pages; 0: none")
    arguments = parser.parse_args()
    with _common.scratch("page") as folder:
        (folder / "many").mkdir()
        figures = memory(folder, 20.0) | routes_ms(folder / "many", max(2, arguments.rounds))
        figures |= exports_beside(folder, arguments.exports) if arguments.exports else {}
    _common.write(
        "page", {name: round(value, 2) for name, value in figures.items()}, arguments.json, libraries=("starlette", "uvicorn", "h11")
    )


if __name__ == "__main__":
    main()
