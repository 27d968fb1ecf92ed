"""One engine in a process of its own: `python -m handlers.validate.workers.worker SPEC_JSON_FILE`.

Started by `client.EngineWorker`, in a toolchain by its bootstrap. It reads requests (`protocol.py`) as JSON lines from standard input and
answers each with one JSON line on a private copy of standard output. If something kills it (a crash of a runtime, the kernel's OOM killer),
only this artifact's verdict is affected. The first request is `load`: until then only the libraries are imported, so that a worker can get
ready while another one still holds its model.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from daemon.contract.faults.errors import CkptdError, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats import catalog
from daemon.contract.formats.declaration import FormatEntry
from daemon.contract.jobs.messages import ChildLimits
from daemon.contract.values import Frozen, Json
from handlers.child import foreign, process
from handlers.toolchains import use
from handlers.validate.engines.reach import Reach
from handlers.validate.workers import protocol

DETAILS_LIMIT = 4000


class Commands:
    """The model that a worker holds; one method for each request, of the name that its `command` has."""

    def __init__(self, spec: Json) -> None:
        # numpy reads the environment's thread limits when it is imported, so that nothing that needs it is imported before they are set.
        from handlers.validate.engines import registry
        from handlers.validate.workers import drivers, transcripts

        self._engines, self._drivers, self._transcripts = registry, drivers, transcripts
        self._spec = registry.EngineSpec.model_validate(spec)
        registry.engine_class(self._spec).prepare(self._spec)
        self._load_seconds = 0.0
        self._engine: Any = None
        self._driver: Any = None

    def load(self, request: protocol.Load) -> protocol.Loaded:
        started = time.perf_counter()
        self._engine = self._driver = None  # of a model that is loaded again, the memory first
        self._engine = self._engines.load(self._spec)
        self._load_seconds = time.perf_counter() - started
        self._driver = self._drivers.drive(self._spec, self._engine)
        return protocol.Loaded(
            vocabulary=self._engine.vocabulary,
            context_length=self._engine.context_length,
            adapted=bool(getattr(self._engine, "adapted", False)),
            together=hasattr(self._driver, "expect"),
            ends=getattr(self._engine, "own_ends", None),
            deviations=tuple(getattr(self._engine, "deviations", ())),
            reach=getattr(self._engine, "reach", Reach()),
            segments=getattr(self._engine, "segments", 1),
        )

    def rebase(self, request: protocol.Rebase) -> protocol.Rebased:
        return protocol.Rebased(tensors=self._engine.rebase(request.values))

    def merge(self, request: protocol.Merge) -> protocol.Rebased:
        return protocol.Rebased(tensors=self._engine.merge(request.dtype, Path(request.folder)))

    def round(self, request: protocol.Round) -> protocol.Rebased:
        return protocol.Rebased(tensors=self._engine.round(Path(request.folder)))

    def can_rebase(self, request: protocol.CanRebase) -> protocol.Obstacle:
        return protocol.Obstacle(reason=self._engine.fixed())

    def compare_weights(self, request: protocol.CompareWeights) -> protocol.Weighed:
        compare = getattr(self._engines.engine_class(self._spec), "weights_difference", None)
        return protocol.Weighed(reason=None if compare is None else compare(self._spec, Path(request.source)), compared=compare is not None)

    def encode(self, request: protocol.Encode) -> protocol.Encoding:
        if request.firsts is None:
            return protocol.Encoding(ids=[self._engine.encode(text) for text in request.texts])
        pairs = [self._engine.encode_pair(first, text) for first, text in zip(request.firsts, request.texts, strict=True)]
        return protocol.Encoding(ids=[ids for ids, _ in pairs], types=[types for _, types in pairs])

    def special_tokens(self, request: protocol.ListSpecialTokens) -> protocol.SpecialTokens:
        return protocol.SpecialTokens(ids=sorted(self._engine.special_tokens), mask=self._engine.mask_token)

    def input_tokens(self, request: protocol.CountInputTokens) -> protocol.TokenCount:
        return protocol.TokenCount(tokens=self._engine.input_vocabulary)

    def text(self, request: protocol.Decode) -> protocol.Text:
        return protocol.Text(text=self._engine.text(request.ids))

    def transcribe(self, request: protocol.Transcribe) -> protocol.Transcript:
        return self._transcripts.transcribe(self._engine, request)

    def read_files(self, request: protocol.ReadFiles) -> protocol.FilesRead:
        return self._transcripts.read_files(self._engine, request, Path(self._spec.folder))

    def generate(self, request: protocol.Generate) -> protocol.Generated:
        whole = not self._spec.engine.endswith(self._engines.LAYERWISE)  # which reads all weights for each token
        function = getattr(self._engine, "generate", None) if whole else None
        ignores = list(getattr(self._engine, "ignored_settings", ()))
        return protocol.Generated(tokens=None if function is None else function(request.ids, request.tokens), ignores=ignores)

    def teacher(self, request: protocol.Teacher) -> protocol.Rows:
        import numpy as np

        with self._adapter(request.bare):
            rows = self._driver.rows(request.ids, request.targets, request.types)
        np.save(request.out, rows[request.keep])
        return protocol.Rows(rows=len(rows), vocabulary=int(rows.shape[-1]))

    def long_pass(self, request: protocol.LongPass) -> protocol.Rows:
        import numpy as np

        rows = self._driver.long(request)
        np.save(request.out, rows)
        return protocol.Rows(rows=len(rows), vocabulary=int(rows.shape[-1]))

    def greedy(self, request: protocol.Greedy) -> protocol.Decoding:
        with self._adapter(request.bare):
            decoded: protocol.Decoding = self._driver.greedy(
                request.ids, request.tokens, least=request.least, stop=request.stop, verify=request.verify
            )
        return decoded

    def continue_texts(self, request: protocol.Continue) -> protocol.Continuations:
        return protocol.Continuations(tokens=self._driver.sampled(request.prompts, request.tokens, request.seed))

    def read(self, request: protocol.Read) -> protocol.Reading:
        import numpy as np

        if (given := getattr(self._engine, "read_prompt", None)) is not None and request.prompt is not None:
            asked = request.prompt
            logits, places, written = given(asked.ids, asked.mark, np.load(asked.picture), request.tokens)
            rows = {place: row for row, place in enumerate(places)}
            kept = [number for number, place in enumerate(asked.places) if place in rows]
            np.save(request.out, logits[[rows[asked.places[number]] for number in kept]])
            return protocol.Reading(rows=len(kept), tokens=written, kept=kept)
        function = getattr(self._engine, "read", None)
        if function is None or self._spec.engine.endswith(self._engines.LAYERWISE):
            return protocol.Reading(rows=0)
        with self._adapter(request.bare):
            answer = function(request.number, request.tokens)
        np.save(request.out, answer.logits)
        prompt = None
        if answer.picture is not None and answer.mark is not None:
            path = f"{request.out}.picture.npy"
            np.save(path, answer.picture)
            prompt = protocol.PicturePrompt(ids=answer.ids, mark=answer.mark, places=answer.places, picture=path)
        return protocol.Reading(rows=len(answer.logits), tokens=answer.tokens, prompt=prompt)

    def _adapter(self, bare: bool) -> contextlib.AbstractContextManager[None]:
        """Inside, the adapter is left out where `bare`."""
        without: contextlib.AbstractContextManager[None] = self._engine.without_adapter() if bare else contextlib.nullcontext()
        return without

    def padding(self, request: protocol.Padding) -> protocol.Difference:
        batch = request.batch
        return protocol.Difference(max_absolute=self._driver.padding(batch.prompts, batch.continuations, batch.types, request.side))

    def wrapper(self, request: protocol.CompareWrapper) -> protocol.Difference:
        difference = getattr(self._engine, "wrapper_difference", None)
        return protocol.Difference(max_absolute=None if difference is None else difference(request.ids, request.types))

    def timed(self, request: protocol.Time) -> protocol.Timing:
        with getattr(self._engine, "as_users_run_it", contextlib.nullcontext)():
            prefill, decode, count = self._driver.timed(request.rows, request.tokens, again=request.again)
        return protocol.Timing(prefill_seconds=prefill, decode_seconds=decode, tokens=count)

    def ahead(self, request: protocol.Ahead) -> protocol.Going:
        for bare, group in itertools.groupby(map(protocol.request_of, request.requests), lambda later: bool(getattr(later, "bare", False))):
            with self._adapter(bare):
                for later in group:
                    self._driver.expect(later)
        more = self._driver.advance()
        return protocol.Going(passes=self._driver.passes, more=more)

    def stats(self, request: protocol.AskStats) -> protocol.Stats:
        peak = getattr(self._engine, "peak_rss", process.peak_rss)()  # of the process that holds the model
        return protocol.Stats(load_seconds=self._load_seconds, peak_rss_bytes=peak, versions=process.loaded_versions())


def answer(commands: Commands, line: Json) -> Json:
    """Give the answer to one request, both as they cross the pipe; an error is an answer too, {"error": Failure}."""
    try:
        request = protocol.request_of(line)
        given: Frozen = getattr(commands, request.command)(request)
        return given.model_dump()
    except CkptdError as error:
        fault = error.fault
        later = isinstance(error, Retryable)
        return _failed(protocol.Failure(code=fault.code, cause=fault.cause, remedy=fault.remedy, details=_traceback(), transient=later))
    except BaseException as error:
        if not foreign.is_failure(error):
            raise
        return _failed(_of_library(error, commands) or _unforeseen(error))


def _of_library(error: BaseException, commands: Commands) -> protocol.Failure | None:
    """Give the failure of a library that can't work with a model's files; None for other errors, and for artifacts of our formats."""
    if foreign.of_machine(error) or foreign.library_of(error) is None or not commands._engines.runs_models(commands._spec.engine):
        return None
    fault = foreign.refusal(error, "run the model", None).fault
    return protocol.Failure(code=fault.code, cause=fault.cause, remedy=fault.remedy, details=_traceback())


def _unforeseen(error: BaseException) -> protocol.Failure:
    lines = str(error).strip().splitlines()
    cause = f"{type(error).__name__}: {lines[0][:400] if lines else 'no message'}".rstrip(".")
    return protocol.Failure(
        code=FaultCode.ENGINE, cause=cause, remedy=None, details=_traceback(), transient=foreign.of_machine(error)
    )  # fmt: skip


def _failed(failure: protocol.Failure) -> Json:
    return {"error": failure.model_dump()}


def _traceback() -> str:
    return traceback.format_exc()[-DETAILS_LIMIT:]


def _missing(error: Exception) -> protocol.Failure:
    """Give what keeps the engine from being imported; it names the environment that lacks something."""
    toolchain = use.own()
    name = "" if toolchain is None else use.name_of(toolchain)
    where = f" in the toolchain {name}" if name else ""
    remedy = "install ckptd's dependencies again, or those of the package that brings the format"
    if name:
        remedy = f"run `ckptd toolchain check {name}`, which says whether it is complete"
    cause = f"its engine can't be imported{where}: {error}"
    return protocol.Failure(code=FaultCode.ENGINE_MISSING, cause=cause, remedy=remedy, details=_traceback())


def main(spec_file: str) -> int:
    """Answer requests until standard input ends."""
    job = json.loads(Path(spec_file).read_text(encoding="utf-8"))
    catalog.use(FormatEntry.model_validate(entry) for entry in job["formats"])
    limits = ChildLimits.model_validate(job["limits"])
    process.bind(limits)
    stream = process.take_standard_output()
    process.set_environment(limits, job["temporary"])
    commands: Commands | None = None
    broken: Json = {}
    try:
        commands = Commands(job["spec"])
    except Exception as error:
        traceback.print_exc()
        broken = _failed(_missing(error))
    for line in sys.stdin:
        given = broken if commands is None else answer(commands, json.loads(line))
        stream.write(json.dumps(given) + "\n")
        stream.flush()
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stderr.flush()
    os._exit(code)  # there is nothing to save, and taking libraries and model down in order takes a second
