"""Servers that load adapters by name while they run: a version under its own name, asked, and then the alias that clients use.

Neither vLLM nor SGLang has aliases: the alias is a second load of the same folder. It is unloaded and loaded anew, never loaded in place,
since a server may go on with what it cached under that name (vllm#42125); for the time between a client gets 404. Its answers are compared
too, and where it can't be loaded or answers wrongly what it stood for before is loaded under it again. Which folder a name stands for the
server says itself (`root` of `/v1/models`).
"""

from __future__ import annotations

import contextlib
from pathlib import Path, PurePosixPath

from daemon.contract.delivering.orders import Move, Receipt
from daemon.contract.faults.errors import CkptdError, Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.deliver.names import of_run
from handlers.deliver.servers.asking import ask, unexpected
from handlers.deliver.servers.options import AdapterOptions
from handlers.deliver.servers.serving import AS_IT_IS, Questions, is_wrong
from handlers.deliver.servers.shelved import Shelved
from handlers.deliver.target import Setting
from handlers.deliver.version import Version

LOAD, UNLOAD, LOOK = "load the adapter", "unload the adapter", "look at the server's models"


class AdapterServer(Shelved):
    """A server with a verb to load an adapter and one to unload it."""

    load_path: str
    unload_path: str
    how_to_allow: str
    """What the server needs to load adapters while it runs, as an imperative clause."""

    def __init__(self, setting: Setting) -> None:
        self.options = AdapterOptions.model_validate(setting.options)
        super().__init__(setting, self.options)

    def look(self) -> None:
        """Find out whether the server answers and the folder can be written."""
        self.shelf.look()
        self.loaded()

    def finish_alone(self, version: Version, move: Move) -> Receipt:
        """Load it under its own name, ask, and move the alias."""
        questions, name = self.questions(version), version.name
        fresh = name not in self.loaded()
        folder = self.shelf.make(version)
        try:
            if fresh:
                self._load(name, self._seen(folder))
            figures = self.checked(name, questions)
        except Permanent as error:
            if fresh or (is_wrong(error) and not self.is_served(name, version.run)):
                self._take_back(name)
            raise
        why = self._move(version, name, questions, move)
        alias = of_run(self.options.alias, version.run)
        return Receipt(
            version=name, place=f"{self.url} as {name}", moved=not why, why_not_moved=why, usage=f'model="{name if why else alias}"',
            figures=figures,
        )  # fmt: skip

    def is_served(self, name: str, run: str) -> bool:
        """Whether the run's alias stands for it."""
        return self._stands_for(of_run(self.options.alias, run)) == name

    def unload(self, version: str) -> None:
        """Unload a name; one that is not loaded is none."""
        said = ask(self.calls, UNLOAD, self.unload_path, {"lora_name": version}, accepted=(200, 400, 404))
        if said.status != 200 and version in self.loaded():
            raise self.calls.error(UNLOAD, said)

    def loaded(self) -> dict[str, str]:
        """Names that the server answers to, with the folders of adapters ("" of what it does not say). Raises CkptdError."""
        answer = ask(self.calls, LOOK, "/v1/models").json()
        rows = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(rows, list):
            raise unexpected(LOOK, self.url, "its answer is no list of models")
        return {str(row.get("id")): str(row.get("root") or "") for row in rows if isinstance(row, dict)}

    def _stands_for(self, alias: str) -> str | None:
        """The version that an alias stands for; "" where that is none of ours, None where the server has no such name."""
        root = self.loaded().get(alias) if alias else None
        if root is None:
            return None
        place = PurePosixPath(root)
        return place.name if str(place) == self._seen(self.shelf.folder / place.name) and self.shelf.about(place.name) else ""

    def _move(self, version: Version, name: str, questions: Questions, move: Move) -> str:
        """Move the alias; why it was not moved, as a clause, or ""."""
        alias = of_run(self.options.alias, version.run)
        if not alias:
            return "the target has no alias"
        if move == "keep":
            return AS_IT_IS
        there = self._stands_for(alias)
        if move == "move":
            if there == "":
                return "the alias stands for a model that ckptd did not bring"
            if why := self.shelf.newer(version, there or ""):
                return why
        before = self.answers_now(alias, questions) if there is not None else None
        if there == name and before is not None and not self.judged(questions, before).fault:
            return ""
        old = self.loaded().get(alias, "")
        if there is not None:
            self.unload(alias)
        try:
            self._load(alias, self._seen(self.shelf.folder / name))
            self.checked(alias, questions, before)
        except CkptdError:
            with contextlib.suppress(CkptdError):
                self.unload(alias)
                if old and there != name:
                    self._load(alias, old)
            raise
        return ""

    def _take_back(self, name: str) -> None:
        """Let the server forget what nobody is served; a folder that it may still look at stays."""
        with contextlib.suppress(CkptdError):
            self.unload(name)
            self.shelf.remove(name, keep_contents=True)

    def _seen(self, folder: Path) -> str:
        return f"{self.options.seen_at.rstrip('/')}/{folder.name}" if self.options.seen_at else str(folder)

    def _load(self, name: str, seen: str) -> None:
        said = ask(self.calls, LOAD, self.load_path, {"lora_name": name, "lora_path": seen}, accepted=(200, 400, 404, 405))
        where, words = self.url + self.load_path, self.calls.masked(said.words)
        if said.status in (404, 405):
            cause = f"the server does not load adapters while it runs (it answered {said.status}): {words}"
            raise Permanent(FaultCode.DELIVERY_REFUSED, LOAD, cause, self.how_to_allow, path=where)
        if said.status == 400 and not ("already" in words and self.loaded().get(name) == seen):
            remedy = "see that the server sees the folder (`seen_at`), has room for one more adapter, and allows its rank"
            raise Permanent(FaultCode.DELIVERY_REFUSED, LOAD, f"the server can't load it: {words}", remedy, path=where)
