"""A real Ray on this machine: a head that runs nothing, and a machine beside it that is made to have more cores than this one.

Its packages are those of the tests' environment, or of one of its own, which is made once. Nothing of it outlives `close`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import psutil

from tests.ports import free_port

ROOT = Path(__file__).parents[2]
CORES, MEMORY = 8, 8 << 30
START_SECONDS, INSTALL_SECONDS = 90, 600
ANSWER = "answer of the tests' client: "


def python_with_ray(cache: Path) -> Path:
    """An interpreter that has Ray: this one, or one of an environment that is made in `cache` once. Raises OSError or SubprocessError."""
    if importlib.util.find_spec("ray") is not None:
        return Path(sys.executable)
    python, mark = cache / "bin" / "python", cache / "complete"
    if not mark.exists():
        venv.create(cache, with_pip=True)
        words = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", "ray"]
        subprocess.run(words, check=True, capture_output=True, timeout=INSTALL_SECONDS)
        mark.touch()
    return python


class RaySite:
    """A running Ray. `address` is the head's; `variables` are what a client of it needs in its environment."""

    def __init__(self, python: Path) -> None:
        self.python = python
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # its sockets' names are long
        (self.folder / "token").write_text(secrets.token_hex(32))
        self.variables = {
            "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.folder / "token"), "RAY_USAGE_STATS_ENABLED": "0",
        }  # fmt: skip
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.start_head()
        self.start_node()

    def start_head(self) -> None:
        """Start the head."""
        self._start("--head", f"--port={self.port}", "--num-cpus=0", "--num-gpus=0", "--include-dashboard=false", "--disable-usage-stats",
                    f"--temp-dir={self.folder}", kind="head")  # fmt: skip

    def start_node(self, **variables: str) -> None:
        """Start the machine that runs actors, with variables of its own."""
        self._start(f"--address={self.address}", f"--num-cpus={CORES}", "--num-gpus=2", f"--memory={MEMORY}", "--resources", '{"disk": 4}',
                    kind="node", **variables)  # fmt: skip

    def start_other(self, resource: str, **variables: str) -> None:
        """Start another machine, with one of a custom resource."""
        self._start(f"--address={self.address}", "--num-cpus=1", "--num-gpus=0", "--resources", f'{{"{resource}": 1}}', kind="other",
                    **variables)  # fmt: skip

    def end_other(self) -> None:
        """Take it away again, until the cluster knows that."""
        self.kill("other")
        deadline = time.monotonic() + START_SECONDS
        while self.ask("sum(node['Alive'] for node in ray.nodes())") != 2:
            if time.monotonic() > deadline:
                raise TimeoutError("Ray did not miss a machine that is gone")
            time.sleep(0.5)

    def _start(self, *words: str, kind: str, **variables: str) -> None:
        command = [self.python, "-m", "ray.scripts.scripts", "start", *words, "--min-worker-port=0", "--max-worker-port=0",
                   "--object-store-memory=80000000", "--block"]  # fmt: skip
        environment = {**os.environ, **self.variables, **variables, "CKPTD_TESTS_RAY": f"{self.folder}:{kind}"}
        environment.pop("PYTHONPATH", None)
        log = self.folder / f"{kind}.out"
        with open(log, "ab") as output:
            started = output.tell()
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *command], env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        setattr(self, kind, process)
        deadline = time.monotonic() + START_SECONDS
        while b"Ray runtime started" not in log.read_bytes()[started:]:
            if process.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError(f"Ray did not start: {log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.1)

    def processes(self, word: str = "", kind: str = "") -> list[psutil.Process]:
        """Its live processes with a word in their command lines, of the head or the machine."""
        mark, live = f"{self.folder}:{kind}", []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                owner = process.environ().get("CKPTD_TESTS_RAY", "")
                if owner.startswith(mark) and process.status() != "zombie" and word in " ".join(process.cmdline()):
                    live.append(process)
        return live

    def ask(self, expression: str) -> object:
        """The value of an expression with `ray`, in a client of its own."""
        program = (
            f"import json, ray; ray.init({self.address!r}, namespace='ckptd', log_to_driver=False, logging_level='ERROR');"
            f"print({ANSWER!r} + json.dumps({expression}))"
        )
        environment = {**os.environ, **self.variables}
        done = subprocess.run([self.python, "-c", program], env=environment, check=True, capture_output=True, text=True, timeout=60)
        (answer,) = [line for line in done.stdout.splitlines() if line.startswith(ANSWER)]  # Ray says things of its own, also after that
        return json.loads(answer.removeprefix(ANSWER))

    def kill(self, kind: str) -> None:
        """Kill the head or the machine, as when the power fails."""
        for process in self.processes(kind=kind):
            with contextlib.suppress(psutil.Error):
                process.kill()
        getattr(self, kind).wait()

    def close(self) -> None:
        """End all of it."""
        for kind in ("node", "head"):
            self.kill(kind)
        shutil.rmtree(self.folder, ignore_errors=True)
