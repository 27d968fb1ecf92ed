"""Which models transformers.js loads, and by which settings of config.json it sizes their caches. Pure; the table is known.toml.

Called by the stages. What is not in the table is refused there, since a page would say no more than that a model type is unknown, or feed
a cache that the graph does not take.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon.contract.values import Json
from handlers.graphs.graphset import Graph

TABLE = Path(__file__).with_name("known.toml")
_FIRST = ("past_key_values.0.key", "past_key_values.0.decoder.key")


class UnknownError(Exception):
    """transformers.js does not load the model; the message is a clause."""


@dataclass(frozen=True)
class Known:
    """One kind of models."""

    layers: str = ""
    """Key of config.json that says how many layers have a cache."""
    heads: str = ""
    """Key that says how many heads there are in it."""
    size: str = ""
    """Key that says how wide a head is; "" where it is always `hidden` divided by the heads."""
    hidden: str = ""


def table() -> Json:
    """The file as it stands."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def release() -> str:
    """The release of transformers.js that the table is of, and that checks run."""
    return str(table()["release"])


def find(config: Json, task: str) -> Known:
    """How transformers.js names the settings of a model. Raises UnknownError."""
    kind = config.get("model_type")
    rows: list[dict[str, Any]] = table().get(task, [])
    for row in rows:
        if kind in row["types"]:
            return Known(**{key: value for key, value in row.items() if key != "types"})
    known = sorted(name for row in rows for name in row["types"])
    raise UnknownError(f"transformers.js {release()} loads no model of the type {kind} for {task}; it knows {', '.join(known)}")


def completed(config: Json, known: Known, graph: Graph) -> Json:
    """A config with the sizes of the cache that `graph` takes, as transformers.js names them. Raises UnknownError where it can't say them.

    Releases before 4 make an empty cache by these settings, and all count its layers so.
    """
    if not known.layers:
        return config
    past = {port.name: port for port in graph.inputs if port.name.startswith("past_key_values.")}
    first = next((past[name] for name in _FIRST if name in past), None)
    if first is None or len(first.shape) != 4:
        raise UnknownError("its decoder has no cache that transformers.js could feed")
    layers = len({name.split(".")[1] for name in past})
    _, heads, _, size = first.shape
    if any(port.shape[1] != heads or port.shape[3] != size for port in past.values()):
        raise UnknownError("the layers of its cache differ in their sizes, and config.json has one number for all")
    wanted: dict[str, Any] = {known.layers: layers, known.heads: heads}
    attention = (config.get("num_attention_heads") or heads) if known.size else heads
    usual = config.get(known.hidden, 0) / attention if known.hidden else None
    if known.size and (config.get(known.size) is not None or usual != size):
        wanted[known.size] = size
    elif not known.size and usual != size:
        raise UnknownError(f"its heads are {size} wide, and transformers.js takes {known.hidden} divided by their number for it")
    wrong = [f"{key} is {config[key]} instead of {value}" for key, value in wanted.items() if config.get(key) not in (None, value)]
    if wrong:
        raise UnknownError(f"its config.json contradicts its cache: {', '.join(wrong)}")
    return {**config, **wanted}
