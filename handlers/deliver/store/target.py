"""A store as a target: a folder a version, in which the manifest is written last and once, and a document a run that is followed.

PREFIX/RUN/RUN-STEP-DIGEST/…             the export's files
PREFIX/RUN/RUN-STEP-DIGEST/MANIFEST.json  by it readers know that the version is whole
PREFIX/RUN/latest.json                    what people follow
PREFIX/RUN/.begun/RUN-STEP-DIGEST.json    of a version that is being brought or taken away
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from daemon.contract.delivering.orders import Listed, Move, Receipt
from daemon.contract.faults.errors import Permanent, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.values import Json
from handlers.deliver.store.backend import LATEST, MANIFEST, Backend, Document
from handlers.deliver.store.declaration import StoreOptions
from handlers.deliver.store.layout import FOLDER, NAME, begun, document, files_of, object_of, ours, run_folder, step_of, why_ahead
from handlers.deliver.target import AT_ONCE, Setting
from handlers.deliver.version import SourceFile, Version

MOVES = 20
"""Of `latest.json`, before others who move it all the time are said."""
MOST_KNOWN = 8
"""Versions whose files may be copied there instead of being sent again: the latest."""


class Store:
    """The target."""

    def __init__(self, setting: Setting) -> None:
        self._options = StoreOptions.model_validate(setting.options)
        self._store = self.backend(setting)
        self.at_once = AT_ONCE if self._options.scheme == "s3" else 1
        self._is_new = False
        """Whether no earlier attempt began the version, so that nothing of it lies there."""
        self._version: Version | None = None
        self._known: dict[str, str] | None = None
        """Keys by digest, of contents that lie there."""
        self._sent: dict[str, int] = {}
        """Bytes that this process sent, by key."""
        self._was_there = self._was_removed = False
        """Whether the version lay there, or was being taken away, when this process came."""

    def backend(self, setting: Setting) -> Backend:
        """The store of the URL's kind; its libraries are imported only now."""
        if self._options.scheme == "file":
            from handlers.deliver.store.folder import Folder

            return Folder(self._options.folder, setting.resume)
        if self._options.scheme != "s3":
            from handlers.deliver.store.clouds import Cloud

            return Cloud(self._options, setting.secret)
        from handlers.deliver.store.s3 import S3

        return S3(self._options, setting.secret, setting.resume)

    def close(self) -> None:
        """Let go of connections."""
        self._store.close()

    def look(self) -> None:
        """Find out whether it could be written."""
        self._store.look()

    def foresee(self, version: Version) -> None:
        """Learn in which folder it will lie."""
        self._version = version

    @property
    def _folder(self) -> str:
        assert self._version is not None
        return f"{run_folder(self._version.run)}/{self._version.name}"

    def put(self, file: SourceFile, sent: Callable[[int], None]) -> int:
        """Let it lie in the version's folder, which has no manifest yet: copied there where another version has it."""
        if self._known is None:
            self._known = self._begin()
        key = f"{self._folder}/{file.path}"
        may_be_there = not self._is_new or key in self._sent
        mine = self._sent.setdefault(key, 0)
        if may_be_there and self._store.has(key, file):
            self._known.setdefault(file.sha256, key)
            return max(0, file.size - mine)
        source = self._known.get(file.sha256)
        if source and source != key and self._store.copy(source, key, file):
            return max(0, file.size - mine)

        def count(more: int) -> None:
            self._sent[key] += more
            sent(more)

        before = self._store.send(key, file, count)
        self._known.setdefault(file.sha256, key)
        return max(0, before - mine)

    def put_again(self, file: SourceFile, sent: Callable[[int], None]) -> None:
        """Send it whatever lies there: a link or a copy of damaged contents is none of it."""
        key = f"{self._folder}/{file.path}"
        self._store.send(key, file, sent, anew=True)
        assert self._known is not None
        self._known[file.sha256] = key

    def read_back(self, file: SourceFile) -> Iterator[bytes]:
        """It as it lies there."""
        return self._store.stream(f"{self._folder}/{file.path}")

    def _begin(self) -> dict[str, str]:
        """Say there that the version comes, unless it is there; gives where contents lie, by their digests."""
        version, known = self._version, dict[str, str]()
        assert version is not None
        run = run_folder(version.run)
        if not (is_there := self._is_there(version)):
            mark = self._store.read(begun(self._folder))
            self._is_new = mark is None
            self._was_removed = mark is not None and "removing" in object_of(mark.body)
            self._store.write(begun(self._folder), document(version), None)
        self._was_there = is_there
        names = sorted((name for name in self._store.folders(f"{run}/") if NAME.fullmatch(name)), key=step_of, reverse=True)
        for name in names[:MOST_KNOWN]:
            for entry in files_of(self._manifest(f"{run}/{name}")):
                known.setdefault(str(entry["sha256"]), f"{run}/{name}/{entry['path']}")
        return known

    def _is_there(self, version: Version) -> bool:
        """Whether it lies there, whole. Raises Permanent where something else does."""
        if (there := self._store.read(f"{self._folder}/{MANIFEST}")) is None:
            return False
        rows = files_of(object_of(there.body))
        if {(str(row["path"]), str(row["sha256"])) for row in rows} != {(file.path, file.sha256) for file in version.files}:
            raise Permanent(
                FaultCode.DELIVERY_CONFLICT, "write a version", "something else lies there under its name",
                "look at what lies there, and remove it", path=f"{self._store.place}{self._folder}",
            )  # fmt: skip
        return True

    def finish(self, version: Version, move: Move) -> Receipt:
        """Write the manifest, and let `latest.json` name the version."""
        self._version = version
        self._make_visible(version)
        self._store.clear(self._folder)
        self._store.delete(begun(self._folder))
        why = self._followed(version, move)
        place = f"{self._store.place}{self._folder}/"
        return Receipt(version=self._folder, place=place, moved=not why, why_not_moved=why, usage=self._usage(place))

    def _make_visible(self, version: Version) -> None:
        """Write the manifest, unless the version is being taken away: who does that says so first, and looks for what is brought anew."""
        if self._was_there:
            if not self._is_there(version):
                raise self._taken()
            return
        self._look_at_mark(version)
        if not self._store.publish(self._folder, document(version)) and not self._is_there(version):
            raise self._taken()
        try:
            self._look_at_mark(version)
        except Retryable:
            self._store.delete(f"{self._folder}/{MANIFEST}")
            raise

    def _look_at_mark(self, version: Version) -> None:
        """Raise Retryable where somebody has begun to take the version away since this process came."""
        mark = self._store.read(begun(self._folder))
        if mark is not None and "removing" in object_of(mark.body):
            raise self._taken()
        others_were_here = mark is None or mark.body != document(version) or self._was_removed
        if others_were_here and not all(self._store.has(f"{self._folder}/{file.path}", file) for file in version.files):
            raise self._taken()

    def _taken(self) -> Retryable:
        remedy = "it is delivered again by itself"
        return Retryable(FaultCode.DELIVERY_CONFLICT, "write a version", "it was taken away meanwhile", remedy, path=self._store.place)

    def _usage(self, place: str) -> str:
        endpoint = f"--endpoint-url {self._options.endpoint} " if self._options.endpoint else ""
        return {"s3": f"aws s3 cp {endpoint}--recursive {place} .", "gs": f"gcloud storage cp -r {place} ."}.get(
            self._options.scheme, f"ls {place}"
        )

    def _followed(self, version: Version, move: Move) -> str:
        """Let `latest.json` name the version; gives why it does not, "" where it does."""
        if move == "keep":
            return "the target's rule leaves it as it is"
        key = f"{run_folder(version.run)}/{LATEST}"
        body = self._store.read(f"{self._folder}/{MANIFEST}")
        wanted = {
            "version": version.name, "run": version.run, "step": version.step, "path": f"{version.name}/",
            "manifest_sha256": hashlib.sha256(body.body if body else b"").hexdigest(),
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
        }  # fmt: skip
        for _ in range(MOVES):
            there = self._store.read(key)
            known = object_of(there.body) if there else {}
            if {**known, "at": ""} == {**wanted, "at": ""}:
                return ""
            if move == "move" and there is not None and (why := why_ahead(known, version)):
                return why
            if self._store.write(key, data := json.dumps(wanted, indent=1).encode(), there.tag if there else ""):
                if not self._is_there(version):  # taken away by somebody who had looked before
                    self._move_back(key, data, there)
                    raise self._taken()
                return ""
        raise Permanent(FaultCode.DELIVERY_CONFLICT, f"move {LATEST}", "others move it all the time", "deliver again later")

    def _move_back(self, key: str, mine: bytes, before: Document | None) -> None:
        """Let `latest.json` name what it named before, unless somebody wrote it since."""
        now = self._store.read(key)
        if now is not None and now.body == mine:
            if before is None:
                self._store.delete(key)
            else:
                self._store.write(key, before.body, now.tag)

    def list(self, run: str) -> Sequence[Listed]:
        """The folders whose manifest names the files that their name stands for, and what was begun."""
        rows = []
        for folder in [run_folder(run)] if run else self._store.folders(""):
            if not FOLDER.fullmatch(folder):
                continue
            latest = self._store.read(f"{folder}/{LATEST}")
            current = str(object_of(latest.body).get("version")) if latest else ""
            unfinished = {name.removesuffix(".json") for name in self._store.files(f"{folder}/.begun/")}
            for name in sorted({*self._store.folders(f"{folder}/"), *unfinished}):
                whole = self._manifest(f"{folder}/{name}")
                if (about := whole or self._unfinished(f"{folder}/{name}")) and run in ("", about.get("run")):
                    rows.append(
                        Listed(
                            version=f"{folder}/{name}", run=str(about.get("run")), step=int(step_of(name)),
                            export=str(about.get("export_id", "")), current=name == current, whole=bool(whole),
                        )
                    )  # fmt: skip
        return sorted(rows, key=lambda row: (row.run, row.step, row.version))

    def remove(self, version: str) -> None:
        """Take its manifest away, then the files that it names, unless it is followed, or brought again, by then."""
        if not FOLDER.fullmatch(version.partition("/")[0]) or not (about := self._manifest(version) or self._unfinished(version)):
            return
        self._refuse_followed(version)
        mark = json.dumps({**about, "removing": secrets.token_hex(6)}, indent=1).encode()
        self._store.write(begun(version), mark, None)
        manifest = self._store.read(f"{version}/{MANIFEST}")
        self._store.delete(f"{version}/{MANIFEST}")
        try:
            self._refuse_followed(version)
        except Permanent:
            if manifest is not None:
                self._store.write(f"{version}/{MANIFEST}", manifest.body, "")
                self._store.delete(begun(version))
            raise
        for entry in files_of(about):
            if not self._is_marked(version, mark):
                return
            self._store.delete(f"{version}/{entry['path']}")
        if self._is_marked(version, mark):
            self._store.clear(version)
        if self._is_marked(version, mark):
            self._store.delete(f"{version}/{MANIFEST}")
            self._store.delete(begun(version))

    def _is_marked(self, version: str, mark: bytes) -> bool:
        """Whether nobody has begun to bring a version that is taken away."""
        return (there := self._store.read(begun(version))) is not None and there.body == mark

    def _refuse_followed(self, version: str) -> None:
        """Raise Permanent where people follow a version."""
        folder, _, name = version.partition("/")
        latest = self._store.read(f"{folder}/{LATEST}")
        if latest and object_of(latest.body).get("version") == name:
            cause = f"{LATEST} names it"
            raise Permanent(FaultCode.DELIVERY_CONFLICT, f"remove {version}", cause, "let it name another version first")

    def _manifest(self, folder: str) -> Json:
        """The manifest of a version that ckptd brought whole; {} where there is none."""
        there = self._store.read(f"{folder}/{MANIFEST}") if NAME.fullmatch(folder.partition("/")[2]) else None
        return ours(folder, there.body) if there else {}

    def _unfinished(self, folder: str) -> Json:
        """What a version that is not whole will be; {} where there is none."""
        there = self._store.read(begun(folder)) if NAME.fullmatch(folder.partition("/")[2]) else None
        return ours(folder, there.body) if there else {}
