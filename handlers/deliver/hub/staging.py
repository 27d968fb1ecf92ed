"""The commit that holds a version, on a branch of its own that nobody follows, and the name that is given to it when it is whole."""

from __future__ import annotations

from daemon.contract.faults.errors import Permanent, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from handlers.deliver.hub.contents import Contents
from handlers.deliver.hub.interface.commits import Commit, changes, message_of
from handlers.deliver.hub.interface.repository import Names, Repository
from handlers.deliver.hub.naming import WORK

ROUNDS = 5
"""Of a change that somebody else came before."""


class Staging:
    """Of one version in one repository."""

    def __init__(self, repository: Repository, contents: Contents) -> None:
        self._repository, self._contents = repository, contents
        self._commit = ""
        """The commit that holds the version, once there is one."""

    def begin(self) -> bool:
        """Ask the repository what it has of the version, and how it keeps files; gives whether all of it is there. Raises CkptdError."""
        contents = self._contents
        self._repository.create(contents.options.private)
        self._commit = self._finished(self._names())
        if self._commit:  # they are named on `main` too, and not sent again within its commit
            contents.large = {path for path, entry in self._repository.tree(self._commit).items() if entry.sha256}
        else:
            contents.large = self._repository.large("main", [(contents.places[file.path], file) for file in contents.version.files])
        return bool(self._commit)

    def commit(self) -> str:
        """The commit that holds the version, made if there is none. Raises CkptdError."""
        for _ in range(ROUNDS):
            if self._commit:
                return self._commit
            names = self._names()
            self._commit = self._finished(names) or self._made(names)
        if self._commit:
            return self._commit
        raise Retryable(
            FaultCode.DELIVERY_CONFLICT, "commit the version", "others change the repository all the time",
            "the delivery is tried again by itself", path=self._repository.name,
        )  # fmt: skip

    def name(self) -> None:
        """Let the version's name stand for the commit. Raises CkptdError, also where it stands for something else."""
        make = self._repository.set_tag if self._contents.options.revisions == "tag" else self._repository.set_branch
        if not make(self._contents.name, self.commit()):
            self._finished(self._names())

    def clear(self) -> None:
        """Take the branch away on which it was put together."""
        self._repository.delete("branch", WORK + self._contents.name)

    def _names(self) -> Names:
        names = self._repository.names()
        if names is None or not names.main:
            cause = "there is no such repository, or it has no branch `main`"
            raise Permanent(
                FaultCode.DELIVERY_REFUSED, "look at the repository", cause, "make it, or let the token see it", path=self._repository.name
            )
        return names

    def _finished(self, names: Names) -> str:
        """The commit that holds the whole version, under its name or on its branch; "" where none does. Raises Permanent where its name
        stands for something else."""
        name = self._contents.name
        for where, commit in (("tag", names.tags.get(name)), ("branch", names.branches.get(name))):
            if commit is None:
                continue
            if not self._is_ours(commit):
                cause = f"the {where} {name} stands for something else"
                raise Permanent(
                    FaultCode.DELIVERY_CONFLICT, "look at the repository", cause, "look at it, and remove or rename it",
                    path=self._repository.address(name),
                )  # fmt: skip
            return commit
        work = names.branches.get(WORK + name)
        return work if work is not None and self._is_ours(work) else ""

    def _is_ours(self, commit: str) -> bool:
        """Whether a commit says that it holds the version."""
        mark = self._repository.mark(commit)
        return mark is not None and mark.version == self._contents.name and mark.digest == self._contents.version.digest

    def _made(self, names: Names) -> str:
        """A commit with the version on its branch; "" where somebody came before. Raises CkptdError."""
        contents, work = self._contents, WORK + self._contents.name
        start = names.branches.get(work)
        if start is None:
            start = names.main
            if not self._repository.set_branch(work, start):
                return ""
        there = self._repository.tree(start)
        wanted = contents.pieces()
        gone = sorted(path for path in there if path not in {piece.path for piece in wanted} and path != ".gitattributes")
        change = Commit(*message_of(contents.version, contents.name), start, changes(wanted, there), tuple(gone))
        commit = self._repository.commit(work, change) or ""
        if commit:
            self._check(commit)
        return commit

    def _check(self, commit: str) -> None:
        """Raise where the commit does not hold what was sent, by the Hub's own digests."""
        if wrong := changes(self._contents.pieces(), self._repository.tree(commit)):
            raise Permanent(
                FaultCode.DELIVERY_MISMATCH, "compare what was delivered", f"{wrong[0].path} is another file at the far end than here",
                "look for a proxy or a cache between here and there, and deliver again; nothing was made visible",
                path=self._repository.name,
            )  # fmt: skip
