"""How long commands take to start, as multiples of a bare interpreter's processor time, beside the libraries that they can't do without.

Processor time, the least of the rounds, in turns: a busy machine stretches the wall time of each. `python -m handlers` is a child that
finds no job, and `python -m handlers.deliver` one that gets no order: they take what every such child takes before its work.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common
from daemon.config import layers, loading
from daemon.config.known import KnownSettings
from daemon.contract.version import __version__
from daemon.operating.monitoring.live import ConfigLoad, LiveFile, write_live
from tests.upgrades.frozen import STATES, thaw

BARE = "python -I -c pass"
COMPLETION = {"_CKPTD_COMPLETE": "complete_bash", "COMP_WORDS": "ckptd sta", "COMP_CWORD": "1"}
WAYS: dict[str, tuple[str, ...]] = {
    BARE: ("-I", "-c", "pass"), "import typer": ("-c", "import typer"), "import pydantic": ("-c", "from pydantic import BaseModel"),
    "ckptd --help": ("-m", "daemon", "--help"), "ckptd queue retry -h": ("-m", "daemon", "queue", "retry", "-h"),
    "completion": ("-m", "daemon"), "ckptd status, nothing there": ("-m", "daemon", "status"),
    "python -m handlers": ("-m", "handlers", "no-job"), "python -m handlers.deliver": ("-m", "handlers.deliver"),
}  # fmt: skip
STATUS = {
    "ckptd status": ("status",), "ckptd status --json": ("status", "--json"), "ckptd list": ("list",), "ckptd show": ("show", "done"),
    "ckptd logs": ("logs",), "ckptd queue pause": ("queue", "pause"), "ckptd quality": ("quality", "done"),
    "ckptd config show": ("config", "show", "limits"),
}  # fmt: skip
"""Asked about a daemon with four exports, which read its configuration as it is."""


def cpu_seconds(arguments: tuple[str, ...], environment: Mapping[str, str]) -> float:
    """Processor time of one start."""
    before = _common.children_cpu()
    subprocess.run([sys.executable, *arguments], env=dict(environment), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return _common.children_cpu() - before


def read_before(home: Path) -> Path:
    """The configuration of a daemon of version 1.0.0, as if that of today had read it last."""
    thaw(STATES / "1.0.0.tar.gz", home)
    file = home / "config.toml"
    loaded = ConfigLoad("2026-01-31T00:00:00+00:00", file=str(file), digest=layers.read(file).digest)
    known = KnownSettings.of(loading.load(file)).text()
    write_live(home / "state" / "live.json", LiveFile(pid=1, version=__version__, configuration=loaded, known=known))
    return file


def main() -> None:
    """Print the figures, and write them with --json."""
    parser = _common.parser(str(__doc__))
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with _common.scratch("starting") as folder:
        config = str(read_before(folder / "home"))
        ways = {**WAYS, **{name: ("-m", "daemon", *words, "--config", config) for name, words in STATUS.items()}}
        checkpoint = str(next((folder / "home").glob("runs/*/checkpoint-*")))
        ways["ckptd explain"] = ("-m", "daemon", "explain", checkpoint, "--config", config)
        known = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # which no installed ckptd lacks
        environment = {**known, "XDG_STATE_HOME": str(folder), "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
        least = dict.fromkeys(ways, float("inf"))
        for _ in range(options.rounds):
            for name, arguments in ways.items():
                more = COMPLETION if name == "completion" else {}
                least[name] = min(least[name], cpu_seconds(arguments, {**environment, **more}))
    figures = {name: {"ms": round(1000 * seconds, 1), "times": round(seconds / least[BARE], 1)} for name, seconds in least.items()}
    _common.write("starting", figures, options.json, libraries=("typer", "pydantic"))


if __name__ == "__main__":
    main()
