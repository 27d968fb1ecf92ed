"""A signal is taken whatever the main thread is at."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
import time
from pathlib import Path

import daemon

ROOT = Path(daemon.__file__).parent
PROGRAM = """
import os, signal, sys, threading, time
from daemon.system.processes.signals import on_signals
ended, news = threading.Event(), threading.Event()
on_signals((signal.SIGTERM,), ended.set)
on_signals((signal.SIGHUP,), news.set)
"""
HELD = """
with ended._cond:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)
sys.exit(0 if ended.wait(20) else 1)
"""
BUSY = """
print("ready", flush=True)
while not ended.is_set():
    news.wait(0.001)
    news.clear()
"""
RAISING = {"daemon/cli/demo/__init__.py", "daemon/toolchains/unattended.py"}
"""Where a handler only raises, which takes no lock."""


def run(text: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM + text], stdout=subprocess.PIPE, text=True)


def test_a_signal_that_comes_while_the_main_thread_holds_the_events_lock_is_taken() -> None:
    with run(HELD) as process:
        try:
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_of_many_signals_to_a_busy_main_thread_none_stops_it() -> None:
    with run(BUSY) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            for _ in range(3000):
                process.send_signal(signal.SIGHUP)
                time.sleep(0.0003)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_after_a_fork_the_child_takes_its_own_signals() -> None:
    text = """
child = os.fork()
if child == 0:
    mine = threading.Event()
    on_signals((signal.SIGTERM,), mine.set)
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(0 if mine.wait(20) else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or ended.is_set())
"""
    with run(text) as process:
        assert process.wait(60) == 0


def test_no_other_module_has_a_handler_that_does_something() -> None:
    for module in ROOT.rglob("*.py"):
        name = str(module.relative_to(ROOT.parent))
        if name in RAISING or name == "daemon/system/processes/signals.py":
            continue
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "signal.signal":
                assert ast.unparse(node.args[1]) in ("signal.SIG_IGN", "signal.SIG_DFL"), f"{name}:{node.lineno}: use on_signals"
