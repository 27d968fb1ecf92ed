"""Optimizes the graphs of an ONNX folder step by step, and keeps a step only if its graph is shown to be equal and not slower.

Called by the onnx stage on the folder that it has written and checked. A step that fails, or whose graph computes something else, is
malformed, larger or slower, is undone, and the report says which and why; a failed step does not fail the export. Memory: two sessions of
one graph beside the weights' file, which is mapped.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from daemon.contract.values import Json
from handlers.folder.playback import Player
from handlers.folder.playback import UnknownInputError as UnplayedError
from handlers.graphs import graph_file as graphs_on_disk
from handlers.graphs.graphset import MEDIA, Graph, GraphSet
from handlers.graphs.sessions import check_form
from handlers.onnx.optimize.judging import acceptance
from handlers.onnx.optimize.judging.random_inputs import Maker, RandomInputs
from handlers.onnx.optimize.matching import by_operator
from handlers.onnx.optimize.step import RANK, Level, NotForThisError, Step, StepInput, StepReport
from handlers.onnx.optimize.steps import STEPS
from handlers.onnx.optimize.workspace import Bench, CandidateGraph

WIDTH = 200
"""Characters of an error in a report."""


@dataclass(frozen=True)
class Optimized:
    """The folder's graphs as they are now, and the result of each step."""

    graphs: GraphSet
    reports: tuple[StepReport, ...]
    nodes_before: int
    bytes_before: int
    bytes_after: int
    error: float | None = None
    """What `verify` gave for the folder as it now is; None where no step was kept."""
    warnings: tuple[str, ...] = ()

    @property
    def figures(self) -> dict[str, object]:
        """For the stage's result."""
        return {
            "nodes": [self.nodes_before, sum(graph.nodes for graph in self.graphs.graphs)],
            "bytes": [self.bytes_before, self.bytes_after],
            "steps": [report.figures for report in self.reports],
        }


@dataclass(frozen=True)
class OptimizeOptions:
    """How an optimization goes."""

    threads: int = 1
    derived: bool = True
    """Other stages quantize this folder, so no product with a weight may vanish in a larger operator."""
    texts: tuple[tuple[int, ...], ...] = ()
    """Token ids of real texts, which the graphs are compared on beside random inputs."""
    steps: tuple[Step, ...] = STEPS
    trials: tuple[Step, ...] = ()
    """Steps that are tried when the others are done, and never kept: what they give is for graphs that are derived of these."""
    without: Collection[str] = ()
    """Roles of graphs that stay as they are."""


def optimize(
    folder: Path, graphs: GraphSet, level: Level, verify: Callable[[Path], float], config: Json,
    options: OptimizeOptions = OptimizeOptions(), tell: Callable[[float, str], None] = lambda share, what: None,
) -> Optimized:  # fmt: skip
    """Optimize a written, verified folder in place and write its graphs.json anew.

    `verify` compares a folder with the model itself and raises when they differ; what then makes it raise is undone too. `config` is the
    model's config.json. `tell` is called with the progress, 0 to 1.
    """
    nodes, size = sum(graph.nodes for graph in graphs.graphs), graphs.size(folder)
    steps = [step for step in options.steps if RANK[step.level] <= RANK[level]]
    if not steps and not options.trials:
        return Optimized(graphs, (), nodes, size, size)
    played: dict[str, list[RandomInputs]] = {}
    warnings: tuple[str, ...] = ()
    try:
        # Random inputs, and the model itself, are what graphs of pictures and sounds are compared on.
        played = {} if MEDIA & {port.name for port in graphs.graphs[0].inputs} else _played(folder, graphs, options)
    except (UnplayedError, RuntimeError) as error:
        warnings = (f"optimized graphs were compared only on random inputs: {_describe(error)}",)
    bench = Bench(folder, graphs)
    reports: list[StepReport] = []
    errors: list[float] = []
    try:
        for number, graph in enumerate(graphs.graphs):
            if graph.role in options.without:
                continue
            tell(number / len(graphs.graphs), f"optimizing {graph.role}")
            reports += _Work(bench, graph, level, config, options, played.get(graph.role, [])).run(steps, verify, errors)
    finally:
        files = bench.close()
    made = tuple(
        graph.model_copy(update={"nodes": files[graph.file].nodes, "data": files[graph.file].data}) for graph in graphs.graphs
    )  # fmt: skip
    optimized = graphs.model_copy(update={"graphs": made})
    optimized.write(folder)
    return Optimized(optimized, tuple(reports), nodes, size, optimized.size(folder), errors[-1] if errors else None, warnings)


def _played(folder: Path, graphs: GraphSet, options: OptimizeOptions) -> dict[str, list[RandomInputs]]:
    """Role → what real texts feed it."""
    by_role: dict[str, list[RandomInputs]] = {}
    player = Player(folder, graphs, options.threads) if options.texts else None
    for number, ids in enumerate(options.texts):
        for call in player.play(ids) if player else ():
            by_role.setdefault(call.role, []).append(RandomInputs(f"text {number + 1}", call.feeds))
    return by_role


