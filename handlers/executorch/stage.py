"""The stages `executorch`, `executorch-int8` and `executorch-8da4w`: the programs of fixed sizes as files for ExecuTorch.

Run by `handlers/__main__.py` with the Python of the toolchain `executorch`, which has no transformers. Whether the result is right is the
check's verdict: every form is run by ExecuTorch and compared with the live model. What can't be opened by the runtime is found here.
"""

from __future__ import annotations

import gc
import importlib.metadata
from pathlib import Path
from typing import Any

import torch

from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.child.variants import UNREACHED, refusing, warn_of_little
from handlers.executorch import lowering, quantization
from handlers.executorch.lowering import Lowered, Opened
from handlers.executorch.options import ExecuTorchOptions
from handlers.executorch.runner import app_runner
from handlers.executorch.session import Session
from handlers.graphs import graphset
from handlers.graphs.graphset import Graph, GraphSet
from handlers.models.files import read_json
from handlers.static_programs.description import LENGTH
from handlers.static_programs.published import placing
from handlers.validate.engines.generation_rules import end_tokens

SESSION = Path(__file__).with_name("session.py")
CAUSAL = "causal"


def plain(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `executorch`. Permanent `form-not-possible`."""
    return _Making(context, reporter).run("float32", None)


def int8(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `executorch-int8`."""
    return _Making(context, reporter).run("int8", 0)


def int4(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `executorch-8da4w`."""
    return _Making(context, reporter).run("int4", context.work.options(ExecuTorchOptions).group_size)


class _Making:
    """One form on its way."""

    def __init__(self, context: StageContext, reporter: Reporter) -> None:
        self.context, self.reporter = context, reporter
        self.source, self.staging = Path(context.inputs["static-programs"]), Path(context.staging)
        self.known = graphset.read(self.source)
        self.rounded: dict[str, int] = {}
        self.left = 0

    def run(self, dtype: str, group: int | None) -> StageOutput:
        """Make all programs. `group`: see `quantization.quantize`; None leaves the weights as they are."""
        torch.set_num_threads(self.context.limits.threads)
        figures: dict[str, Any] = {"library": importlib.metadata.version("executorch"), LENGTH: int(self.known.extra[LENGTH])}
        programs: dict[str, Any] = {}
        caches: dict[str, list[str]] = {}
        graphs = []
        for number, graph in enumerate(self.known.graphs):
            self.reporter.progress(0.05 + 0.8 * number / len(self.known.graphs), f"lowering {graph.file}")
            with refusing(self.context, "ExecuTorch's compiler fails", self.source), torch.no_grad():
                program, made, in_place = self._made(graph, group)
            described, path = program.described, self.staging / program.described.file
            with open(path, "wb") as stream:
                made.manager.write_to_file(stream)
            graphs.append(described)
            caches[graph.role] = list(program.caches)
            programs[graph.role] = {
                "file": path.name, "bytes": path.stat().st_size, "delegates": made.delegates,
                "delegated_operators": sum(made.delegated.values()), "portable_operators": sum(made.portable.values()),
                "delegated": dict(made.delegated), "portable": dict(made.portable),
                **({"caches": len(program.caches), "caches_written_in_place": in_place} if program.own else {}),
            }  # fmt: skip
            del program, made
            gc.collect()
        extra = {**self.known.extra, "caches": caches}
        made_of = self.known.model_copy(update={"graphs": tuple(graphs), "dtype": dtype, "extra": extra})
        made_of.write(self.staging)
        self.reporter.progress(0.9, "opening the programs")
        self._open(made_of)
        graphset.copy_beside(self.source, self.staging, self.known)
        placing.place(self.known.task, self.staging, SESSION, "executorch, torch")
        figures |= {"programs": programs, "graph_bytes": made_of.size(self.staging), **self._rounded(group)}
        warnings = [] if group is None else warn_of_little(figures["small_share"], UNREACHED)
        if self.known.family == CAUSAL:
            self.reporter.progress(0.95, "trying ExecuTorch's runner for language models")
            runner, why = self._runner()
            figures |= runner
            warnings += [why] if why else []
        return StageOutput(figures=figures, warnings=warnings)

    def _made(self, graph: Graph, group: int | None) -> tuple[Opened, Lowered, int]:
        program = lowering.opened(self.source / graph.file, graph)
        in_place = lowering.write_in_place(program)
        if group is not None:
            logits = next((port.shape[-1] for port in graph.outputs if port.name == "logits"), None)
            for form, count in quantization.quantize(program.module, group, logits if isinstance(logits, int) else None).items():
                self.rounded[form] = self.rounded.get(form, 0) + count
            self.left += quantization.left(program.module)
        exported = lowering.exported(program, self._bounds(graph))
        return program, lowering.lowered(exported, self._constants(graph)), in_place

    def _bounds(self, graph: Graph) -> dict[str, tuple[int, int]]:
        """Free axis of a program → fewest and most. A decoder's second one is the encoder's."""
        free = dict.fromkeys(size for port in graph.inputs for size in port.shape if isinstance(size, str))
        bounds = self.known.extra["bounds"]
        places = [bounds[graph.role], *([bounds["encoder"]] if len(free) > 1 else [])]
        return {axis: (int(least), int(most)) for axis, (least, most) in zip(free, places, strict=True)}

    def _constants(self, graph: Graph) -> dict[str, Any]:
        """What ExecuTorch's runner for language models asks a program."""
        if self.known.family != CAUSAL:
            return {}
        config, generation = (self._json(name) for name in ("config.json", "generation_config.json"))
        first = generation.get("bos_token_id", config.get("bos_token_id"))
        return {
            "get_vocab_size": graph.outputs[0].shape[-1], "get_max_context_len": int(self.known.extra[LENGTH]),
            "get_max_seq_len": int(self.known.extra["bounds"][graph.role][1]), "use_kv_cache": True, "enable_dynamic_shape": True,
            "use_sdpa_with_kv_cache": False, "get_n_layers": len(graph.outputs) // 2, "get_eos_ids": list(end_tokens(generation, config)),
            **({"get_bos_id": first} if isinstance(first, int) else {}),
        }  # fmt: skip

    def _json(self, name: str) -> dict[str, Any]:
        path = self.source / name
        return dict(read_json(path, f"make the variant {self.context.stage}")) if path.is_file() else {}

    def _open(self, made: GraphSet) -> None:
        for graph in made.graphs:
            with refusing(self.context, f"ExecuTorch's runtime does not open {graph.file}", self.source):
                Session(self.staging / graph.file, graph.role)

    def _runner(self) -> tuple[dict[str, Any], str]:
        """What apps must know to let ExecuTorch's own runner run it, and why that can't be."""
        ends = end_tokens(self._json("generation_config.json"), self._json("config.json"))
        try:
            begins = app_runner.begins(self.staging, Path(self.context.temporary), int(self.known.extra[LENGTH]), ends)
        except app_runner.Unlike as error:
            return {
                "runner": False
            }, f"ExecuTorch's own runner for language models can't be used: {error}; ExecuTorch itself runs the program"
        return {"runner": True, "runner_begins": begins}, ""

    def _rounded(self, group: int | None) -> dict[str, Any]:
        if group is None:
            return {}
        total = sum(self.rounded.values()) + self.left
        figures = {"weights": {**self.rounded, "float32": self.left}, "small_share": round(sum(self.rounded.values()) / max(1, total), 4)}
        return {
            **figures,
            "bits": 4 if group else 8,
            "torchao": importlib.metadata.version("torchao"),
            **({"block_size": group} if group else {}),
        }
