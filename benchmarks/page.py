"""What the page costs: each route over a journal of 10,000 jobs, a scrape, memory with and without it, and ten open pages.

Beside it, in the same run: `ckptd status --json` as a command on the same journal, and a bare starlette route under uvicorn. Routes are
asked once a second, so that each answer is read anew: one that is kept for others, as with several open pages, takes a few ms. Ten open
pages wait for events and ask for what they show at each; something changes every second. What they cost exports is the daemon's CPU time.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common
from benchmarks.daemon import cpu_seconds, write_config

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


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


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
            if number % 5 == 0:
                taken["command"].append(1000 * _common.run_child([*argv[:3], "status", "--json", *argv[4:]])[0])
            time.sleep(max(0.0, 1.1 - (time.monotonic() - began)))
        figures: dict[str, Any] = {f"{name}_p50_ms": statistics.median(each[1:]) for name, each in taken.items()}
        figures |= {f"{name}_p95_ms": statistics.quantiles(each[1:], n=20)[-1] for name, each in taken.items() if name != "command"}
        figures |= open_pages(daemon, folder, port, 2 * rounds / 3)
    figures["route_p95_ms"] = max(figures[f"{name}_p95_ms"] for name in ROUTES)
    figures["scrape_ms"] = figures.pop("scrape_p95_ms")
    figures["status_over_command"] = figures["status_p50_ms"] / figures["command_p50_ms"]
    return figures


def open_pages(daemon: psutil.Popen, folder: Path, port: int, seconds: float) -> dict[str, float]:
    """CPU time of the daemon without and with PAGES open pages, in percent of a core, while something changes every second."""
    from daemon.journal.journal import Journal

    journal, end = Journal(folder / "state" / "journal.sqlite3"), threading.Event()

    def look() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/events")
        stream = connection.getresponse()
        while not end.is_set() and (line := stream.readline()):
            if line.startswith(b"event: changed"):
                get(port, "/")
        connection.close()

    def spent() -> float:
        before, until, paused = cpu_seconds(daemon), time.monotonic() + seconds, False
        while time.monotonic() < until:
            paused = not paused
            journal.controls.pause_all(paused)
            time.sleep(1)
        return 100 * (cpu_seconds(daemon) - before) / seconds

    without = spent()
    watchers = [threading.Thread(target=look, daemon=True) for _ in range(PAGES)]
    for watcher in watchers:
        watcher.start()
    time.sleep(3)
    with_pages = spent()
    end.set()
    journal.controls.pause_all(False)
    journal.close()
    for watcher in watchers:
        watcher.join(20)
    return {"cpu_percent_without_open_pages": without, "cpu_percent_with_open_pages": with_pages, "open_pages": PAGES}


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
    parser.add_argument("--rounds", type=int, default=30, help="requests to each route")
    arguments = parser.parse_args()
    with _common.scratch("page") as folder:
        (folder / "many").mkdir()
        figures = memory(folder, 20.0) | routes_ms(folder / "many", arguments.rounds)
    _common.write(
        "page", {name: round(value, 2) for name, value in figures.items()}, arguments.json, libraries=("starlette", "uvicorn", "h11")
    )


if __name__ == "__main__":
    main()
