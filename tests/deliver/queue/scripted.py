"""A target whose process does what a test wrote into a file: `script.json` in its option `folder`, a list with a step an attempt."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from daemon.contract.delivering.orders import Listed, Move, Receipt
from handlers.deliver.far_end import error_of
from handlers.deliver.target import Setting
from handlers.deliver.version import SourceFile, Version


class Scripted:
    """The target."""

    def __init__(self, setting: Setting) -> None:
        self._folder, self._setting = Path(str(setting.options["folder"])), setting
        steps = json.loads((self._folder / "script.json").read_text())
        with (self._folder / "attempts").open("a") as file:
            file.write("x\n")
        number = len((self._folder / "attempts").read_text().split())
        self._step: dict[str, Any] = steps[min(number, len(steps)) - 1]

    def look(self) -> None:
        """Nothing is looked at."""

    def put(self, file: SourceFile, sent: Callable[[int], None]) -> int:
        """Do what the step says, once."""
        self._setting.resume.keep("seen", {"attempts": self._setting.resume.get("seen").get("attempts", 0) + 1})
        match self._step["do"]:
            case "status":
                raise error_of(self._step["status"], "put it there", "said so", "http://far", self._step.get("after"))
            case "hang":
                time.sleep(3600)
            case "flood":
                while True:
                    os.write(3 if self._step.get("raw") else 2, b"x" * (1 << 16))
            case "leak":
                print(f"the secret is {self._setting.secret}", file=sys.stderr, flush=True)
                self._setting.resume.keep("token", {"token": self._setting.secret})
                raise RuntimeError(f"refused {self._setting.secret}")
            case "exit":
                os._exit(self._step["code"])
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "wait":
                while not (self._folder / "go").exists():
                    sent(0)
                    time.sleep(0.05)
            case "memory":
                held = bytearray(os.urandom(1 << 20) * self._step["mebibytes"])
                time.sleep(3600)
                del held
        sent(file.size)
        return 0

    def read_back(self, file: SourceFile) -> Iterator[bytes]:
        """What was there."""
        yield file.source.read_bytes()

    def finish(self, version: Version, move: Move) -> Receipt:
        """Write down what was delivered."""
        with (self._folder / "delivered").open("a") as file:
            file.write(f"{version.name} {version.export} {move} {','.join(version.variants)}\n")
        return Receipt(version=version.name, place=self._step.get("place", "there"), moved=move != "keep")

    def list(self, run: str) -> Sequence[Listed]:
        """Nothing."""
        return ()

    def remove(self, version: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""
