"""Runs verbs of the command line, and programs, in processes that are forked from one which has loaded them: most of their time is imports.

Called by the tests that type a verb (`tests.cli`, `tests.service`), and by those whose programs are killed on their way. What depends on
how the interpreter starts, a wrapper around the command or a variable that Python or a library reads at its start, gets an interpreter of
its own.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib
import json
import os
import re
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from daemon.contract.disk.failpoints import VARIABLES

ROOT = Path(__file__).parents[1]
COMMAND = (sys.executable, "-m", "daemon")
DAEMONS = ("daemon", "tests.runner.toy_daemon", "tests.deliver.queue.yard")
"""Modules that change nothing of what others have imported from the daemon's."""
LIBC = ctypes.CDLL(None)
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
READ_LATE = re.compile(
    r"CKPTD_(?!FAULT).*|_CKPTD_RUN|EXPORT_.*|XDG_.*|COLUMNS|LINES|NO_COLOR|HOME|PYTHONIOENCODING|(STATE|RUNTIME)_DIRECTORY|PYTEST_.*|TOY_.*"
    r"|HF_HUB_.*|PYDANTIC_DISABLE_PLUGINS|TORCHINDUCTOR_CACHE_DIR|TOKENIZERS_PARALLELISM|TRANSFORMERS_.*|CUDA_VISIBLE_DEVICES"
    r"|(OMP|MKL|OPENBLAS|NUMEXPR|RAYON)_NUM_THREADS|STOP_(AT|BELOW|LOG)|PAUSE"
)
"""Variables that the command reads while it works, so that they may differ from those of the process that it is forked from.

Those of the last lines are set by PEFT, and by what a test has run in its own process: stages, and the command, which has told pydantic.
"""
OFTEN = set[str]()
"""PYTHONPATHs with which so many verbs are typed that a process has loaded the command with each."""
IMPORTED = re.compile(r"(?:^|; )(?:import|from) ((?:daemon|tests)[\w.]*)", re.MULTILINE)


