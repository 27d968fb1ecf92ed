"""Repositories of the Hub of the tests: names, trees, history, commits."""

from __future__ import annotations

import base64
import json
import re
from pathlib import PurePosixPath
from typing import Any

from tests.deliver.hub.far_end.answers import Answers
from tests.deliver.hub.far_end.store import Commit, File, Refused, Repo, check_card


class Repositories(Answers):
    """Answers of the interface below `/api`."""

    def create(self) -> None:
        asked = self._json()
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        if not re.fullmatch(r"[\w-][\w.-]*/[\w][\w.-]{0,95}", name) or ".." in name or "--" in name or name.endswith((".", "-", ".git")):
            raise Refused(400, f"Invalid repository name {name}")
        with self._store.lock:
            if name in self._store.repos:
                raise Refused(409, "You already created this model repo")
            self._store.repos[name] = Repo(name, asked.get("visibility") == "private" or bool(asked.get("private")))
        self._say(200, {"url": f"{self._host()}/{name}", "name": name})

    def models(self) -> None:
        rows = [{"id": name, "modelId": name} for name in sorted(self._store.repos) if name.startswith(self.query.get("author", "") + "/")]
        self._page(rows)

    def info(self, name: str, revision: str = "main") -> None:
        repo = self._store.repo(name)
        commit = repo.at(revision)
        self._say(200, {
            "_id": "0", "id": name, "modelId": name, "sha": commit.id, "private": repo.private, "tags": [], "downloads": 0, "likes": 0,
            "createdAt": commit.date, "lastModified": commit.date, "siblings": [{"rfilename": path} for path in commit.files],
        })  # fmt: skip

    def refs(self, name: str) -> None:
        repo = self._store.repo(name)
        with self._store.lock:
            said = {
                kind: [{"name": ref, "ref": f"refs/{folder}/{ref}", "targetCommit": commit} for ref, commit in names.items()]
                for kind, folder, names in (("branches", "heads", repo.branches), ("tags", "tags", repo.tags))
            }
        self._say(200, {**said, "converts": [], "pullRequests": []})

    def commits(self, name: str, revision: str) -> None:
        rows = [
            {"id": row.id, "title": row.title, "message": row.message, "date": row.date, "authors": [{"user": "me"}]}
            for row in self._store.repo(name).history(revision)
        ]
        self._page(rows)

    def tree(self, name: str, revision: str) -> None:
        commit = self._store.repo(name).at(revision)
        rows: list[Any] = [self._row(path, file) for path, file in sorted(commit.files.items())]
        folders = sorted({str(folder) for path in commit.files for folder in PurePosixPath(path).parents} - {"."})
        self._page([{"type": "directory", "oid": "0" * 40, "size": 0, "path": folder} for folder in folders] + rows)

    def paths_info(self, name: str, revision: str) -> None:
        commit = self._store.repo(name).at(revision)
        self._say(200, [self._row(path, commit.files[path]) for path in self._form()["paths"] if path in commit.files])

    def _row(self, path: str, file: File) -> dict[str, Any]:
        more = {"lfs": {"oid": file.sha256, "size": file.size, "pointerSize": 130}} if file.sha256 else {}
        return {"type": "file", "path": path, "oid": file.oid, "size": file.size, **more}

    def branch(self, name: str, branch: str) -> None:
        repo, asked = self._store.repo(name), self._json()
        with self._store.lock:
            commit = repo.at(asked.get("startingPoint") or "main")
            if branch in repo.branches:
                raise Refused(409, f"Reference refs/heads/{branch} already exists")
            if ".." in branch or branch.startswith("refs/"):
                raise Refused(400, "Invalid reference for a branch")
            repo.branches[branch] = commit.id
        self._say(200, {})

    def tag(self, name: str, revision: str) -> None:
        repo, asked = self._store.repo(name), self._json()
        with self._store.lock:
            if asked["tag"] in repo.tags:
                raise Refused(409, f"Tag reference exists already: {asked['tag']}")
            if ".." in asked["tag"]:
                raise Refused(400, "Invalid tag")
            repo.tags[asked["tag"]] = repo.at(revision).id
        self._say(200, {})

    def delete_branch(self, name: str, branch: str) -> None:
        if branch == "main":
            raise Refused(403, "Cannot delete the default branch")
        self._delete(self._store.repo(name).branches, branch)

    def delete_tag(self, name: str, tag: str) -> None:
        self._delete(self._store.repo(name).tags, tag)

    def _delete(self, names: dict[str, str], name: str) -> None:
        with self._store.lock:
            if names.pop(name, None) is None:
                raise Refused(404, f"Invalid rev id: {name}", "RevisionNotFound")
        self._say(200, {})

    def yaml(self) -> None:
        try:
            check_card(self._json()["content"])
        except Refused as error:
            self._say(400, {"errors": [{"message": error.message}], "warnings": []})
        else:
            self._say(200, {"errors": [], "warnings": []})

    def preupload(self, name: str, revision: str) -> None:
        repo, asked = self._store.repo(name), self._json()
        files = repo.at(revision).files
        rows = []
        for row in asked["files"]:
            large = repo.is_large(row["path"], row["size"], base64.b64decode(row["sample"]))
            there = files.get(row["path"])
            oid = (there.sha256 or there.oid) if there else None
            rows.append({"path": row["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False, "oid": oid})
        self._say(200, {"files": rows})

    def commit(self, name: str, branch: str) -> None:
        body = b"".join(self._blocks())
        lines = [json.loads(line) for line in body.splitlines() if line.strip()]
        contents = {
            line["value"]["path"]: base64.b64decode(line["value"]["content"], validate=True) for line in lines if line["key"] == "file"
        }
        service = self.server.service
        repo = self._store.repo(name)
        if (hook := service.before_commit) is not None:
            hook(repo, branch)
        with self._store.lock:
            made: Commit = repo.commit(branch, lines, contents)
        self._say(
            200, {"success": True, "commitOid": made.id, "commitUrl": f"{self._host()}/{name}/commit/{made.id}", "pullRequestUrl": None}
        )
