"""A local Hub, with a repository for each run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from tests.deliver.contract.site import Contents, Site
from tests.deliver.exports import Export
from tests.deliver.hub.far_end.store import Commit, Repo, small
from tests.deliver.hub.service import TOKEN, Service
from tests.deliver.proxy import Answer, Proxy, Request

GENERATED = {"README.md", "ckptd.json", ".gitattributes"}


class SITE(Site):
    kind = "hub"
    entry = "handlers.deliver.hub.target:Hub"
    secret = TOKEN
    lacks = {"contents_that_nobody_needs_go": "the Hub keeps what no name leads to, and lets nobody take it away by its plain interface"}  # noqa: RUF012
    more: dict[str, Any] = {}  # noqa: RUF012
    chunk = 1 << 16
    """So that files go in parts."""
    part = 2 * chunk
    """Two files are under way: of one a part is on the line, while the answer to the other's is waited for."""
    page = 7
    """Rows of a listing."""

    def start(self) -> None:
        self.service = Service(self.folder / "objects", self.chunk, page=self.page)
        self.service.__enter__()
        self.proxy = Proxy(self.service.port)
        self.proxy.__enter__()

    def stop(self) -> None:
        assert self.proxy is not None
        self.proxy.__exit__()
        self.service.__exit__()

    def options(self) -> dict[str, Any]:
        assert self.proxy is not None
        return {"repo": "me/{run}", "endpoint": self.proxy.url, **self.more}

    def repo(self, run: str) -> Repo | None:
        """The run's repository: the one whose versions say that run."""
        for repo in list(self.service.store.repos.values()):
            for commit in list(repo.commits.values()):
                if f'"run": {json.dumps(run)}' in commit.message:
                    return repo
        return None

    def _read(self, commit: Commit) -> dict[str, str]:
        contents = self.service.store.contents
        return {path: hashlib.sha256(contents(file)).hexdigest() for path, file in commit.files.items() if path not in GENERATED}

    def visible(self, run: str) -> Mapping[str, Contents]:
        if (repo := self.repo(run)) is None:
            return {}
        with self.service.store.lock:
            names = {**repo.tags, **repo.branches}
            commits = {name: repo.at(commit) for name, commit in names.items()}
        versions = {}
        for name, commit in commits.items():
            if name != "main" and not name.startswith("ckptd-work-") and name != "foreign-1-00000000":
                assert {"README.md", "ckptd.json"} <= set(commit.files)
                versions[name] = self._read(commit)
        return versions

    def current(self, run: str) -> str | None:
        if (repo := self.repo(run)) is None:
            return None
        with self.service.store.lock:
            commit, tags = repo.at("main"), dict(repo.tags) | dict(repo.branches)
        if (record := commit.files.get("ckptd.json")) is None or record.data is None:
            assert set(commit.files) <= {".gitattributes"}, "main is neither empty nor whole"
            return None
        version = str(json.loads(record.data)["version"])
        if version in tags:
            assert self._read(commit) == self._read(repo.at(tags[version])), "main has parts of several versions"
        return version

    def expected(self, export: Export, variants: tuple[str, ...] = ()) -> Contents:
        files = dict(super().expected(export, variants))
        places = {"README.md": "EXPORT.md"}
        places |= {path: path.removeprefix("pytorch/") for path in files if path.startswith("pytorch/")}
        return {places.get(path, path): digest for path, digest in files.items()}

    def move_by_hand(self, run: str, version: str) -> None:
        repo = self.repo(run)
        assert repo is not None
        with self.service.store.lock:
            files = repo.at(version).files
            repo.branches["main"] = repo.add(repo.branches["main"], dict(files), "back to what was good", "").id

    def lay_foreign(self) -> None:
        store = self.service.store
        with store.lock:
            for name in ("me/run-a", "me/theirs"):
                repo = store.repos.setdefault(name, Repo(name, False))
                files = {"README.md": small(b"mine\n"), ".gitattributes": repo.at("main").files[".gitattributes"]}
                repo.tags["foreign-1-00000000"] = repo.add(None, files, "by hand", "").id

    def foreign_is_there(self) -> bool:
        return all("foreign-1-00000000" in self.service.store.repos[name].tags for name in ("me/run-a", "me/theirs"))

    def leftovers(self) -> list[str]:
        """Branches that were worked on."""
        return [f"{repo.name}: {name}" for repo in self.service.store.repos.values() for name in repo.branches if "ckptd-work" in name]

    def stored(self) -> int:
        return self.service.store.stored()

    def refusal(self, code: int) -> Answer:
        if code == 507:
            said = "Private repository storage limit reached, please upgrade your plan to increase your private storage limit"
            return Answer(403, {"X-Error-Message": said}, json.dumps({"error": said}).encode())
        return Answer(code, {"X-Error-Message": "refused by a test"}, b'{"error": "refused by a test"}')

    def gives_contents(self, request: Request) -> bool:
        return request.method == "GET" and ("/cdn/" in request.path or "/resolve/" in request.path) and "ckptd.json" not in request.path
