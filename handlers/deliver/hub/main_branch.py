"""`main`, which people follow and write to: what ckptd brought is replaced there, by its record, and nothing else is.

A commit names the parent that was looked at. Where somebody committed meanwhile it is refused, and `main` is looked at again: their files
stay, and a file of ckptd's that they changed stops the move (a person's order goes over that).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from daemon.contract.delivering.orders import Move
from daemon.contract.faults.errors import Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.values import Json, value_at
from handlers.deliver.hub.contents import Contents
from handlers.deliver.hub.interface.commits import Commit, Entry, Piece, changes, made, message_of
from handlers.deliver.hub.interface.repository import Names, Repository
from handlers.deliver.hub.layout import README, RECORD

ROUNDS = 5


def current(repository: Repository, names: Names) -> str | None:
    """The version that `main` stands for; None where that is none of ckptd's."""
    version = _record(repository, names.main).get("version")
    return version if isinstance(version, str) else None


def moved(repository: Repository, contents: Contents, move: Move) -> str:
    """Let `main` stand for the version; gives why it does not, "" where it does. Raises CkptdError."""
    if move == "keep":
        return "the target's rule leaves `main` as it is"
    for _ in range(ROUNDS):
        names = repository.names()
        head = names.main if names is not None else ""
        record = _record(repository, head)
        if move == "move" and (why := _ahead(record, contents)):
            return why
        there = repository.tree(head)
        wanted = _wanted(repository, head, there, contents)
        before = value_at(record, "files")
        recorded: Mapping[str, Json] = before if isinstance(before, Mapping) else {}
        new = changes(wanted, there)
        if move != "force" and (why := _in_the_way(new, there, recorded)):
            return why
        names_wanted = {piece.path for piece in wanted}
        gone = tuple(sorted(
            path for path, row in recorded.items()
            if path not in names_wanted and path in there and isinstance(row, Mapping) and there[path].is_recorded(row)
        ))  # fmt: skip
        if not new and not gone:
            return ""
        if repository.commit("main", Commit(*message_of(contents.version, contents.name), head, new, gone)) is not None:
            return ""
    raise Retryable(
        FaultCode.DELIVERY_CONFLICT, "move main", "others commit to it all the time", "the delivery is tried again by itself",
        path=repository.address("main"),
    )  # fmt: skip


def _record(repository: Repository, commit: str) -> Json:
    """What a commit says that ckptd brought; {} where it says nothing."""
    data = repository.small(commit, RECORD) if commit else None
    try:
        value = json.loads(data) if data else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) and value.get("ckptd") == 1 else {}


def _ahead(record: Json, contents: Contents) -> str:
    """Why what `main` stands for is not to be replaced; "" where it is."""
    step = record.get("step")
    if record.get("run") == contents.version.run and isinstance(step, int) and step > contents.version.step:
        return f"main stands for the later step {step}"
    return ""


def _wanted(repository: Repository, head: str, there: Mapping[str, Entry], contents: Contents) -> tuple[Piece, ...]:
    """What `main` is to have, with what people wrote on the model card."""
    card: tuple[Piece, ...] = ()
    if contents.options.card:
        old = repository.small(head, README) if README in there else None
        card = (made(README, contents.card((old or b"").decode("utf-8", "surrogateescape"))),)
    return (*contents.files(), contents.record(), *card)


def _in_the_way(new: tuple[Piece, ...], there: Mapping[str, Entry], recorded: Mapping[str, Json]) -> str:
    """Why a file can't be written there: one that ckptd did not bring, or that somebody changed since."""
    for piece in new:
        if piece.path in (README, RECORD) or (entry := there.get(piece.path)) is None:
            continue
        row = recorded.get(piece.path)
        if not isinstance(row, Mapping):
            return f"main has a {piece.path} that ckptd did not bring; `ckptd deliver --force` replaces it"
        if not entry.is_recorded(row):
            return f"somebody changed {piece.path} on main; `ckptd deliver --force` replaces it"
    return ""
