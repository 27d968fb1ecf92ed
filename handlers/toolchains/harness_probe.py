"""Probe of the toolchain `lm-eval`: the harness imports without torch, and knows tasks. Runs inside."""

from __future__ import annotations

import argparse

from handlers.toolchains import inside

LEAST_TASKS = 1000


def probe(options: argparse.Namespace) -> inside.Probed:
    """Look at the harness's own tasks. Raises whatever is wrong."""
    from lm_eval.tasks import TaskManager

    tasks = len(TaskManager().all_tasks)
    if tasks < LEAST_TASKS:
        raise RuntimeError(f"lm-evaluation-harness knows {tasks} tasks, and should know more than {LEAST_TASKS}")
    return inside.Probed(inside.versions(("lm_eval", "datasets", "evaluate", "numpy")))


if __name__ == "__main__":
    inside.main(argparse.ArgumentParser(description=__doc__), probe)
