"""What an exporter's error means: one table from type and message to a diagnosis and the strategies worth trying next.

Called by `attempts.try_strategies`. The messages are those of torch 2.9 to 2.13, onnx and onnxruntime; a new one is a new row. Free of
torch: types are recognized by their names, along the chain of causes, since the exporters wrap the cause in long messages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnosis:
    """What an error means."""

    code: str
    """Stable kebab-case name."""
    meaning: str
    """One clause."""
    then: tuple[str, ...] | None
    """Names of the strategies to try next, best first; None: the default order."""
    manual: str = ""
    """What a user can do about it, as one imperative clause."""


@dataclass(frozen=True)
class Symptom:
    """How to recognize the errors of one diagnosis."""

    types: tuple[str, ...]
    """Names of exceptions of which one is among the error and its causes; empty: any."""
    pattern: str
    """Regular expression, ignoring case, found in the message of the error or of a cause."""
    diagnosis: Diagnosis


UNKNOWN = Diagnosis(
    "unknown",
    "an unknown error",
    None,
    "read the attempt's log, and report it with the reproduction to the exporter's developers",
)

_TRACER_MAP = Diagnosis(
    "tracer-map", "the TorchScript tracer met a value that it had not recorded, as when a mask is built with vmap",
    ("legacy-rewritten", "dynamo-eager", "dynamo-rewritten", "dynamo-sdpa", "legacy-eager", "dynamo-one-row", "dynamo-no-cache",
     "dynamo-window"),
    "build the model's masks by arithmetic on positions instead of vmap",
)  # fmt: skip
_DATA_DEPENDENT = Diagnosis(
    "data-dependent", "the model's code takes a branch that depends on values, which a graph can't do",
    ("dynamo-rewritten", "dynamo-experts", "dynamo-patched", "dynamo-sdpa", "legacy-rewritten", "legacy-eager", "dynamo-no-cache",
     "dynamo-window", "legacy-static"),
    "replace the branch at the line that the log names with torch.where, or with a table that is looked up",
)  # fmt: skip
_UNSUPPORTED_OPERATOR = Diagnosis(
    "unsupported-operator", "the exporter has no translation for an operator of the model",
    ("dynamo-experts", "dynamo-patched", "dynamo-rewritten", "dynamo-eager", "legacy-eager", "legacy-rewritten", "dynamo-sdpa",
     "dynamo-opset", "dynamo-no-cache", "optimum"),
    "write the operator with simpler ones in the model's code, or register a translation with the exporter",
)  # fmt: skip
_OPSET_UNKNOWN = Diagnosis(
    "opset-unknown", "the exporter does not know the operator set asked for", ("dynamo-eager", "dynamo-opset", "legacy-eager"),
    "set export.opset to 18, which every exporter here writes",
)  # fmt: skip
_OPSET_OTHER = Diagnosis(
    "opset-other", "the exporter wrote another operator set than asked for, because it could not convert the graph",
    ("legacy-eager", "legacy-sdpa", "dynamo-opset", "legacy-no-cache"),
    "set export.opset to 18, which the exporter writes without converting",
)  # fmt: skip
_SPECIALIZED = Diagnosis(
    "axis-specialized", "the model's code fixes an axis that should be dynamic to the size of the sample",
    ("dynamo-sdpa", "dynamo-rewritten", "legacy-eager", "legacy-rewritten", "dynamo-one-row", "dynamo-no-cache", "dynamo-window",
     "legacy-static"),
    "look in the log for the axis and the line that fixes it, and take its size from the tensor there",
)  # fmt: skip
_PROTOBUF = Diagnosis(
    "protobuf-limit", "a file would be larger than the 2 GiB that protobuf allows", ("dynamo-external", "layers"),
    'set onnx.external_data to "always"',
)  # fmt: skip
_MEMORY = Diagnosis(
    "out-of-memory", "memory ran out during the export", ("layers",),
    "free memory, give the daemon more by limits.memory_fraction, or split the model with onnx.layers_per_graph",
)  # fmt: skip
_NAMES = Diagnosis(
    "names-missing", "the graph lost inputs or outputs: the exporter treated values that do not change in its sample as constants",
    ("dynamo-sdpa", "dynamo-rewritten", "legacy-eager", "legacy-rewritten", "dynamo-no-cache"),
    "make sure that the model's code uses each input",
)  # fmt: skip
_MISMATCH = Diagnosis(
    "graph-differs", "the graph computes something else than torch: the usual cause is a branch of which only one side was traced",
    ("dynamo-rewritten", "dynamo-eager", "dynamo-sdpa", "legacy-rewritten", "legacy-eager", "legacy-sdpa", "dynamo-one-row",
     "dynamo-no-cache", "dynamo-window", "legacy-static"),
    "compare the graph with the model layer by layer, at the lengths that the error names",
)  # fmt: skip
_BRANCH = Diagnosis(
    "baked-branch", "the tracer fixed a branch, and its other side can't be tested here",
    ("dynamo-eager", "dynamo-rewritten", "legacy-rewritten", "dynamo-sdpa"), "replace the branch in the model's code with torch.where",
)  # fmt: skip
_ATTENTION = Diagnosis(
    "attention-unavailable", "the architecture has no such attention implementation",
    ("dynamo-eager", "dynamo-rewritten", "dynamo-patched", "legacy-eager", "legacy-rewritten", "dynamo-experts", "dynamo-one-row",
     "dynamo-no-cache"),
    "use a strategy with eager attention",
)  # fmt: skip
_INVALID = Diagnosis(
    "invalid-graph", "the exporter wrote a graph that violates the standard or that onnxruntime does not accept",
    ("dynamo-sdpa", "dynamo-rewritten", "legacy-eager", "legacy-rewritten", "dynamo-opset", "dynamo-no-cache"),
    "set export.opset to 18 if it is another",
)  # fmt: skip
_NOT_INSTALLED = Diagnosis(
    "not-installed",
    "this strategy needs something that is not installed here",
    None,
    "install what the error names, or leave this strategy out",
)

SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(("NotInstalledError",), "", _NOT_INSTALLED),
    Symptom(("MemoryError",), "", _MEMORY),
    Symptom((), r"can't allocate memory|not enough memory|bad_alloc|bad allocation", _MEMORY),
    Symptom((), r"invalid unordered_map<K, T> key|unordered_map::at|_Map_base::at", _TRACER_MAP),
    Symptom(("GuardOnDataDependentSymNode", "DataDependentOutputException", "DynamicOutputShapeException"), "", _DATA_DEPENDENT),
    Symptom((), r"could not guard on data-dependent|data.dependent (control flow|branch|expression)|dynamic control flow", _DATA_DEPENDENT),
    Symptom((), r"vmap: It looks like you're calling \.item\(\)", _DATA_DEPENDENT),
    Symptom(("UnsupportedOperatorError", "DispatchError"), "", _UNSUPPORTED_OPERATOR),
    Symptom((), r"no ONNX function found|exporting the operator .* is not supported|in this export path", _UNSUPPORTED_OPERATOR),
    Symptom(("OpsetMismatchError",), "", _OPSET_OTHER),
    Symptom((), r"unsupported (onnx_opset_version|onnx opset version)", _OPSET_UNKNOWN),
    Symptom(("ConstraintViolationError",), "", _SPECIALIZED),
    Symptom((), r"inferred a static shape of|constraints violated|specialized (it )?to be a constant", _SPECIALIZED),
    Symptom(("GraphMismatchError",), r"axis \d+ of \S+ is ", _SPECIALIZED),
    Symptom(("EncodeError",), "", _PROTOBUF),
    Symptom((), r"maximum protobuf size|protobuf .*too large|larger than 2 ?GiB|exceeds 2 ?GB|failed to serialize proto", _PROTOBUF),
    Symptom(("GraphMismatchError",), r"differ from those asked for", _NAMES),
    Symptom(("GraphMismatchError",), r"onnxruntime does not take the graph", _INVALID),
    Symptom(("GraphMismatchError",), "", _MISMATCH),
    Symptom((), r"RUNTIME_EXCEPTION|Non-zero status code returned while running", _MISMATCH),
    Symptom(("BakedBranchError",), "", _BRANCH),
    Symptom((), r"does not support an attention implementation", _ATTENTION),
    Symptom(("ValidationError", "Fail", "InvalidGraph"), "", _INVALID),
)
"""The first row that matches counts."""


def diagnose(error: BaseException) -> Diagnosis:
    """The diagnosis of an error; UNKNOWN if no row matches."""
    chain = _chain(error)
    types = {base.__name__ for cause in chain for base in type(cause).__mro__}
    text = "\n".join(str(cause) for cause in chain)
    for symptom in SYMPTOMS:
        if (not symptom.types or types & set(symptom.types)) and re.search(symptom.pattern, text, re.IGNORECASE):
            return symptom.diagnosis
    return UNKNOWN


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return chain
