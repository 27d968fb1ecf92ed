"""`python driver.py ADDRESS`: the process that is connected with a Ray cluster. A line of JSON asks, and a line answers.

`connection.py` starts it by its path, with an interpreter that has the cluster's own releases of Ray and Python; so it imports Ray and the
standard library alone. Ray ends a process whose cluster is away for a minute, and may block for ever: both end this process and no other.
Its end ends no attempt: each is a detached actor, whose name is the attempt's token.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any, TextIO

try:
    import ray
except ImportError as import_error:
    print(json.dumps({"unsure": f"{sys.executable} can't import Ray: {import_error}"}), flush=True)
    sys.exit(1)

NAMESPACE = "ckptd"
OUTPUT = "scheduler.txt"
KILL_SECONDS = 30.0
"""Between asking a cancelled attempt to end and ending it by force."""
LINGER_SECONDS = 0.2
"""For which an actor whose attempt has ended still answers."""
DYING_SECONDS = 1.0
"""For the reasons of deaths that were just seen."""
CALLS = 1000
"""Calls at a time: a driver that starts again asks an actor anew how it ends."""
BEGIN = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""Becomes the attempt's script, which is told to end (PR_SET_PDEATHSIG, SIGTERM) when the actor's process dies."""
NOT_THERE = ("RAY_", "PYTHON", "OMP_NUM_THREADS", "VIRTUAL_ENV")
"""How variables begin that are the actor's and not its machine's."""


class Attempt:
    """The actor: runs an attempt's script, and ends with it. It is sent to the machine as it is here, which needs no ckptd for that."""

    def __init__(self, script: str, cpus: int) -> None:
        self.script, self.cpus = script, cpus
        self.process: asyncio.subprocess.Process | None = None
        self.ended = asyncio.Event()
        self.cancelled = False
        self.said = ""
        ray.get_runtime_context().current_actor.run.remote()  # by itself: whoever made it may be gone already

    async def where(self) -> tuple[str, str]:
        """Give its machine's name and its own id."""
        return socket.gethostname(), ray.get_runtime_context().get_actor_id()

    async def over(self) -> dict[str, Any]:
        """Wait for its end, and say how that was."""
        await self.ended.wait()
        return {"said": self.said, "cancelled": self.cancelled}

    async def end(self) -> None:
        """Ask the attempt to end; after a while, make it."""
        self.cancelled = True
        if self.process is None or self.process.returncode is not None:
            return
        self.process.terminate()
        await asyncio.wait([asyncio.ensure_future(self.ended.wait())], timeout=KILL_SECONDS)
        if not self.ended.is_set():
            os.killpg(self.process.pid, signal.SIGKILL)

    async def run(self) -> None:
        """Run the script to its end, and end this process, which gives back what it holds of the machine."""
        try:
            await self._run()
        except OSError as error:
            self.said = f"{socket.gethostname()} can't start {self.script}: {error.strerror}: {error.filename}"
        finally:
            self.ended.set()
            last = threading.Timer(10 * LINGER_SECONDS, os._exit, (0,))  # Ray waits for all calls, also for one that comes just now
            last.daemon = True
            last.start()
            await asyncio.sleep(LINGER_SECONDS)
            ray.actor.exit_actor()

    async def _run(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(NOT_THERE)}
        environment["CKPTD_SCHEDULER_ID"] = ray.get_runtime_context().get_actor_id()
        environment["CKPTD_SCHEDULER_CPUS"] = str(self.cpus)
        os.stat(self.script)
        with open(os.path.join(os.path.dirname(self.script), OUTPUT), "ab") as output:
            if self.cancelled:
                return
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", "-c", BEGIN, str(os.getpid()), self.script, stdin=subprocess.DEVNULL, stdout=output,
                stderr=output, env=environment, start_new_session=True,
            )  # fmt: skip
        await self.process.wait()


class Watched:
    """An actor, with what it was asked: `where` is answered when it has begun, `over` when it ends."""

    def __init__(self, handle: Any, asked: Mapping[str, float] | None = None) -> None:
        self.handle, self.asked = handle, asked
        self.where, self.over = handle.where.remote(), handle.over.remote()
        self.place: tuple[str, str] | None = None
        self.last: dict[str, Any] | None = None
        """How it ended."""
        self.cancelled_at: float | None = None

    def look(self, *, is_named: bool) -> dict[str, Any]:
        """What is known of it now. `is_named`: the cluster has an actor of its name."""
        self._hear()
        if self.last is not None:
            return self.last
        if not is_named:
            return {"state": "gone", "said": ""}  # why, Ray may say later
        if self.cancelled_at is not None and time.monotonic() - self.cancelled_at > 2 * KILL_SECONDS:
            ray.kill(self.handle)
        if self._has_begun():
            return {"state": "running", "host": self.place[0] if self.place else "", "id": self.id}
        return {"state": "pending", "id": self.id, "asked": self.asked}

    def cancel(self) -> None:
        """End it: in order where it runs, else so that it never begins."""
        if self._has_begun():
            self.cancelled_at = time.monotonic()
            self.handle.end.remote()
        else:
            ray.kill(self.handle)

    @property
    def id(self) -> str:
        """Ray's own name of it."""
        return str(self.handle._actor_id.hex())

    def _has_begun(self) -> bool:
        if self.place is None and ray.wait([self.where], timeout=0)[0]:
            try:
                host, id = ray.get(self.where)
                self.place = host, id
            except ray.exceptions.RayError:
                self.where = self.handle.where.remote()
        return self.place is not None

    def _hear(self) -> None:
        """Take in how it ended, where it has."""
        if self.last is not None or not ray.wait([self.over], timeout=0)[0]:
            return
        try:
            self.last = {"state": "gone", **ray.get(self.over)}
        except ray.exceptions.OutOfMemoryError as error:
            self.last = {"state": "gone", "died": str(error).partition("\n")[0][:500]}
        except ray.exceptions.ActorDiedError as error:
            said = "preempted" if getattr(error, "preempted", False) else _cause(str(error))
            self.last = {"state": "gone", "died": said}
        except ray.exceptions.RayError:  # it can't be reached now, which ends nothing
            self.over = self.handle.over.remote()


