"""New heads: an adapter trained for classification, tagging or question answering holds the head, which the base does not have.

Called by `handlers.merge.plan.matcher`. The merged model is then of another class than the base: its configuration names that class and the
number of labels, the head's tensors are added, and the base's own head, which that class does not have, is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.merge.adapters.adapter import Adapter
from handlers.merge.adapters.changes import Change
from handlers.merge.adapters.name_mapping import OPERATION, Names
from handlers.merge.weights.model_structure import HEADED, build, headed_class, structure
from handlers.models.files import Edits
from handlers.models.folder import ModelFolder


@dataclass
class Head:
    """What a new head changes: parameters to add, tensors to leave out, keys of config.json."""

    added: tuple[str, ...] = ()
    drop: frozenset[str] = frozenset()
    edits: Edits = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def _labels(adapter: Adapter, missing: dict[str, Change]) -> int:
    """Return the number of labels: the rows of the last layer of the head."""
    shapes = [adapter.shapes[str(change.saved)] for name, change in missing.items() if name.endswith(".weight")]
    return min((shape[0] for shape in shapes if shape), default=2)


def _meaning(adapter: Adapter, count: int) -> Edits:
    """Return what a config.json next to the adapter says of the head's labels: names, kind of problem, thresholds. PEFT itself saves none.

    Empty where there is no such file, or where it does not name exactly these labels: it is then one of another model.
    """
    path = adapter.folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError):
        return {}
    names = config.get("id2label") if isinstance(config, dict) else None
    if (
        not isinstance(names, dict)
        or sorted(names) != sorted(str(label) for label in range(count))
        or len(set(map(str, names.values()))) != count
    ):
        return {}
    edits: Edits = {"id2label": {str(label): str(names[str(label)]) for label in range(count)}}
    edits["label2id"] = {str(names[str(label)]): label for label in range(count)}
    return {**edits, **{key: config[key] for key in ("problem_type", "threshold", "thresholds") if config.get(key) is not None}}


def new_head(
    adapter: Adapter, model: ModelFolder, names: Names, missing: dict[str, Change], unmatched: Callable[[list[str]], Exception]
) -> Head:
    """Return the head that consists of `missing`, saved parameters that the base does not store; an empty one when they are no head."""
    built = structure(model)
    if built is not None and all(name in built.shapes for name in missing):
        if all(any(names.info(other) for other in built.group(name)) for name in missing):
            return Head()  # shared with a tensor that is stored
        if not any(names.info(other) for name in missing for other in built.group(name)):
            return Head(added=tuple(missing))  # the class has it, and the base's files lack it: a head that was never trained
    task = str(adapter.config.get("task_type") or "")
    cls = headed_class(model, task) if task in HEADED else None
    count = _labels(adapter, missing)
    other = build(model, cls, num_labels=count) if cls is not None else None
    absent = sorted({change.module for name, change in missing.items() if other is None or name not in other.shapes})
    if absent or other is None or cls is None:
        if all(names.info(group) for name in missing for group in (built.group(name) if built else ()) if group != name) and built:
            return Head()
        raise unmatched(absent)
    lacking = sorted(other.shapes.keys() - missing.keys() - (built.shapes.keys() if built else set()))
    lacking = [name for name in lacking if not any(names.info(member) for member in other.group(name))]
    if lacking:
        raise Permanent(
            FaultCode.HEAD_INCOMPLETE,
            OPERATION,
            f"the adapter brings the head of a {cls.__name__}, which needs {lacking[0]}, and neither the base nor the adapter has it",
            f"train with modules_to_save naming {lacking[0].rpartition('.')[0]} too: its values in training were random and are lost",
            path=adapter.folder,
        )
    lost = (built.state if built else frozenset()) - other.state
    drop = frozenset(name for name in names.stored if names.parameter(name) in lost)
    names_said = _meaning(adapter, count)
    edits: Edits = {
        "architectures": [cls.__name__],
        "id2label": {str(label): f"LABEL_{label}" for label in range(count)},
        "label2id": {f"LABEL_{label}": label for label in range(count)},
        **names_said,
    }
    said = f"the adapter brings the head of a {cls.__name__} with {count} labels, so the merged model is one"
    if names_said:
        said += f"; {', '.join(names_said)} are those of the config.json next to the adapter"
    if "id2label" not in names_said:
        said += "; they have no names (LABEL_0 …): for names, put the trained model's config.json next to the adapter and export again"
    if drop:
        said += f"; {', '.join(sorted(drop)[:3])} of the base's own head {'are' if len(drop) > 1 else 'is'} left out"
    return Head(tuple(missing), drop, edits, [said])
