"""docs/configuration.md: every key with its type, default, variable and meaning.

`python -m daemon.config.reference config.toml > docs/configuration.md`. Meanings are the comments of config.toml, types and bounds those of
the settings; a test holds the page equal.
"""

from __future__ import annotations

import json
import re
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ByteSize
from pydantic.fields import FieldInfo

from daemon.config import older_keys
from daemon.config.run_overrides import ALLOWED
from daemon.config.settings import Settings
from daemon.config.sources import PREFIX
from daemon.contract.delivering.declaration import DeliveryKind
from daemon.contract.delivering.kinds import kinds
from daemon.contract.faults.secret_url import SecretUrl
from daemon.contract.formats.catalog import catalog
from daemon.contract.formats.thresholds import Thresholds
from daemon.contract.values import docstrings

HEAD = """\
# Configuration

This page is generated from config.toml and the types of the settings:
`python -m daemon.config.reference config.toml > docs/configuration.md`.

A key can be set in several places. ckptd uses the first place in this list that sets it. `ckptd config show` names this place for each
key:

1. `ckptd --set SECTION.KEY=VALUE VERB …`, for one command;
2. the environment variable `CKPTD_SECTION__KEY`; separate list items with commas, write tables as JSON;
3. the environment variables `EXPORT_OUTPUT_DIR` (output.directory), `EXPORT_QUANTIZATION_LEVEL` (export.quantization), `EXPORT_LOG_LEVEL`
   (log.level) and `EXPORT_ENABLE_ONNX` (`false` removes the ONNX variants from the default variants);
4. the files `conf.d/*.toml` next to the configuration file; if several files set the key, the last one by name is used;
5. the configuration file: `--config`, or `$CKPTD_CONFIG`, or `~/.config/ckptd/config.toml`, or `/etc/ckptd/config.toml`;
6. the default.

Tables are combined key by key. Any other value, also a list, replaces the value from a later place in this list. Relative paths are
relative to the configuration file.

A run can have settings of its own, in a file `ckptd.toml` in its directory. They count for the checkpoints of that run, before all places
in this list, and a file with an error is not used (`ckptd status` says why). It can set OWN_KEYS. Paths in it are relative to the run.
Variants that `export.deploy` of the main configuration asks for are also made, unless the run sets `export.deploy` too, for example to
`[]`.
"""

THRESHOLDS = """\
What an artifact must reach in the comparison with the live model to be published, for every variant. The numbers below are those of
`strictness = "normal"`. With `"strict"`, kl, error and the share of positions that may differ (1 − agreement) are half as large; with
`"loose"`, twice. A table of yours needs only the limits that you change: `[validate.limits.onnx-int8]` with `kl = 0.1`, or
`--set validate.limits.onnx-int8.kl=0.1` for one command; a number of yours counts as it is, with any strictness. `ckptd config show
validate.thresholds` prints the limits that count, and report.json holds them. agreement: minimum share of positions with the same most
likely token; kl: maximum mean KL divergence in nats per token; error: maximum logit error in standard deviations of the logits;
perplexity: maximum perplexity of the texts' own tokens, over the live model's. If your table does not set it, it follows from kl as
exp(√(2 · kl)). Merging rounds the weights once to the base's dtype (bf16: 8 bits). This alone can change the most likely token where two
tokens are almost equally likely; therefore agreement is not 100 %, and unless your table sets it above the default it does not count where
the divergence is certainly at most half of the limit of kl."""


@dataclass
class Key:
    """A key of the file: its default as it is written there, and the text above it."""

    name: str
    default: str
    text: str


@dataclass
class Table:
    """A table of the file with its keys, and the text above the table."""

    name: str
    text: str = ""
    keys: list[Key] = field(default_factory=list)


def tables(text: str) -> list[Table]:
    """The tables of a documented configuration, in its order; keys before the first are in a table without a name."""
    rows, comment = [Table("")], list[str]()
    for line in text.splitlines():
        if line.startswith("# >>>") or line.startswith("# <<<") or not line.strip():
            comment = []
        elif line.startswith("#"):
            comment.append(line.removeprefix("#").strip())
        elif match := re.fullmatch(r"\[(.+)\]", line):
            rows.append(Table(match[1], " ".join(comment)))
            comment = []
        else:
            name, _, value = line.partition(" = ")
            above = next((key.name for key in reversed(rows[-1].keys) if not key.text.startswith("See `")), "")
            rows[-1].keys.append(Key(name, value, " ".join(comment) or f"See `{above}`."))
            comment = []
    return rows


