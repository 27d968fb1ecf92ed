"""What stages make of hostile files: each case runs in a process of its own, with the stage's own code and bounds on time and memory.

`python -m tests.border.stage_refusals SEED COUNT` prints the findings: refusals without a code of their own, with the name of an exception
or a bare word of Python in the sentence, tried again although the input stays as it is, longer than a terminal takes, and crashes.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from daemon.contract.faults.advice import MOST_OF_SENTENCE
from daemon.contract.jobs.messages import Outcome, StageContext
from daemon.contract.jobs.options import ExportOptions, ValidateOptions, Work
from tests.border.hostile_sources import Case, Source, cases_of, make_sources

SECONDS = 120
MEMORY = 6 << 30
RAW = re.compile(
    r"\b[A-Z]\w*(?:Error|Exception|Interrupt)\b(?!s\b)|no message|math domain error|list index out of range|Traceback"
    r"|object is not (?:callable|iterable|subscriptable)|object has no attribute|unsupported operand|<class '|^'\w+'$"
)
"""Words that only Python's own users understand, outside of quotes."""
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
GENERAL = ("engine", "unexpected", "os-error")


@dataclass
class Refusals:
    """What became of the cases."""

    cases: int = 0
    taken: int = 0
    refused: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)


def refusals(
    seed: int, count: int, sources: list[Source], workers: int = 1, tell: Callable[[str], None] = lambda finding: None
) -> Refusals:
    """Try `count` cases, the same ones for the same seed; each finding is told at once."""
    found = Refusals()
    with ThreadPoolExecutor(workers) as pool, tempfile.TemporaryDirectory() as scratch:
        cases = list(cases_of(sources, random.Random(seed), count))
        for case, (outcome, code, sentence) in zip(cases, pool.map(lambda one: run_apart(one, Path(scratch)), cases), strict=True):
            found.cases += 1
            if outcome == Outcome.SUCCEEDED:
                found.taken += 1
                continue
            found.refused += 1
            found.codes[code] += 1
            if why := problem(outcome, code, sentence):
                found.findings.append(f"{why}: {case}: {outcome} {code}: {sentence}")
                tell(f"{found.cases}: {found.findings[-1]}")
    return found


def problem(outcome: str, code: str, sentence: str) -> str | None:
    """What is wrong with a refusal; None for one that is as it should be."""
    if outcome == "crash":
        return "crash"
    if code in GENERAL:
        return "no code"
    if outcome != Outcome.PERMANENT:
        return "tried again"
    if len(sentence) > MOST_OF_SENTENCE:
        return "long"
    return "raw" if RAW.search(_QUOTED.sub('""', sentence)) else None


