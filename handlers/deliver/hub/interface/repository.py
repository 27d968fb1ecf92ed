"""One repository of the Hub, by the Hub's HTTP interface: names, commits, trees, files. It decides nothing and repeats nothing."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from daemon.contract.faults.errors import CkptdError, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.values import Json
from handlers.deliver.calls import Calls, Said, plain
from handlers.deliver.hub.interface.commits import Commit, Entry, Mark, mark_of
from handlers.deliver.version import SourceFile

HUB = "https://huggingface.co"
LFS_TYPE = "application/vnd.git-lfs+json"
FILES_AT_ONCE = 256
"""Of a question how files are kept, or where they go."""
SAMPLE_BYTES = 512
PAGES = 1000
NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="?next"?')
RATE_RESET = re.compile(r";\s*t=(\d+)")


class Token:
    """The credentials of every request to the Hub's own origin."""

    def __init__(self, token: str) -> None:
        self._headers = {"Authorization": f"Bearer {token}"}

    def headers(self) -> Mapping[str, str]:
        """The token."""
        return self._headers

    def renewed(self, challenge: str) -> bool:
        """There is no other."""
        return False


class HubCalls(Calls):
    """Calls whose errors are said in the Hub's own words."""

    def error(self, operation: str, said: Said) -> CkptdError:
        """The error that an answer stands for. The Hub's words stand in a header, and how long to wait in `RateLimit`."""
        headers = dict(said.headers.items())
        lower = {name.lower(): value for name, value in headers.items()}
        if said.status == 429 and "retry-after" not in lower and (reset := RATE_RESET.search(lower.get("ratelimit", ""))):
            headers["Retry-After"] = reset.group(1)
        words = lower.get("x-error-message")
        body = json.dumps({"error": words}).encode() if words else said.body
        return super().error(operation, Said(said.status, _Headers(headers), body, said.url))


class _Headers(dict[str, str]):
    """Headers that are asked for by names in any case."""

    def get(self, name: str, default: Any = None) -> Any:
        """The header's value."""
        return next((value for key, value in self.items() if key.lower() == name.lower()), default)


@dataclass(frozen=True)
class Names:
    """Name → commit."""

    branches: Mapping[str, str]
    tags: Mapping[str, str]

    @property
    def main(self) -> str:
        """The commit of `main`; "" in a repository without any."""
        return self.branches.get("main", "")


