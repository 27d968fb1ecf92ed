"""The stages `web`, `web-int8` and `web-int4`: ONNX folders in the layout that transformers.js loads, with a page that shows it.

Run by `handlers/__main__.py` on the output of the stages `onnx`, `onnx-int8` and `onnx-int4`. Weights are copied, nothing is traced again.
Whether the result is right is the check's verdict: a browser loads the folder by transformers.js and runs it. Free of torch.
"""

from __future__ import annotations

import functools
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from daemon.contract.jobs.messages import StageContext
from daemon.contract.values import Json
from handlers.child.progress import Reporter, StageOutput
from handlers.child.variants import not_possible
from handlers.folder import examples
from handlers.graphs import graphset
from handlers.graphs.attention import marks
from handlers.graphs.graphset import GraphSet
from handlers.models.files import read_json
from handlers.models.tasks import BY_NAME
from handlers.web import known, layout, tokenizer

KEY = "transformers.js_config"
PAGE = Path(__file__).with_name("page")
MERGED = "decoder_merged"
ROLES = {"causal": ("model",), "encoder": ("model",), "seq2seq": ("encoder", MERGED)}
_WITHOUT = {examples.NAME, examples.MARIAN, examples.CHAT}
_DATA = "DATA"
"""What stands in index.html where the facts of the folder belong."""


@dataclass(frozen=True)
class _Form:
    source: str
    """The stage whose graphs these are."""
    dtype: str
    """What transformers.js calls it."""
    suffix: str
    """Behind the names of its files."""


FORMS = (_Form("onnx", "fp32", ""), _Form("onnx-int8", "q8", "_quantized"), _Form("onnx-int4", "q4", "_q4"))


def made(context: StageContext, reporter: Reporter, form: _Form) -> StageOutput:
    """One of the stages. Permanent `form-not-possible`."""
    source, staging = Path(context.inputs[form.source]), Path(context.staging)
    graphs = graphset.read(source)
    config = read_json(source / "config.json", "read the model's configuration")
    try:
        roles, settings = _fitting(graphs, config)
        reporter.progress(0.1, "copying the graphs")
        written = [layout.write(source, graph, staging, form.suffix) for role in roles if (graph := graphs.graph(role))]
        size = sum((staging / name).stat().st_size for part in written for name in (part.graph.file, *part.graph.data))
        if size > layout.MOST_IN_ALL:
            raise layout.TooLargeError(f"its graphs have {size} bytes, and a page can open {layout.MOST_IN_ALL}")
        reporter.progress(0.8, "copying configuration and tokenizer")
        graphset.copy_beside(source, staging, graphs, _WITHOUT)
        tokenizer_form = tokenizer.place(staging)
    except (known.UnknownError, layout.TooLargeError, tokenizer.UnlikeError) as error:
        raise not_possible(context, str(error), source) from error
    chunks = {Path(part.graph.file).name: part.chunks for part in written if part.chunks}
    settings = {**settings, KEY: {"dtype": form.dtype, "use_external_data_format": chunks or False}}
    (staging / "config.json").write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    changed = {"graphs": tuple(part.graph for part in written), "extra": marks.marked(graphs.extra)}
    graphs.model_copy(update=changed).write(staging)
    _place_page(staging, context.stage, graphs, form)
    figures = {
        "transformers_js": known.release(), "dtype": form.dtype, "graph_bytes": size, "data_files": sum(part.chunks for part in written),
        "tokenizer": tokenizer_form, "chat_template": bool(read_json(staging / tokenizer.CONFIG, "read it").get("chat_template")),
    }  # fmt: skip
    return StageOutput(figures=figures)


plain, int8, int4 = (functools.partial(made, form=form) for form in FORMS)


def _fitting(graphs: GraphSet, config: Json) -> tuple[tuple[str, ...], Json]:
    """The roles of the graphs that transformers.js loads, and config.json as it reads it. Raises UnknownError."""
    kind = BY_NAME[graphs.task].kind
    roles = ROLES[kind]
    if missing := [role for role in roles if graphs.graph(role) is None]:
        why = "its ONNX form is a chain of graphs" if kind == "causal" else f"its ONNX form has no graph {', '.join(missing)}"
        raise known.UnknownError(f"{why}, and transformers.js takes a model in one piece")
    how = known.find(config, graphs.task)
    decoder = graphs.graph(roles[-1])
    assert decoder is not None
    return roles, known.completed(config, how, decoder)


def _place_page(staging: Path, variant: str, graphs: GraphSet, form: _Form) -> None:
    """The page, told what it shows: text that ends no script."""
    facts = json.dumps({"variant": variant, "task": graphs.task, "dtype": form.dtype, "release": known.release()}).replace("<", "\\u003c")
    text = (PAGE / "index.html").read_text(encoding="utf-8")
    (staging / "index.html").write_text(text.replace(_DATA, facts, 1), encoding="utf-8")
    shutil.copyfile(PAGE / "app.js", staging / "app.js")
    examples.place_beside(examples.HOSTING, staging)