def run_apart(case: Case, scratch: Path) -> tuple[str, str, str]:
    """(outcome, code, sentence) of a case, run in a process that is forked for it."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_answer, args=(case, scratch, theirs))
    process.start()
    theirs.close()
    try:
        if not ours.poll(SECONDS):
            return "crash", "slow", f"no end within {SECONDS} s"
        result: tuple[str, str, str] = ours.recv()
        return result
    except EOFError:
        process.join()
        return "crash", "died", f"exit code {process.exitcode}"
    finally:
        if process.is_alive():
            process.kill()
        process.join()


def _answer(case: Case, scratch: Path, pipe: Any) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    sink = os.open(os.environ.get("REFUSALS_LOG", os.devnull), os.O_WRONLY | os.O_APPEND)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        pipe.send(run_stage(case, Path(folder)))
    pipe.close()
    os._exit(0)


def run_stage(case: Case, folder: Path) -> tuple[str, str, str]:
    """The same in this process."""
    from handlers import __main__ as child
    from handlers.child import foreign

    pin = folder / "run" / "checkpoint-4"
    shutil.copytree(case.source.folder, pin, copy_function=os.link)
    base = case.source.base
    if base is not None:
        base = folder / "base"
        shutil.copytree(case.source.base or "", base, copy_function=os.link)
    context = _context(case, folder / "attempt", pin, base)
    where = base if case.where == "base" and base else pin
    for path in where.glob("*.safetensors"):  # which is changed in place
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
    case.spoil(where)
    try:
        _merge(case, context)
        if case.stage != "merge":
            _run(case.stage, context)
    except BaseException as error:
        if not foreign.is_failure(error):
            raise
        if os.environ.get("REFUSALS_LOG"):
            import traceback

            print(f"\n=== {case}", flush=True)
            traceback.print_exc()
        result = child._failed(error, case.stage, context.staging)
        assert result.fault is not None
        return result.outcome, str(result.fault.code), result.fault.sentence()
    return Outcome.SUCCEEDED, "", ""


def _context(case: Case, folder: Path, pin: Path, base: Path | None) -> StageContext:
    from tests.merge import helpers

    context = helpers.context(folder, pin, base, method=case.source.method)
    options = ValidateOptions(samples=1, new_tokens=2, speed_tokens=0, long_tokens=0)
    return context.model_copy(update={"work": Work(export=ExportOptions(), validation=options)})


def _merge(case: Case, context: StageContext) -> None:
    """Merge first, as every job does: what that refuses no other stage meets. The trial of a tokenizer that was not changed is left out, a
    process of its own."""
    from handlers.merge import stage as merge
    from tests.merge import helpers

    trial = contextlib.nullcontext() if case.file == "tokenizer.json" else mock.patch.object(merge, "try_tokenizer")
    with trial:
        merge.run(context, helpers.reporter())


def _run(stage: str, before: StageContext) -> None:
    from tests.merge import helpers

    reporter, folder = helpers.reporter(), Path(before.staging).parent
    staging = folder / stage
    staging.mkdir()
    context = before.model_copy(update={"stage": stage, "inputs": {"merge": before.staging}, "staging": str(staging)})
    if stage == "pytorch":
        from handlers.pytorch import stage as pytorch

        pytorch.run(context, reporter)
    elif stage == "reference":
        from handlers.validate import reference
        from tests.border.workers_inside import Inside

        with mock.patch.object(reference, "EngineWorker", Inside):
            reference.run(context, reporter)
    else:
        with _only_the_start():
            from handlers.onnx.export import stage as onnx

            with contextlib.suppress(Loaded):
                onnx.run(context, reporter)


class Loaded(BaseException):
    """The model was loaded: what comes then takes long, and the export's own tests have it."""


@contextlib.contextmanager
def _only_the_start() -> Iterator[None]:
    """Inside, an export ends when its model is loaded."""
    from handlers.onnx.export import templated
    from handlers.onnx.export.building import Built

    def load(strategy: Any, family: Any, context: StageContext, reporter: Any) -> Built:
        family.load(Path(context.inputs["merge"]), strategy.tracing)
        raise Loaded

    with mock.patch.object(templated, "build", load):
        yield


def main(seed: int, count: int, folder: str) -> None:
    """Print what is found."""
    prepare()
    where = Path(folder)
    if not where.is_dir():
        process = multiprocessing.get_context("fork").Process(target=make_sources, args=(where,))
        process.start()
        process.join()
    found = refusals(seed, count, listed(where), int(os.environ.get("JOBS", "1")), lambda line: print(line, flush=True))
    print(json.dumps({"cases": found.cases, "taken": found.taken, "refused": found.refused, "findings": len(found.findings)}))
    print(dict(found.codes))
    print(Counter(one.partition(":")[0] for one in found.findings))


def listed(folder: Path) -> list[Source]:
    """What `make_sources` made there, without making it."""
    found = []
    for path in sorted(folder.iterdir()):
        kind = path.name.removeprefix("adapter-")
        if path.name != "base":
            full = kind == path.name
            found.append(Source(kind, path, None if full else folder / "base", "full" if full else kind))
    return found


def prepare() -> None:
    """Import the libraries, with one thread: processes are forked from this one."""
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    warnings.simplefilter("ignore")
    import peft  # noqa: F401
    import torch
    import transformers  # noqa: F401

    torch.set_num_threads(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