class Repository:
    """The repository `name`, as OWNER/NAME."""

    def __init__(self, calls: Calls, name: str) -> None:
        self.calls, self.name = calls, name
        self._api = f"api/models/{name}"

    def create(self, private: bool) -> None:
        """Make it, unless it is there."""
        owner, _, name = self.name.partition("/")
        body = {"name": name, "organization": owner, "type": "model", "visibility": "private" if private else "public"}
        said = self._ask("make the repository", "POST", "api/repos/create", body, (200, 201, 409, 401, 402, 403))
        if said.status in (401, 402, 403) and self.names() is None:  # a token may have the right to one repository alone
            raise self.calls.error("make the repository", said)

    def names(self) -> Names | None:
        """Branches and tags; None where there is no such repository."""
        said = self._ask("list branches and tags", "GET", f"{self._api}/refs", None, (200, 404))
        if said.status == 404:
            return None
        refs = said.json()
        return Names(*({str(row["name"]): str(row["targetCommit"]) for row in refs.get(kind, ())} for kind in ("branches", "tags")))

    def mark(self, commit: str) -> Mark | None:
        """What a commit brought, if it is ckptd's."""
        said = self._ask("read a commit", "GET", f"{self._api}/commits/{commit}?limit=1", None, (200, 404))
        rows = said.json() if said.status == 200 else None
        if not isinstance(rows, list) or not rows or rows[0].get("id") != commit:
            return None
        return mark_of(str(rows[0].get("message", "")), str(rows[0].get("date", "")))

    def tree(self, revision: str) -> dict[str, Entry]:
        """The files of a revision."""
        entries: dict[str, Entry] = {}
        for page in self._pages("list files", f"{self._api}/tree/{quote(revision, safe='')}?recursive=true"):
            for row in page:
                if row.get("type") == "file":
                    large = row.get("lfs") or {}
                    size = int(large.get("size", row["size"]))
                    entries[str(row["path"])] = Entry(str(row["oid"]), large.get("oid") or large.get("sha256"), size)
        return entries

    def large(self, revision: str, files: Sequence[tuple[str, SourceFile]]) -> set[str]:
        """Which of those paths are kept as large files. This asks for the right to write, and changes nothing."""
        chosen: set[str] = set()
        for start in range(0, len(files), FILES_AT_ONCE):
            rows = [
                {"path": path, "size": file.size, "sample": base64.b64encode(file.part(0, SAMPLE_BYTES)).decode()}
                for path, file in files[start : start + FILES_AT_ONCE]
            ]
            said = self._ask("ask how files are kept", "POST", f"{self._api}/preupload/{quote(revision, safe='')}", {"files": rows})
            chosen |= {str(row["path"]) for row in said.json()["files"] if row["uploadMode"] == "lfs"}
        return {path for path, file in files if path in chosen and file.size}

    def may_write(self) -> None:
        """Raise where the token may not write; nothing is changed."""
        row = {"path": "ckptd.json", "size": 1, "sample": "e30="}
        self._ask("ask for the right to write", "POST", f"{self._api}/preupload/main", {"files": [row]})

    def batch(self, files: Sequence[SourceFile]) -> dict[str, Json]:
        """What the Hub says of large files, by digest; `actions_of` reads it."""
        body = {
            "operation": "upload", "transfers": ["basic", "multipart"], "hash_algo": "sha256",
            "objects": [{"oid": file.sha256, "size": file.size} for file in files],
        }  # fmt: skip
        said = self._ask("ask where to upload", "POST", f"{self.name}.git/info/lfs/objects/batch", body, kind=LFS_TYPE)
        return {str(row["oid"]): row for row in said.json()["objects"]}

    def actions_of(self, row: Json) -> Mapping[str, Any]:
        """What is to be done to upload the file; {} where it lies there. Raises CkptdError where the Hub does not take it."""
        if isinstance(error := row.get("error"), dict):
            code = error.get("code")
            status = code if isinstance(code, int) and code >= 400 else 422
            raise self.calls.error("ask where to upload", Said(status, {}, str(error.get("message")).encode(), self.calls.base))
        return row.get("actions") or {}

    def commit(self, branch: str, commit: Commit) -> str | None:
        """Its id; None where the branch is not at the commit's parent any more, or gone."""
        said = self.calls.ask(
            "commit", "POST", f"{self._api}/commit/{quote(branch, safe='')}", body=commit.lines,
            headers={"Content-Type": "application/x-ndjson", "Content-Length": str(commit.length)}, accepted=(200, 201, 404, 409, 412),
        )  # fmt: skip
        return str(said.json()["commitOid"]) if said.status in (200, 201) else None

    def set_branch(self, name: str, commit: str) -> bool:
        """Make a branch; False where there is one of that name."""
        body = {"startingPoint": commit}
        return self._ask("make a branch", "POST", f"{self._api}/branch/{quote(name, safe='')}", body, (200, 201, 409)).status != 409

    def set_tag(self, name: str, commit: str) -> bool:
        """Make a tag; False where there is one of that name."""
        return self._ask("make a tag", "POST", f"{self._api}/tag/{commit}", {"tag": name}, (200, 201, 409)).status != 409

    def delete(self, kind: str, name: str) -> None:
        """Take a "branch" or "tag" away, unless it is gone."""
        self._ask(f"remove a {kind}", "DELETE", f"{self._api}/{kind}/{quote(name, safe='')}", None, (200, 204, 404))

    def contents(self, commit: str, path: str) -> Iterator[bytes]:
        """A file of a commit."""
        return self.calls.stream("read back", self._file(commit, path))

    def small(self, commit: str, path: str) -> bytes | None:
        """A small file of a commit; None where there is none."""
        said = self.calls.ask("read a file", "GET", self._file(commit, path), accepted=(200, 404))
        return said.body if said.status == 200 else None

    def address(self, name: str) -> str:
        """Where people look at a branch or tag."""
        return f"{self.calls.base}/{self.name}/tree/{quote(name, safe='')}"

    def _file(self, commit: str, path: str) -> str:
        return f"{self.name}/resolve/{commit}/{quote(path)}"

    def _pages(self, operation: str, url: str) -> Iterator[list[Any]]:
        yield from pages(self.calls, operation, url)

    def _ask(
        self, operation: str, method: str, url: str, body: Mapping[str, Any] | None, accepted: Iterable[int] = (200, 201), kind: str = ""
    ) -> Said:
        return asked(self.calls, operation, method, url, body, accepted, kind)


def asked(
    calls: Calls, operation: str, method: str, url: str, body: Mapping[str, Any] | None, accepted: Iterable[int] = (200,), kind: str = ""
) -> Said:
    """An answer to JSON. Raises CkptdError, also for one that is not the Hub's."""
    headers = {"Content-Type": kind or "application/json", **({"Accept": kind} if kind else {})} if body is not None else {}
    said = calls.ask(operation, method, url, body=None if body is None else json.dumps(body).encode(), headers=headers, accepted=accepted)
    if said.status == 200 and method != "DELETE" and said.body and said.json() is None:
        cause, remedy = "the answer is no JSON", "look at `endpoint`, and at proxies between here and there"
        raise Retryable(FaultCode.DELIVERY_FAR_END, operation, cause, remedy, path=plain(said.url))
    return said


def pages(calls: Calls, operation: str, url: str) -> Iterator[list[Any]]:
    """The lists that a listing gives, page by page."""
    for _ in range(PAGES):
        said = asked(calls, operation, "GET", url, None)
        rows = said.json()
        yield rows if isinstance(rows, list) else []
        following = NEXT.search(said.headers.get("Link", ""))
        if following is None:
            return
        url = following.group(1)


def repositories(calls: Calls, owner: str) -> Iterator[str]:
    """The names of an owner's models."""
    for page in pages(calls, "list repositories", f"api/models?author={quote(owner, safe='')}&limit=1000"):
        yield from (str(row.get("id") or row.get("modelId")) for row in page)
