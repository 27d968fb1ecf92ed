"""llama.cpp's server: the link `current.gguf` leads to the version's file, and the server is restarted by the user's command.

It reads models and adapters only when it starts, so what is new is served before it can be asked; where its answers are wrong the link
leads back to the version before, and the server is restarted with that. Until the new server answers rightly an answer like those before
is waited out, since the old process may still be there. Source: llama.cpp's `tools/server/README.md`, as in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from daemon.contract.delivering.orders import Move, Receipt
from daemon.contract.faults.errors import CkptdError, Permanent, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.values import Json
from handlers.deliver.servers.answers import Answer, Judged
from handlers.deliver.servers.asking import ASK, ask, unexpected
from handlers.deliver.servers.llamacpp.declaration import KIND, LlamaOptions
from handlers.deliver.servers.serving import AS_IT_IS, TOP, Questions, is_wrong
from handlers.deliver.servers.shelved import Shelved
from handlers.deliver.target import Setting
from handlers.deliver.version import Version

LINK = "current.gguf"
RELOAD = "restart the server"
RELOAD_SECONDS = 300.0
"""That the command itself may take: a service that is stopped first ends what it answers."""
PAUSE = 0.05
"""Seconds between two looks at a server that is starting."""


WHOLE = 4
"""Tokens that are asked for where the first is a part of a character: the server says nothing of it until the character is whole."""


class LlamaServer(Shelved):
    """A llama.cpp server."""

    kind = KIND

    def __init__(self, setting: Setting) -> None:
        self.options = LlamaOptions.model_validate(setting.options)
        super().__init__(setting, self.options)

    def look(self) -> None:
        """Find out whether the server answers and the folder can be written."""
        self.shelf.look()
        self._is_well()

    def finish_alone(self, version: Version, move: Move) -> Receipt:
        """Restart the server with it, ask, and go back where the answers are wrong."""
        questions, name, served = self.questions(version), version.name, self._served()
        why = AS_IT_IS if move == "keep" else self.shelf.newer(version, served) if move == "move" else ""
        before = None if why else self.answers_now("", questions)
        folder = self.shelf.make(version)
        new, old = f"{name}/{self._file(folder).name}", self._link()
        if why:
            return self._receipt(version, why, {})
        if old == new and before is not None and not (judged := self.judged(questions, before)).fault:
            return self._receipt(version, "", self.right(name, questions, judged))
        try:
            self._lead(new)
            self._reload()
            figures = self.right(name, questions, self._awaited(questions, before))
        except CkptdError as error:
            if old != new:
                with contextlib.suppress(CkptdError):
                    self._lead(old)
                    self._reload()
                self.shelf.remove(name, keep_contents=not is_wrong(error))
            raise
        return self._receipt(version, "", figures)

    def is_served(self, name: str, run: str) -> bool:
        """Whether the link leads there."""
        return self._served() == name

    def ask_tokens(self, model: str, ids: Sequence[int]) -> Answer:
        """The most likely tokens, before any sampling."""
        for tokens in (1, WHOLE):
            body = {"prompt": list(ids), "n_predict": tokens, "n_probs": TOP, "temperature": 0, "cache_prompt": False}
            answer: Any = ask(self.calls, ASK, "/completion", body).json()
            try:
                if rows := answer.get("completion_probabilities"):
                    return _by_id(rows[0])
            except (AttributeError, KeyError, IndexError, TypeError, ValueError):
                raise unexpected(ASK, self.url, "its answer has no log-probabilities by token id") from None
        return {}

    def chat_request(self, model: str, messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        """So many tokens that the first is said, and nothing of earlier ones."""
        return {**super().chat_request(model, messages), "max_tokens": WHOLE, "cache_prompt": False}

    def chat_answer(self, choice: Json) -> Mapping[int, float]:
        """By token id."""
        rows: Any = choice["logprobs"]
        return _by_id(rows["content"][0]) if rows and rows["content"] else {}

    def _file(self, folder: Path) -> Path:
        """The model's or adapter's file. Raises Permanent where there is not just one."""
        files = [file for file in sorted(folder.glob("*.gguf")) if not file.name.startswith("mmproj")]
        if len(files) != 1:
            cause = f"the variant has {len(files)} GGUF files where one is needed"
            raise Permanent(FaultCode.DELIVERY_SOURCE, RELOAD, cause, "name another variant in the target's `variants`", path=folder)
        return files[0]

    def _receipt(self, version: Version, why: str, figures: Json) -> Receipt:
        name = version.name
        return Receipt(
            version=name, place=f"{self.url} with {self.shelf.folder / name}", moved=not why, why_not_moved=why,
            usage=f"curl {self.url}/completion -d '{{\"prompt\": \"…\"}}'", figures=figures,
        )  # fmt: skip

    def _link(self) -> str:
        """Where the link leads; "" where there is none."""
        link = self.shelf.folder / LINK
        return os.readlink(link) if link.is_symlink() else ""

    def _served(self) -> str:
        """The version that the link leads to."""
        return self._link().split("/")[0]

    def _lead(self, place: str) -> None:
        """Let the link lead there, nowhere where that is ""; no reader sees it missing in between."""
        if not place:
            (self.shelf.folder / LINK).unlink(missing_ok=True)
            return
        with tempfile.TemporaryDirectory(dir=self.shelf.folder, prefix=".new-") as scratch:
            os.symlink(place, f"{scratch}/{LINK}")
            os.replace(f"{scratch}/{LINK}", self.shelf.folder / LINK)

    def _reload(self) -> None:
        command = list(self.options.reload)
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                encoding="utf-8",
                errors="replace",
                timeout=RELOAD_SECONDS,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            cause = f"the command {command[0] if command else ''} can't be run: {error}"
            raise Permanent(FaultCode.DELIVERY_REFUSED, RELOAD, cause, "correct the target's `reload`", path=self.options.url) from error
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            cause = f"the command {command[0]} ended with {done.returncode}" + (f": {said[-1]}" if said else "")
            raise Permanent(FaultCode.DELIVERY_REFUSED, RELOAD, cause, "correct the target's `reload`", path=self.options.url)

    def _is_well(self) -> None:
        ask(self.calls, RELOAD, "/health")

    def _awaited(self, questions: Questions, before: Sequence[Answer] | None) -> Judged:
        """The verdict once the new server answers. Raises CkptdError where it does not in time."""
        until = time.monotonic() + self.options.load_seconds
        while True:
            try:
                self._is_well()
                said = self.answers("", questions)
                judged = self.judged(questions, said, before)
                if not judged.fault or said != before or time.monotonic() > until:
                    return judged
            except Retryable:
                if time.monotonic() > until:
                    raise
            time.sleep(PAUSE)


def _by_id(row: Json) -> dict[int, float]:
    top: Any = row["top_logprobs"]
    return {int(each["id"]): float(each["logprob"]) for each in top}