def _cause(text: str) -> str:
    """The sentences of an actor's death, without what names the actor."""
    lines = [line for line in text.splitlines()[1:] if not line.startswith("\t")]
    return " ".join(" ".join(lines or text.splitlines()).split())[:2000]


class Driver:
    """Answers what `connection.py` asks."""

    def __init__(self) -> None:
        self.watched: dict[str, Watched] = {}
        self.maker = ray.remote(Attempt)

    def submit(self, token: str, script: str, cpus: int, asked: dict[str, float], *, alone: bool) -> str:
        """Make the actor, unless there is one of that name."""
        given = dict(asked)
        if alone:
            fitting = [node for node in machines() if all(node.get(name, 0) >= amount for name, amount in asked.items())]
            given["CPU"] = max([asked["CPU"], *(node["CPU"] for node in fitting)])
        own = {name: amount for name, amount in given.items() if name not in ("CPU", "GPU", "memory")}
        handle = self.maker.options(
            name=token, namespace=NAMESPACE, lifetime="detached", get_if_exists=True, max_restarts=0, max_task_retries=0,
            max_concurrency=CALLS, num_cpus=given["CPU"], num_gpus=given.get("GPU"), memory=given.get("memory"), resources=own or None,
        ).remote(script, cpus)  # fmt: skip
        self.watched[token] = Watched(handle, given)
        return self.watched[token].id

    def look(self, tokens: Collection[str]) -> dict[str, Any]:
        """What is known of the actors with these names; what is free, where some of them wait."""
        names = set(ray.util.list_named_actors())
        dying = [self.watched[token].over for token in tokens if token in self.watched and token not in names]
        if dying:
            ray.wait(dying, num_returns=len(dying), timeout=DYING_SECONDS)
        seen = {token: self._look(token, is_named=token in names) for token in tokens}
        for token in [
            token for token, known in self.watched.items() if token not in seen and (known.last is not None or token not in names)
        ]:
            del self.watched[token]
        waits = any(answer["state"] == "pending" for answer in seen.values())
        return {"seen": seen, **({"free": ray.available_resources(), "machines": machines()} if waits else {})}

    def _look(self, token: str, *, is_named: bool) -> dict[str, Any]:
        known = self._known(token) if is_named else self.watched.get(token)
        return known.look(is_named=is_named) if known is not None else {"state": "gone", "said": ""}

    def _known(self, token: str) -> Watched | None:
        if token not in self.watched:
            with contextlib.suppress(ValueError):  # it has just gone
                self.watched[token] = Watched(ray.get_actor(token, namespace=NAMESPACE))
        return self.watched.get(token)

    def cancel(self, tokens: Collection[str]) -> None:
        """End the actors with these names."""
        for token in tokens:
            known = self._known(token)
            if known is not None and known.last is None:
                known.cancel()


def machines() -> list[dict[str, float]]:
    """What each machine of the cluster has in all."""
    return [{"CPU": 0.0, **node["Resources"]} for node in ray.nodes() if node["Alive"]]


def answer(driver: Driver, asked: dict[str, Any]) -> dict[str, Any]:
    """The answer to a question. Only what is submitted can be refused."""
    verb = asked.pop("verb")
    try:
        return {"answer": getattr(driver, verb)(**asked)}
    except (ray.exceptions.RayError, RuntimeError, OSError, ValueError, TypeError) as error:
        said = " ".join(str(error).split())[:300]
        refused = verb == "submit" and isinstance(error, ValueError | TypeError)
        return {"refused": said} if refused else {"unsure": f"{type(error).__name__}: {said}"}


def connected(address: str) -> dict[str, Any]:
    """Connect; the first answer."""
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False, logging_level="ERROR")
    except (ray.exceptions.RayError, RuntimeError, ValueError, OSError) as error:
        said = [str(error)]
        cause: BaseException | None = error.__cause__
        while cause is not None:
            said.append((str(cause).splitlines() or [type(cause).__name__])[-1])
            cause = cause.__cause__
        return {"unsure": " ".join(": ".join(said).split())[:500]}
    return {"answer": "connected"}


def questions(lines: TextIO) -> queue.Queue[dict[str, Any]]:
    """What is asked. The process ends where nobody is there to ask any more, whatever Ray is doing."""
    asked: queue.Queue[dict[str, Any]] = queue.Queue()

    def read() -> None:
        for line in lines:
            asked.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return asked


def main(address: str) -> None:
    """Connect, and answer until nobody asks."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: where it hangs, it sees no end of its input
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what Ray prints is no answer
    asked = questions(sys.stdin)
    first = connected(address)
    print(json.dumps(first), file=out, flush=True)
    if "answer" not in first:
        os._exit(1)
    driver = Driver()
    while True:
        print(json.dumps(answer(driver, asked.get())), file=out, flush=True)


if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder
    main(sys.argv[1])