def run_verb(
    words: Sequence[str], folder: Path, environment: Mapping[str, str], *, timeout: float, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """What `ckptd WORDS` comes to in a folder. Raises subprocess.TimeoutExpired."""
    loaded = _loaded_for(environment)
    if loaded.fits(environment) and loaded.free.acquire(blocking=False):
        try:
            return loaded.run(words, folder, environment, timeout, stdin)
        finally:
            loaded.free.release()
    return subprocess.run(
        [*COMMAND, *words], input=stdin, capture_output=True, text=True, errors=_errors(stdin), cwd=folder, env=dict(environment),
        timeout=timeout, check=False,
    )  # fmt: skip


def run_program(program: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """What `python -c` makes of a program in the repository's root, with so many more variables. What it imports is imported once for all
    programs, so that it may change none of it before it imports more."""
    loaded, environment = _loaded(), {**os.environ, **variables}
    words, plain = [str(word) for word in arguments], {name: value for name, value in environment.items() if name not in VARIABLES}
    if not loaded.fits(plain):
        command = [sys.executable, "-c", program, *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=120, check=False)
    with loaded.free:
        return loaded.run(words, ROOT, environment, 120, None, program)


def start_talking(program: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a program as `run_program` runs it, with pipes for its standard input and for all that it says."""
    loaded, words = _loaded(), [str(word) for word in arguments]
    if not loaded.fits(os.environ):
        return subprocess.Popen(
            [sys.executable, "-c", program, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
        )
    with loaded.free, tempfile.TemporaryDirectory() as place:
        for pipe in (pipes := [os.path.join(place, name) for name in ("in", "out")]):
            os.mkfifo(pipe)
        return loaded.start({"words": words, "program": program, "folder": str(ROOT), "streams": pipes}, os.environ, pipes)


def start_program(command: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a command as a child of this process, which writes what it says at the end of `log`; a daemon is forked."""
    loaded = _loaded_for(environment)
    plain = {name: value for name, value in environment.items() if name not in VARIABLES}
    is_daemon = tuple(command[:2]) == COMMAND[:2] and command[2] in DAEMONS
    if is_daemon and loaded.fits(plain) and loaded.free.acquire(blocking=False):
        try:
            order = {"words": command[3:], "program": "", "module": command[2], "folder": os.getcwd()}
            return loaded.start({**order, "streams": [os.devnull, str(log)]}, environment)
        finally:
            loaded.free.release()
    with log.open("ab") as stream:
        return subprocess.Popen(command, stdout=stream, stderr=stream, env=dict(environment))


def start_module(module: str, folder: Path, environment: Mapping[str, str], imports: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """Start `python -m MODULE` in a folder, with pipes for its three streams. `imports`: what it imports, loaded for all that follow."""
    loaded = _loaded()
    if not loaded.fits({name: value for name, value in environment.items() if name not in VARIABLES}):
        pipe, command = subprocess.PIPE, [sys.executable, "-m", module]
        return subprocess.Popen(command, cwd=folder, env={**environment, "PYTHONPATH": str(ROOT)}, stdin=pipe, stdout=pipe, stderr=pipe)
    with loaded.free, tempfile.TemporaryDirectory() as place:
        for pipe_ in (pipes := [os.path.join(place, name) for name in ("in", "out", "err")]):
            os.mkfifo(pipe_)
        order = {"words": [], "program": "", "module": module, "imports": imports, "folder": str(folder), "streams": pipes}
        return loaded.start(order, environment, pipes, binary=True)


def _errors(stdin: str | None) -> str:
    return "surrogateescape" if stdin else "replace"


class _Loaded:
    """The process that has loaded the command. `free`: held while it runs a verb, since it runs one at a time. `path`: of another
    PYTHONPATH."""

    def __init__(self, path: str) -> None:
        self.free = threading.Lock()
        self._environment = {**os.environ, **({"PYTHONPATH": path} if path else {})}
        command = [sys.executable, "-m", "tests.verbs"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, cwd=ROOT, env=self._environment)
        atexit.register(self.close)

    def close(self) -> None:
        """End it, also where something else keeps its input open."""
        self._process.kill()
        self._process.communicate()

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Whether a verb may run in this environment without an interpreter of its own."""
        on_the_path = {"PYTHONPATH": str(ROOT)}
        ours, theirs = ({**on_the_path, **variables} for variables in (self._environment, environment))
        return all(READ_LATE.fullmatch(name) or ours.get(name) == theirs.get(name) for name in {*ours, *theirs})

    def run(
        self, words: Sequence[str], folder: Path, environment: Mapping[str, str], timeout: float, stdin: str | None, program: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """As `run_verb` and `run_program`."""
        with tempfile.TemporaryDirectory() as place:
            streams = [Path(place, name) for name in ("in", "out", "err")]
            streams[0].write_text(stdin or "", encoding="utf-8", errors="surrogateescape")
            os.umask(mask := os.umask(0))
            order = {"words": [*words], "folder": str(folder), "environment": dict(environment), "mask": mask,
                     "program": program, "streams": [str(path) for path in streams]}  # fmt: skip
            try:
                code = self._code_of(order, timeout)
            except BaseException:  # a test whose time is over, too: what was not read would be taken for the next verb's
                self.close()
                _loaded.cache_clear()
                raise
            if code is None:
                raise subprocess.TimeoutExpired([*COMMAND, *words], timeout)
            out, err = (path.read_text(encoding="utf-8", errors=_errors(stdin)) for path in streams[1:])
            return subprocess.CompletedProcess([*COMMAND, *words], code, out, err)

    def start(
        self, order: Mapping[str, object], environment: Mapping[str, str], pipes: Sequence[str] = (), *, binary: bool = False
    ) -> _Started:
        """As `start_program`, and with `pipes` as `start_talking` or `start_module`."""
        os.umask(mask := os.umask(0))
        order = {**order, "environment": dict(environment), "mask": mask, "parent": os.getpid()}
        adopts = ctypes.c_int()
        LIBC.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(adopts), 0, 0, 0)
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            pid = self._ask(order, 60)
        finally:
            LIBC.prctl(PR_SET_CHILD_SUBREAPER, adopts.value, 0, 0, 0)
        kind: dict[str, Any] = {"buffering": 0} if binary else {"encoding": "utf-8"}
        return _Started(pid, *(open(pipe, mode + "b" * binary, **kind) for pipe, mode in zip(pipes, "wrr", strict=False)))

    def _ask(self, order: Mapping[str, object], timeout: float) -> int:
        assert self._process.stdin is not None
        left = memoryview(json.dumps(order).encode() + b"\n")
        while left:
            left = left[self._process.stdin.write(left) :]
        pid = self._answer(timeout)
        assert pid is not None, "the process that has loaded the command does not answer"
        return pid

    def _code_of(self, order: Mapping[str, object], timeout: float) -> int | None:
        """The exit code; None where the time is over, and the verb was killed."""
        pid = self._ask(order, timeout)
        if (code := self._answer(timeout)) is not None:
            return code
        os.kill(pid, signal.SIGKILL)
        assert self._answer(timeout) is not None, "a verb that was killed does not end"
        return None

    def _answer(self, timeout: float) -> int | None:
        """The next number that it says; None where none comes in time."""
        stream = self._process.stdout
        assert stream is not None
        return int(stream.readline()) if select.select([stream], [], [], max(0.0, timeout))[0] else None


class _Started(subprocess.Popen[Any]):
    """A child that another process has forked for this one."""

    def __init__(self, pid: int, stdin: IO[Any] | None = None, stdout: IO[Any] | None = None, stderr: IO[Any] | None = None) -> None:
        self.pid, self.args, self.returncode, self.text_mode = pid, (), None, stderr is None
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self._child_created, self._communication_started, self._input = True, False, None
        self._waitpid_lock = threading.Lock()


@functools.cache
def _loaded(path: str = "") -> _Loaded:
    return _Loaded(path)


def _loaded_for(environment: Mapping[str, str]) -> _Loaded:
    path = environment.get("PYTHONPATH", "")
    return _loaded(path if path in OFTEN else "")


# In the process that has loaded the command


def _serve() -> None:
    """Fork a process for each order on stdin; say its id, then its exit code."""
    import typer.main

    import daemon.cli.export
    import daemon.cli.main
    import daemon.operating.diagnosis.doctor
    import daemon.operating.monitoring.status
    import daemon.operating.service
    from daemon.contract.formats.catalog import catalog
    from daemon.operating.diagnosis.declared_code import flaws

    typer.main.get_command = functools.cache(typer.main.get_command)  # a twentieth of a second for each verb
    typer.main.get_command(daemon.cli.main.app)
    del daemon
    for variant in catalog().variants.values():
        list(flaws(variant))  # `check` and `formats` read the code of every format, which stays as it is
    orders, answers = os.fdopen(os.dup(0), "rb", buffering=0), os.dup(1)
    while line := orders.readline():
        order = json.loads(line)
        for module in (*IMPORTED.findall(order["program"]), *order.get("imports", ())):
            importlib.import_module(module)
        if "parent" in order:
            os.write(answers, f"{_forked_for(order, [orders.fileno(), answers])}\n".encode())
            continue
        pid = os.fork()
        if pid == 0:
            orders.close()
            os.close(answers)
            _become(order)
        os.write(answers, f"{pid}\n".encode())
        status = os.waitpid(pid, 0)[1]
        os.write(answers, f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _forked_for(order: dict[str, Any], ours: list[int]) -> int:
    """Return the id of a process that becomes the command; its parent is who gave the order, to whom one without a parent goes."""
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        if pid := os.fork():
            os.write(writing, str(pid).encode())
            os._exit(0)
        for descriptor in (*ours, reading, writing):
            os.close(descriptor)
        while os.getppid() != order["parent"]:
            time.sleep(0.001)
        _become(order)
    os.waitpid(between, 0)
    with os.fdopen(reading) as said:
        os.close(writing)
        return int(said.read())


def _become(order: dict[str, Any]) -> None:
    """Be the command from here on, with the streams, the folder and the environment of an order."""
    from daemon.cli.main import main

    streams, words, environment = order["streams"], order["words"], order["environment"]
    for number, path in enumerate(streams):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND if number else os.O_RDONLY, 0o666)
        os.dup2(file, number)
        os.close(file)
    if len(streams) < 3:
        os.dup2(1, 2)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    encoding = environment.get("PYTHONIOENCODING", "utf-8")  # as the interpreter would; no test gives errors with it
    sys.stdout = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding=encoding, errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.umask(int(str(order["mask"])))
    os.chdir(str(order["folder"]))
    sys.argv = ["ckptd", *words]
    code: object = 1
    try:
        if program := str(order["program"]):
            sys.argv[0] = "-c"
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
            code = 0
        elif order.get("module", "daemon") != "daemon":
            runpy.run_module(str(order["module"]), run_name="__main__", alter_sys=True)
            code = 0
        else:
            code = main()
    except SystemExit as leaving:
        code = leaving.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    _serve()
