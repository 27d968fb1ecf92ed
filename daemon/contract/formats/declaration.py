"""What a format says of itself: one declaration in its own folder, from which everything else that knows formats is derived.

A declaration (`handlers/onnx/format.py`, or that of another package) imports this module and nothing heavy, since the daemon reads it.
It reaches both wings by an entry point of the group `ckptd.formats`; `daemon.contract.formats.catalog` gathers them. The plan, the
configuration's section and thresholds, `ckptd formats`, the checks, the report, the export's README and docs/formats.md follow from it.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from daemon.contract.formats.stages import MIB, StageSpec
from daemon.contract.formats.thresholds import Thresholds
from daemon.contract.light import dataclass
from daemon.contract.records import Record

if TYPE_CHECKING:
    from daemon.contract.values import Frozen

    Options: TypeAlias = type[Frozen]
else:
    Options = type  # `daemon.contract.formats.mistakes` looks which

Trait = Literal["onnx", "merged", "graphs", "cache", "padding", "dynamic axes", "tokenizer"]
"""onnx: it is made of ONNX graphs, so that EXPORT_ENABLE_ONNX switches it. merged: it is the merged model as
PyTorch runs it, which the stage `merged` checks. graphs: `graphs.json` names its graphs, `example.py` runs it.
cache: it decodes with a KV cache that is checked. padding: batches of unequal lengths are checked. dynamic axes: batch and lengths are
free. tokenizer: what turns texts into ids lies inside."""
Level = Literal["fp16", "bf16", "int8", "int8-static", "int8-weight", "int4", "bnb-int8", "nf4", "w8a8", "w4a16"]
"""How a variant is smaller than the one that it is a form of; "fp16", "int8" and "int4" are what `export.quantization` adds."""
Deploys = Literal["alone", "at its targets", "over its base", "not"]
"""How a variant is put to use: as it is; as it is, but at its targets alone (a Mac, a browser, a GPU), where its speed here says
little; with its base, which lies elsewhere; not, since it is made to look into the model."""
Target = Literal["cpu-server", "nvidia", "laptop", "ios", "android", "browser", "ollama", "edge"]
"""Where a model is put to use; `daemon.contract.formats.targets` says what each is."""
Kind = Literal["causal", "seq2seq", "encoder", "media-encoder", "media-seq2seq"]
"""What drives a model: a language model; an encoder-decoder; an encoder, with or without a head."""


FileKind = Literal[
    "weights",
    "graphs",
    "config",
    "extended config",
    "tokenizer",
    "template",
    "generation",
    "runtime",
    "preprocessing",
    "pooling",
    "code",
    "example",
    "document",
]
"""What a file of an artifact decides, and so which check covers it; docs/validation.md has the list. extended config: config.json with
keys of the format's own beside the model's. document: nothing reads it but people."""
TOKENIZER_FILES: Mapping[str, FileKind] = {
    **dict.fromkeys(
        (
            "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "*.spm",
            "*.model", "*.model.v*", "*.tiktoken", "tekken.json", "bpe.codes", "dict.txt", "emoji.json", "normalizer.json",
            "target_vocab.json", "byte_maps.json", "entity_vocab.json", "prophetnet.tokenizer", "word_*.json",
        ),
        "tokenizer",
    ),
    **dict.fromkeys(("chat_template.jinja", "chat_template.json", "chat_templates/*", "additional_chat_templates/*"), "template"),
    **dict.fromkeys(("*preprocessor_config.json", "*processor_config.json", "audio_tokenizer_config.json"), "preprocessing"),
}  # fmt: skip
"""Files of a tokenizer, and of what stands before a model, by pattern."""
MODEL_FILES: Mapping[str, FileKind] = {
    **TOKENIZER_FILES,
    "config.json": "config",
    "README.md": "document",
    "generation_config.json": "generation",
    **dict.fromkeys(("modules.json", "config_sentence_transformers.json", "sentence_*_config.json", "router_config.json"), "pooling"),
    "[0-9]*_*/*": "pooling",
}  # fmt: skip
"""Those, and the settings of a model."""
EXAMPLE_FILES: Mapping[str, FileKind] = dict.fromkeys(("example.py", "chat_template.py", "marian_tokenizer.py"), "example")
"""What an export of graphs is shown by: the example, and what it reads texts by."""


EXACT_CACHE = 1e-3
"""`Limits.cache` of a form that rounds nothing but fp32's last digits."""


@dataclass(frozen=True)
class Limits:
    """How an artifact is run, and how far it may differ from itself, in units of the standard deviation of the reference's logits.

    Unlike `Thresholds` these are no matter of taste: beyond them something is broken, so that no key changes them.
    """

    engine: str
    """Name in `Format.engines` of this or another format."""
    cache: float
    """Largest |Δlogit| between the artifact's cached steps and its own prefill of the same tokens."""
    padding: float
    """Largest |Δlogit| between a row of a left-padded batch and the same prompt alone."""
    toolchain: str = ""
    """The toolchain whose Python the check and its engine run in, with numpy in it; "" for the one that ckptd is installed in."""
    gpu: bool = False
    """Its engine runs on a GPU, which the check may use where `limits.device` allows it."""
    memory_fixed: int = 700 * MIB
    memory_fp32: float = 2.0
    """What the check takes, in bytes and in bytes a byte of the weights in fp32."""
    disk_fp32: float = 0.0
    """Bytes of the files that the check writes for a while, a byte of the weights in fp32."""
    pytorch: bool = False
    """Its engine runs a model of transformers in PyTorch, so that the check had better start where both are loaded."""
    layerwise: bool = False
    """There is an engine of this name and "-layerwise" that gives the same answers with one layer of the model in memory at a time."""
    weights: bool = False
    """Its engine compares the artifact's weights with those of the merge (`weights_difference`), so that its check reads the merge."""
    loose: bool = False
    """That comparison lets a weight lie farther from its stored number than the nearest one is, so that the base of a light fine-tuning is
    within it too: it proves nothing about whose weights they are."""
    twin: str = ""
    """`module:class` of a `handlers.validate.twins.form.Form`, by which its check compares it with the merged model in PyTorch that
    computes with its own stored weights; "" for none. Made in ckptd's own environment, beside the libraries of `toolchain`."""
    timed: bool = True
    """What its check runs it with is what will run it, so that its speed is worth measuring."""
    merged: float | None = None
    """Largest |Δlogit| against the merged PyTorch model; None leaves that to the thresholds."""
    noise_share: float = 0.0
    """Raises the limits of cache and padding to this multiple of the artifact's largest error against the live model."""

    @property
    def exact(self) -> bool:
        """Whether it computes what the merged model computes, so that each row of a batch gets what it gets alone."""
        return self.cache <= EXACT_CACHE


