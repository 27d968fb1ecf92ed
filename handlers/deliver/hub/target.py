"""A repository of the Hub as a delivery target.

A version is one commit on a branch of its own, `ckptd-work-…`, which nobody follows; when all of it lies there, a tag (or branch) with the
version's name is made at that commit, and so a reader finds all of it or nothing. `main` gets one commit on top of the commit that was
looked at; where somebody was faster, it is looked at again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence

from daemon.contract.delivering.orders import Listed, Move, Receipt
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.deliver.hub import main_branch
from handlers.deliver.hub.contents import Contents
from handlers.deliver.hub.declaration import HubOptions
from handlers.deliver.hub.interface.repository import HUB, HubCalls, Repository, Token, asked, repositories
from handlers.deliver.hub.interface.uploads import Uploads
from handlers.deliver.hub.naming import OWN_NAME, WORK, repository_of, repository_pattern
from handlers.deliver.hub.staging import Staging
from handlers.deliver.target import AT_ONCE, Setting
from handlers.deliver.version import SourceFile, Version


class Hub:
    """The target."""

    at_once = AT_ONCE

    def __init__(self, setting: Setting) -> None:
        self._options = HubOptions.model_validate(setting.options)
        self._token = _token(setting.secret)
        endpoint = self._options.endpoint or os.environ.get("HF_ENDPOINT", "").rstrip("/") or HUB
        self._calls = HubCalls(endpoint, secrets=[self._token])
        self._calls.credentials = Token(self._token)
        self._run, self._resume = setting.run, setting.resume
        self._contents: Contents | None = None
        self._repository: Repository
        self._uploads: Uploads
        self._staging: Staging
        self._was_there: bool | None = None
        """Whether the version was there before this process came; None: the repository was not asked yet."""

    def close(self) -> None:
        """Close connections."""
        self._calls.close()

    def foresee(self, version: Version) -> None:
        """Learn what will be put."""
        self._repository = Repository(self._calls, repository_of(self._options.repo, version.run))
        self._contents = Contents(version, self._options, self._repository.name)
        self._uploads = Uploads(self._repository, self._resume, self._token)
        self._staging = Staging(self._repository, self._contents)

    def look(self) -> None:
        """Ask for the right to write, where there is a repository, or else who the token is of."""
        if not self._run and "{run}" in self._options.repo:
            asked(self._calls, "look at the token", "GET", "api/whoami-v2", None)
            return
        repository = Repository(self._calls, repository_of(self._options.repo, self._run))
        if repository.names() is None:
            asked(self._calls, "look at the token", "GET", "api/whoami-v2", None)
        else:
            repository.may_write()

    def put(self, file: SourceFile, sent: Callable[[int], None]) -> int:
        """Let a large file lie there as an object; small ones go with the commit."""
        contents = self._begun()
        if self._was_there:
            return file.size
        path = contents.places[file.path]
        if path in contents.large:
            return self._uploads.put(file, sent)
        contents.sent[path] = sent
        return 0

    def read_back(self, file: SourceFile) -> Iterator[bytes]:
        """The file in the version's commit."""
        contents = self._begun()
        return self._repository.contents(self._staging.commit(), contents.places[file.path])

    def finish(self, version: Version, move: Move) -> Receipt:
        """Give the commit its name, and `main` one of its own."""
        contents = self._begun()
        self._staging.name()
        why = "the target's `main` is false" if not self._options.main else main_branch.moved(self._repository, contents, move)
        self._staging.clear()
        return Receipt(
            version=contents.name, place=self._repository.address(contents.name), moved=not why, why_not_moved=why, usage=contents.usage(),
        )  # fmt: skip

    def _begun(self) -> Contents:
        """What is delivered, once the repository was asked what it has of it."""
        contents = self._contents
        assert contents is not None, "foresee was not called"
        if self._was_there is None:
            self._was_there = self._staging.begin()
            self._uploads.expect(file for file in contents.version.files if contents.places[file.path] in contents.large)
        return contents

    def list(self, run: str) -> Sequence[Listed]:
        """Names whose commits say that they are ckptd's, and branches on which versions were put together that got no name."""
        rows = []
        for repository in self._repositories(run or self._run):
            names = repository.names()
            if names is None:
                continue
            current = main_branch.current(repository, names)
            whole = {**names.branches, **names.tags}
            begun = {name.removeprefix(WORK): commit for name, commit in whole.items() if name.startswith(WORK)}
            for name, commit in {**begun, **whole}.items():
                mark = repository.mark(commit) if OWN_NAME.fullmatch(name) and not name.startswith(WORK) else None
                if mark is not None and mark.version == name and run in ("", mark.run):
                    rows.append(
                        Listed(
                            version=name, run=mark.run, step=mark.step, export=mark.export, at=mark.at, current=name == current,
                            whole=name in whole,
                        )
                    )  # fmt: skip
        return sorted(rows, key=lambda row: (row.run, row.step, row.at))

    def remove(self, version: str) -> None:
        """Take a version's name away; the Hub keeps contents that no name leads to for as long as it likes."""
        if not OWN_NAME.fullmatch(version):
            return
        work = WORK + version
        for repository in self._repositories(self._run):
            names = repository.names()
            if names is None:
                continue
            for kind, name, there in (("tag", version, names.tags), ("branch", version, names.branches), ("branch", work, names.branches)):
                commit = there.get(name)
                if commit is None or (mark := repository.mark(commit)) is None or mark.version != version:
                    continue
                if main_branch.current(repository, names) == version:
                    raise Permanent(
                        FaultCode.DELIVERY_CONFLICT, "remove a version", f"main of {repository.name} stands for {version}",
                        "deliver another one first", path=repository.address(version),
                    )  # fmt: skip
                repository.delete(kind, name)

    def _repositories(self, run: str) -> Iterator[Repository]:
        """Those that the target's pattern means."""
        if run or "{run}" not in self._options.repo:
            yield Repository(self._calls, repository_of(self._options.repo, run))
            return
        pattern = repository_pattern(self._options.repo)
        for name in repositories(self._calls, self._options.repo.partition("/")[0]):
            if pattern.fullmatch(name):
                yield Repository(self._calls, name)


def _token(secret: str) -> str:
    """The token. Raises Permanent where there is none."""
    for text in (secret, os.environ.get("HF_TOKEN", ""), os.environ.get("HUGGING_FACE_HUB_TOKEN", "")):
        if token := text.strip():
            if re.fullmatch(r"[\x21-\x7e]+", token):
                return token
            raise Permanent(
                FaultCode.DELIVERY_REFUSED, "read the token", "it has characters that no token has", "write the token alone into the file"
            )
    raise Permanent(
        FaultCode.DELIVERY_REFUSED,
        "read the token",
        "there is none",
        "name a file with a token that may write as `secret_file`, or set HF_TOKEN",
    )