def page(text: str) -> str:
    """The page for a documented configuration, in Markdown."""
    own = ", ".join(f"`{section}.{key}`" for section, keys in ALLOWED.items() for key in keys)
    lines = [HEAD.replace("OWN_KEYS", own)]
    for table in tables(text):
        title = f"`[{table.name}]`" if table.name else "Before the tables"
        if not table.keys and not table.text:
            continue
        lines += ["", f"## {title}", *(["", table.text] if table.text else [])]
        lines += ["", "| key | type | default | meaning |", "| --- | --- | --- | --- |"]
        lines += [_row(table.name, key) for key in table.keys]
    for kind in kinds().by_name.values():
        lines += ["", f'## `[[deliver]]`, `kind = "{kind.name}"`', "", f"{kind.about[0].upper()}{kind.about[1:]}.", *_of_kind(kind)]
    lines += ["", "## Keys of earlier versions", "", _older()]
    lines += ["", "## `[validate.limits.VARIANT]`", "", *_thresholds()]
    return "\n".join(lines) + "\n"


def _row(table: str, key: Key) -> str:
    model: Any = Settings
    for part in filter(None, table.split(".")):
        model = model.model_fields[part].annotation
    info = model.model_fields[key.name]
    variable = f"{PREFIX}{'__'.join([*filter(None, table.split('.')), key.name])}".upper()
    return f"| `{key.name}`<br>`{variable}` | {_cell(kind_of(info))} | `{_cell(key.default)}` | {_cell(key.text)} |"


def _of_kind(kind: DeliveryKind) -> Iterator[str]:
    """The table of a kind's own keys; nothing for a kind that has none."""
    texts, fields = docstrings(kind.options), kind.options.model_fields
    yield from ["", "| key | type | default | meaning |", "| --- | --- | --- | --- |"] if fields else ()
    for key, info in fields.items():
        default = "" if info.is_required() else f"`{_cell(_written(info.get_default(call_default_factory=True)))}`"
        yield f"| `{key}` | {_cell(kind_of(info))} | {default} | {_cell(' '.join((info.description or texts.get(key, '')).split()))} |"


def _written(value: Any) -> str:
    return json.dumps("" if value is None else value, ensure_ascii=False, default=str)


def _older() -> str:
    renamed = ", ".join(f"`{old}` is `{new}` now" for old, new in older_keys.RENAMED.items())
    return (
        f"These still count until version 2; log and `ckptd check` name each that is set. {renamed}. Left to ckptd, whose values fit:"
        f" {', '.join(f'`{key}`' for key in older_keys.OURS)}. Without effect:"
        f" {', '.join(f'`{key}` ({why})' for key, why in older_keys.WITHOUT_EFFECT.items())}."
    )


def _thresholds() -> Iterator[str]:
    names = tuple(Thresholds.model_fields)
    yield THRESHOLDS
    yield ""
    yield "| variant | " + " | ".join(f"`{name}`" for name in names) + " |"
    yield "| --- |" + " --- |" * len(names)
    for variant, limits in catalog().thresholds.items():
        numbers = [limits.agreement, limits.kl, limits.error, float(f"{limits.perplexity_ratio:.4g}")]
        yield f"| `{variant}` | " + " | ".join(map(str, numbers)) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def kind_of(info: FieldInfo) -> str:
    """The type of a key, with its bounds, in words."""
    bounds = [f"{sign} {_plain(value)}" for constraint in info.metadata for sign, value in _bounds(constraint)]
    return ", ".join([_kind(info.annotation), *bounds])


def _bounds(constraint: Any) -> Iterator[tuple[str, Any]]:
    for name, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<")):
        if getattr(constraint, name, None) is not None:
            yield sign, getattr(constraint, name)


def _plain(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _kind(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(inner[0])
    if origin is Literal:
        return " or ".join(f'"{choice}"' if isinstance(choice, str) else str(choice) for choice in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(_kind(part) for part in inner if part is not type(None))
    if origin is tuple:
        return f"list of {_kind(inner[0])}"
    if origin is dict:
        return f"table of {_kind(inner[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "{ " + ", ".join(f"{name}: {kind_of(field)}" for name, field in annotation.model_fields.items()) + " }"
    return {ByteSize: "size", Path: "path", str: "text", SecretUrl: "URL", int: "whole number", float: "number", bool: "true or false"}[
        annotation
    ]


if __name__ == "__main__":
    sys.stdout.write(page(Path(sys.argv[1]).read_text(encoding="utf-8")))
