"""What a Hub keeps: repositories with git's own ids, and large objects by SHA-256, written of what is known of the Hub and of nothing of
ours."""

from __future__ import annotations

import datetime
import fnmatch
import hashlib
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

LARGE = ("*.safetensors", "*.onnx", "*.onnx_data*", "*.gguf", "*.bin", "*.pt", "*.model")
ATTRIBUTES = "".join(f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in LARGE).encode()


class Refused(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


def blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass(frozen=True)
class File:
    """In a commit: the id of the blob, and for a large one its object."""

    oid: str
    size: int
    data: bytes | None
    sha256: str | None = None


def small(data: bytes) -> File:
    return File(blob_id(data), len(data), data)


def large(sha256: str, size: int) -> File:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()
    return File(blob_id(pointer), size, None, sha256)


@dataclass(frozen=True)
class Commit:
    id: str
    parent: str | None
    files: dict[str, File]
    title: str
    message: str
    date: str


class Repo:
    """One repository."""

    def __init__(self, name: str, private: bool) -> None:
        self.name, self.private = name, private
        self.commits: dict[str, Commit] = {}
        self.branches: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.lfs: set[str] = set()
        self.branches["main"] = self.add(None, {".gitattributes": small(ATTRIBUTES)}, "initial commit", "").id

    def add(self, parent: str | None, files: dict[str, File], title: str, message: str) -> Commit:
        date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
        text = f"{parent} {title} {message} {date} {len(self.commits)}" + "".join(
            f"{path} {file.oid}" for path, file in sorted(files.items())
        )
        commit = Commit(hashlib.sha1(text.encode("utf-8", "surrogateescape")).hexdigest(), parent, files, title, message, date)
        self.commits[commit.id] = commit
        return commit

    def at(self, revision: str) -> Commit:
        """What a branch, tag or id stands for."""
        commit = self.branches.get(revision) or self.tags.get(revision) or revision
        if commit not in self.commits:
            raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return self.commits[commit]

    def history(self, revision: str) -> list[Commit]:
        """Newest first."""
        rows: list[Commit] = []
        commit: Commit | None = self.at(revision)
        while commit is not None:
            rows.append(commit)
            commit = self.commits[commit.parent] if commit.parent else None
        return rows

    def is_large(self, path: str, size: int, sample: bytes) -> bool:
        name = path.rsplit("/", 1)[-1]
        binary = b"\0" in sample or len(sample.decode("utf-8", "ignore").encode()) < len(sample) - 3
        return any(fnmatch.fnmatch(name, pattern) for pattern in LARGE) or binary or size > 10_000_000

    def commit(self, branch: str, lines: list[dict[str, Any]], contents: dict[str, bytes]) -> Commit:
        """Apply a commit's lines; `contents`: of its small files."""
        if branch not in self.branches:
            raise Refused(404, f"Invalid rev id: {branch}", "RevisionNotFound")
        header = lines[0]["value"]
        head = self.branches[branch]
        if (parent := header.get("parentCommit")) is not None and parent != head:
            raise Refused(412, "A commit has happened since. Please refresh and try again.")
        files = dict(self.commits[head].files)
        for line in lines[1:]:
            self._apply(files, line["key"], line["value"], contents)
        if "README.md" in files and (data := files["README.md"].data) is not None:
            check_card(data.decode())
        made = self.add(head, files, header["summary"], header.get("description", ""))
        self.branches[branch] = made.id
        return made

    def _apply(self, files: dict[str, File], key: str, value: dict[str, Any], contents: dict[str, bytes]) -> None:
        path = value["path"]
        if path.startswith("/") or ".." in path.split("/") or not path:
            raise Refused(400, f"Invalid path {path}")
        if key == "file":
            files[path] = small(contents[path])
        elif key == "lfsFile":
            if value["oid"] not in self.lfs:
                raise Refused(400, f"LFS pointer {value['oid']} points to an object that does not exist")
            files[path] = large(value["oid"], value["size"])
        elif key == "deletedFile":
            if files.pop(path, None) is None:
                raise Refused(404, "A file with this name doesn't exist", "EntryNotFound")
        elif key == "deletedFolder":
            for name in [name for name in files if name.startswith(path.rstrip("/") + "/")]:
                del files[name]
        else:
            raise Refused(400, f"unknown operation {key}")


def check_card(text: str) -> None:
    """Refuse metadata that the Hub refuses."""
    match = re.match(r"---\r?\n(.*?)\r?\n?---\r?\n", text, re.DOTALL)
    try:
        values = yaml.safe_load(match.group(1)) if match else {}
    except yaml.YAMLError as error:
        raise Refused(400, f"Invalid metadata in README.md: {error}") from error
    base = (values or {}).get("base_model")
    if base is not None and not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", base):
        raise Refused(400, f'Invalid metadata in README.md: "base_model" with value "{base}" is not valid')
    for model in (values or {}).get("model-index") or ():
        for result in model["results"]:
            if not (result["task"]["type"] and result["dataset"]["type"] and result["dataset"]["name"]):
                raise Refused(400, "Invalid metadata in README.md: model-index")
            for metric in result["metrics"]:
                if "type" not in metric or "value" not in metric:
                    raise Refused(400, "Invalid metadata in README.md: model-index")


@dataclass
class Upload:
    """Of a large object, in parts."""

    repo: Repo
    sha256: str
    size: int
    chunk: int
    parts: dict[int, bytes] = field(default_factory=dict)


@dataclass
class Store:
    """Everything; `folder` has the large objects."""

    folder: Path
    chunk: int = 1 << 20
    """Bytes of a part, of what is larger."""
    repos: dict[str, Repo] = field(default_factory=dict)
    uploads: dict[str, Upload] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    received: int = 0
    """Bytes of large objects that came."""

    def repo(self, name: str) -> Repo:
        if name not in self.repos:
            raise Refused(404, "Repository not found", "RepoNotFound")
        return self.repos[name]

    def object(self, sha256: str) -> Path:
        return self.folder / sha256

    def contents(self, file: File) -> bytes:
        if file.data is not None:
            return file.data
        assert file.sha256 is not None
        return self.object(file.sha256).read_bytes()

    def stored(self) -> int:
        """Bytes of all that is kept."""
        with self.lock:
            blobs = {
                file.oid: file.size for repo in self.repos.values() for commit in repo.commits.values() for file in commit.files.values()
            }
            objects = sum(path.stat().st_size for path in self.folder.iterdir())
            return objects + sum(blobs.values()) + sum(len(part) for upload in self.uploads.values() for part in upload.parts.values())
