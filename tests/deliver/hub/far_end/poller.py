"""Somebody who follows a repository by the Hub's own client while it is written: `main`, and each version's name, all the time.

Run as `python poller.py REPOSITORY FILE`, where FILE is JSON of what may be seen; a line on standard input ends it, after a last look. It
prints what it saw as JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

GENERATED = {"README.md", "ckptd.json", ".gitattributes"}


def contents(repository: str, revision: str) -> tuple[dict[str, str], set[str]]:
    folder = Path(snapshot_download(repository, revision=revision))
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    digests = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    return {name: digest for name, digest in digests.items() if name not in GENERATED}, set(files)


def look(repository: str, wholes: list[dict[str, str]], seen: dict[str, int]) -> list[str]:
    """What is wrong."""
    try:
        refs = HfApi().list_repo_refs(repository)
    except RepositoryNotFoundError:
        return []
    problems = []
    for name in [row.name for row in refs.branches + refs.tags if not row.name.startswith("ckptd-work-")]:
        try:
            there, files = contents(repository, name)
        except RevisionNotFoundError:
            continue  # taken away meanwhile
        if name == "main" and files <= {".gitattributes"}:
            continue  # as the Hub made it
        seen[name] = seen.get(name, 0) + 1
        if there not in wholes or not files >= {"README.md", "ckptd.json"}:
            problems.append(f"{name} is not whole: {sorted(files)}")
    return problems


def main() -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), ended.set()), daemon=True).start()
    wholes, seen, problems, looks = json.loads(Path(sys.argv[2]).read_text()), dict[str, int](), list[str](), 0
    while not problems:
        last = ended.is_set()
        problems = look(sys.argv[1], wholes, seen)
        looks += 1
        if last:
            break
    print(json.dumps({"seen": seen, "problems": problems, "looks": looks}))


if __name__ == "__main__":
    main()