@dataclass(frozen=True, kw_only=True)
class Variant(StageSpec):
    """A stage whose output is published: a format in one of its forms."""

    artifact: bool = True
    limits: Limits
    thresholds: Thresholds
    """Defaults of `[validate.limits.NAME]`: a class of `daemon.contract.formats.thresholds`, or numbers and why."""
    form_of: str | None = None
    """The variant that it is a smaller form of."""
    level: Level | None = None
    """Given with `form_of`."""
    fallback: str | None = None
    """The next less quantized variant, to take where this one is not exact enough."""
    traits: frozenset[Trait] = frozenset()
    usage: Path | None = None
    """A Jinja template in Markdown: who runs it and how, for the export's README and that of its folder; its first `shell` block (what to
    install) and its first `sh` or `python` block (how to run it) for the report. It knows `variant`, `folder` (the path of its folder:
    from the export's, or `.`), `about`, `prompt`, `auto` (the transformers class), `generates`, `pairs` and `figures` (its stage's, by
    name), the filters `md`, `literal` and `word`, and `install("torch", …)`, a block that installs distributions in the versions that the
    check ran with; code blocks run from the export's folder, or from its own."""
    library: str = ""
    """The library that loads it, as model hubs name it (`library_name` of a model card); "" where hubs know none."""
    elsewhere: str = ""
    """What those who use it run and its check does not, as a clause for the report's list of what was not verified; "" where there is
    nothing of the kind."""
    deploys: Deploys = "alone"
    """The report recommends none that is "not" deployed, one "at its targets" there, and one "over its base" only where nothing else
    passed."""
    targets: frozenset[Target] = frozenset()
    """What it is made for: `export.deploy` makes it for these. Only a form that fits every kind of model should name any."""
    also_for: frozenset[Target] = frozenset()
    """Where it can be used too: if it was made, the report may recommend it for these, by its figures."""


class FormatEntry(Record):
    """Where a declaration is found."""

    value: str
    """`module:attribute` of a `Format`."""
    root: str = ""
    """Folder from which its package is imported, for a Python that does not have it; "" where none is needed."""


@dataclass(frozen=True)
class Format:
    """One way to deploy a model."""

    name: str
    about: str
    """One sentence for people who look for a format."""
    variants: tuple[Variant, ...] = ()
    stages: tuple[StageSpec, ...] = ()
    """What its variants are made of, or those of other formats, and what is never published. A format may have these alone."""
    order: int = 1000
    """Place among the formats in the plan and in every list."""
    options: Options | str | None = None
    """Its section of the configuration: every key with default, and unit and reason in its docstring. Formats may share one class. As
    `module:class` it is imported when the configuration is read: `ckptd status` need not wait for pydantic then."""
    section: str = ""
    """Name of that section."""
    engines: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Engine → kind of model ("causal", "seq2seq", "encoder", and of what reads no text "media-encoder", "media-seq2seq") →
    `module:class` that loads a folder of this format, see `handlers.validate.engines.registry`."""
    data_engines: frozenset[str] = frozenset()
    """Those of `engines` that read a folder as data and run nothing that lies in it: `ckptd verify --deep` starts no others on a folder
    that anybody could have written to, unless `--trust` is given."""
    files: Mapping[str, FileKind] = field(default_factory=dict)
    """Pattern of names below a variant's folder → what such a file decides; of several that fit, the first counts, and one without a
    folder fits files at the top alone. A file that the checkpoint has and that fits one must be there, and say what the checkpoint's says.
    One that fits none, one of the model's that the checkpoint does not have, and weights and graphs that no file of the folder names, must
    not be there (`handlers.validate.files.stray`). Without any, those that are there are compared."""
    runtimes: tuple[str, ...] = ()
    """What runs it, by the names that people know: programs and libraries, the usual one first."""
    recommended_first: frozenset[Target] = frozenset()
    """Targets at which the report recommends it, if it passed, before formats that can be used there too."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Module → distribution of the libraries that it alone loads: results record their versions, beside those of the shared ones (torch,
    onnxruntime, …)."""
    notes: Path | None = None
    """Markdown for its section of docs/formats.md, with links relative to docs/: its files, what is refused and why, what was not run."""
    families: Mapping[str, str] = field(default_factory=dict)
    """"decoders", "encoder-decoders", "encoders and heads" → what was verified of them, for docs/formats.md."""

    @property
    def options_class(self) -> Options | None:
        """The class of its options, imported where it is named. Raises what that import raises."""
        return pkgutil.resolve_name(self.options) if isinstance(self.options, str) else self.options