class _Work:
    """All steps on one graph."""

    def __init__(
        self, bench: Bench, graph: Graph, level: Level, config: Json, options: OptimizeOptions, texts: Sequence[RandomInputs]
    ) -> None:
        self.bench, self.graph, self.level, self.config, self.options = bench, graph, level, config, options
        self.path = bench.folder / graph.file
        self.texts = texts
        self._read: ir.Model | None = None
        """The graph as it is on disk, if it has been read; it is not changed."""
        self._idle = set[str]()
        """Steps that changed nothing in the graph as it is."""
        self._lighter = False
        """The last graph that was made has fewer nodes than the one before, and nothing else."""

    def run(self, steps: Sequence[Step], verify: Callable[[Path], float], errors: list[float]) -> list[StepReport]:
        """Try each step in turn, then compare with the model itself; the error goes to `errors`."""
        try:
            maker = Maker(self.graph, self.config)
            cases, size = [*maker.cases(), *self.texts], self.bench.size()
            arena = acceptance.Arena(self.path, self.graph, cases, maker.speed(), self.options.threads, size)
        except Exception as error:
            return [StepReport(self.graph.role, step.name, reason=f"not tried: {_describe(error)}") for step in steps]
        reports, history = [], []
        for step in steps:
            copy = self.bench.copy(self.graph.file)
            report = self._try(step, arena)
            reports.append(report)
            if report.kept:
                history.append((report, copy))
        trials = [self._try(step, arena, keep=False) for step in self.options.trials]
        del arena  # its sessions hold the weights
        undone = self._judge(history, verify, errors)
        for report in trials if undone else ():
            report.good = False
            report.reason = f"tried on a graph that was then undone: {', '.join(undone)}"
        return [*reports, *trials]

    def _try(self, step: Step, arena: acceptance.Arena, *, keep: bool = True) -> StepReport:
        started = time.monotonic()
        before = self._read = self._read or ir.load(self.path)
        report = StepReport(self.graph.role, step.name, nodes_before=acceptance.nodes(before), bytes_before=self.bench.size())
        candidate: CandidateGraph | None = None
        try:
            with _quiet():
                candidate = self._made(step, before, report)
                check_form(candidate.path)
                acceptance.check_size(report.bytes_before, report.bytes_after or 0)
                counts = (report.nodes_before, report.nodes_after or 0)
                arena.compare(candidate.path, report, counts, buffers=step.buffers, timed=not self._lighter)
            report.good = True
            if keep:
                candidate.take()
                report.kept = True
                self._read = None
                self._idle.clear()
            else:
                report.reason = "; ".join(filter(None, ["for graphs with quantized weights", report.reason]))
        except acceptance.UnchangedError as error:
            report.reason = str(error)
            self._idle.add(step.name)
        except acceptance.UndoneError as error:
            report.reason = str(error)
        except NotForThisError as error:
            report.reason = f"not for this model: {error}"
        except Exception as error:
            report.reason = _describe(error)
        if candidate is not None and not report.kept:
            candidate.discard()
        report.seconds = round(time.monotonic() - started, 3)
        return report

    def _made(self, step: Step, before: ir.Model, report: StepReport) -> CandidateGraph:
        scratch = graphs_on_disk.fresh_folder(self.bench.scratch / step.name)
        with by_operator():
            model = step.apply(StepInput(ir.load(self.path), self.config, scratch, self.options.threads, frozenset(self._idle)))
        acceptance.settle(model, before, self.graph)
        report.nodes_after = acceptance.nodes(model)
        report.fused = dict(sorted((acceptance.foreign(model) - acceptance.foreign(before)).items()))
        acceptance.check_kept(model, before, standard=step.level == "basic", products=self.options.derived)
        self._lighter = acceptance.only_less(model, before)
        candidate = self.bench.candidate(self.graph.file, model)
        report.bytes_after = self.bench.size(candidate)
        return candidate

    def _judge(
        self, history: list[tuple[StepReport, CandidateGraph]], verify: Callable[[Path], float], errors: list[float]
    ) -> list[str]:  # fmt: skip
        """Undo steps, the last first, until the folder agrees with the model; gives the names of those that were undone."""
        undone: list[str] = []
        while history:
            try:
                with _quiet():
                    errors.append(verify(self.bench.folder))
                return undone
            except Exception as error:
                report, copy = history.pop()
                copy.take()
                report.kept = report.good = False
                report.reason = f"against the model itself: {_describe(error)}"
                undone.append(report.name)
        return undone


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the tools' own messages; what matters of them is in the report."""
    previous = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)


def _describe(error: Exception) -> str:
    lines = str(error).strip().splitlines() or ["no message"]
    name = "" if isinstance(error, ValueError | RuntimeError) else f"{type(error).__name__}: "
    return f"{name}{' '.join(lines[0].split())}"[:WIDTH]
