"""A repository of an OCI registry as a delivery target: a file a blob, a version a manifest with a tag of its own, and a tag that moves.

Registries have no create-only writes, and few know conditional ones, so the tag that moves is fenced in another way: before it moves, a
second tag, `TAG.STEP`, says that this step is to be followed, and after it moved these tags are looked at. Whoever moves last sees the tag
of whoever is ahead, and lets the name stand for that. Where a registry knows `If-Match`, that holds off people too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence

from daemon.contract.delivering.orders import Listed, Move, Receipt
from daemon.contract.faults.errors import Permanent, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from handlers.deliver.calls import Calls
from handlers.deliver.names import digest_of, of_run
from handlers.deliver.oci import documents
from handlers.deliver.oci.access import Account
from handlers.deliver.oci.declaration import OciOptions
from handlers.deliver.oci.registry import Manifest, Registry, digest_of_file, repositories
from handlers.deliver.oci.uploads import Uploads
from handlers.deliver.target import Setting
from handlers.deliver.version import SourceFile, Version

MOVES = 20
"""Of the tag that people follow, before others who move it all the time are said."""
PART = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
"""Of a repository's name."""
OWN_TAG = re.compile(r"[A-Za-z0-9_.-]+-\d+-[0-9a-f]{8}")


class OciTarget:
    """The target."""

    def __init__(self, setting: Setting) -> None:
        self._options = OciOptions.model_validate(setting.options)
        scheme = "http" if self._options.plain_http else "https"
        self._calls = Calls(f"{scheme}://{self._options.host}", self._options.ca_file)
        self._run, self._secret = setting.run, setting.secret
        self._registry = self._repository(repository_of(self._options.path, setting.run))
        self._uploads = Uploads(self._registry, setting.resume, self._options.chunk_bytes)

    def close(self) -> None:
        """Close connections."""
        self._calls.close()

    def _repository(self, path: str) -> Registry:
        self._calls.credentials = Account(self._calls, self._options.host, path, self._secret)
        return Registry(self._calls, path)

    def look(self) -> None:
        """Begin an upload and take it back: by that alone a registry says whether it would let us write."""
        self._registry.cancel(self._registry.location(self._registry.begin()))

    def put(self, file: SourceFile, sent: Callable[[int], None]) -> int:
        """Let it lie there as a blob, which no manifest names yet."""
        return self._uploads.put(file, sent)

    def read_back(self, file: SourceFile) -> Iterator[bytes]:
        """The blob."""
        return self._registry.blob(digest_of_file(file))

    def finish(self, version: Version, move: Move) -> Receipt:
        """Write the manifest under the version's own tag, and let the other tag stand for it."""
        made = documents.artifact(version, self._options.media)
        for data in made.blobs:
            self._registry.keep_bytes(data)
        manifest = self._own_tag(version, made.manifest)
        why = self._followed(version, manifest, move)
        if self._registry.manifest(version.name) is None:
            raise self._taken(f"write the tag {version.name}")
        name = f"{self._options.host}/{self._registry.path}"
        usage = f"oras pull {name}:{version.name}" if self._options.media == "modelpack" else f"ollama pull {name}:{version.name}"
        return Receipt(
            version=f"{self._registry.path}:{version.name}",
            place=f"{name}@{manifest.digest}",
            moved=not why,
            why_not_moved=why,
            usage=usage,
        )

    def _own_tag(self, version: Version, body: bytes) -> Manifest:
        """The manifest that the version's own tag stands for. Raises Permanent where that is something else."""
        there = self._registry.manifest(version.name)
        if there is None:
            self._registry.put_manifest(version.name, body)
            there = self._registry.manifest(version.name)
        if there is None or not _same(there, body):
            raise Permanent(
                FaultCode.DELIVERY_CONFLICT, f"write the tag {version.name}", "the tag stands for something else",
                "look at what lies there, and remove that tag", path=f"{self._options.host}/{self._registry.path}",
            )  # fmt: skip
        return there

    def _followed(self, version: Version, manifest: Manifest, move: Move) -> str:
        """Let the tag that people follow stand for the version; gives why it does not, "" where it does."""
        tag = tag_of(self._options.tag, version.run)
        if move == "keep" or not tag:
            return "the target's rule leaves it as it is" if tag else "the target has no `tag` that people follow"
        for _ in range(MOVES):
            there = self._registry.manifest(tag)
            if move == "move" and there is not None and (why := self._ahead(there, version)):
                return why
            if move == "force":
                self._withdraw(tag, version, manifest)
            self._registry.put_manifest(f"{tag}.{version.step}", manifest.body)
            if there is not None and there.digest == manifest.digest:
                break
            if self._registry.put_manifest(tag, manifest.body, _fence(there)):
                break
        else:
            raise Permanent(FaultCode.DELIVERY_CONFLICT, f"move the tag {tag}", "others move it all the time", "deliver again later")
        return self._settled(tag, version, manifest)

    def _ahead(self, there: Manifest, version: Version) -> str:
        """Why what a tag stands for is not to be replaced; "" where it is."""
        if (known := documents.ours(there.document)) is None:
            return "the tag stands for something that ckptd did not bring"
        return f"it stands for the later step {known[1]}" if known[0] == version.run and known[1] > version.step else ""

    def _later(self, tag: str, version: Version) -> Sequence[str]:
        """Tags that say that a later step of the run is to be followed, the latest first."""
        steps = {
            name: int(rest) for name in self._registry.tags() if name.startswith(f"{tag}.") and (rest := name[len(tag) + 1 :]).isdecimal()
        }
        return sorted((name for name, step in steps.items() if step > version.step), key=lambda name: -steps[name])

    def _says(self, name: str, version: Version) -> Manifest | None:
        """What such a tag stands for, if that is still what it says."""
        manifest = self._registry.manifest(name)
        known = documents.ours(manifest.document) if manifest else None
        return manifest if known and known[0] == version.run and known[1] == int(name.rpartition(".")[2]) else None

    def _withdraw(self, tag: str, version: Version, manifest: Manifest) -> None:
        """Let later steps be followed no more: their tags stand for something else than they say."""
        for name in self._later(tag, version):
            if self._says(name, version):
                self._registry.put_manifest(name, manifest.body)

    def _settled(self, tag: str, version: Version, manifest: Manifest) -> str:
        """Let the tag stand for the latest step that is to be followed, whoever wrote it meanwhile; gives why it does not stand for the
        version, "" where it does."""
        for _ in range(MOVES):
            now = self._registry.manifest(tag)
            goal = next((there for name in self._later(tag, version) if (there := self._says(name, version))), None)
            if goal is None and now is not None and self._is_behind(now, version):
                goal = self._says(f"{tag}.{version.step}", version)
            if goal is None or (now is not None and (now.digest == goal.digest or self._ahead(now, version))):
                break
            self._registry.put_manifest(tag, goal.body, _fence(now))
        if now is None:
            raise self._taken(f"move the tag {tag}")
        if now.digest == manifest.digest:
            return ""
        return self._ahead(now, version) or "somebody else moved it meanwhile"

    def _taken(self, operation: str) -> Retryable:
        """The error of a version that somebody takes away at this moment, with all tags that stand for it."""
        where = f"{self._options.host}/{self._registry.path}"
        remedy = "it is delivered again by itself"
        return Retryable(FaultCode.DELIVERY_CONFLICT, operation, "the version was taken away meanwhile", remedy, path=where)

    def _is_behind(self, there: Manifest, version: Version) -> bool:
        """Whether it is of an earlier step of the same run, which another delivery wrote without a look at this one."""
        known = documents.ours(there.document)
        return known is not None and known[0] == version.run and known[1] < version.step

    def list(self, run: str) -> Sequence[Listed]:
        """The tags of versions, with what their manifests say."""
        if run or "{run}" not in self._options.path:
            return _sorted(self._listed(self._repository(repository_of(self._options.path, run)), run))
        pattern = re.compile("[a-z0-9._-]+".join(re.escape(part) for part in self._options.path.split("{run}")))
        rows = []
        for path in repositories(self._calls):
            if pattern.fullmatch(path):
                there = self._listed(self._repository(path), "")
                rows += [row for row in there if repository_of(self._options.path, row.run) == path]
        return _sorted(rows)

    def _listed(self, registry: Registry, run: str) -> Sequence[Listed]:
        rows, followed = [], dict[str, str]()
        for name in registry.tags():
            if not OWN_TAG.fullmatch(name) or (manifest := registry.manifest(name)) is None:
                continue
            known = documents.ours(manifest.document)
            if known is None or (run and known[0] != run) or str(manifest.annotations.get("org.opencontainers.image.version")) != name:
                continue
            tag = tag_of(self._options.tag, known[0])
            if tag and tag not in followed:
                there = registry.manifest(tag)
                followed[tag] = there.digest if there else ""
            at = str(manifest.annotations.get("org.opencontainers.image.created", ""))
            current = bool(tag) and followed[tag] == manifest.digest
            rows.append(Listed(version=f"{registry.path}:{name}", run=known[0], step=known[1], export=known[2], at=at, current=current))
        return rows

    def remove(self, version: str) -> None:
        """Take the version's manifest away, with all its tags; the registry's own clean-up takes the blobs."""
        path, _, name = version.partition(":")
        pattern = "[a-z0-9._-]+".join(re.escape(part) for part in self._options.path.split("{run}"))
        if not re.fullmatch(pattern, path) or not OWN_TAG.fullmatch(name):
            return
        registry = self._repository(path)
        manifest = registry.manifest(name)
        known = documents.ours(manifest.document) if manifest else None
        if manifest is None or known is None:
            return
        tag = tag_of(self._options.tag, known[0])
        followed = registry.manifest(tag) if tag else None
        if followed is None or followed.digest != manifest.digest:
            registry.delete(manifest.digest)
            if followed is None or registry.manifest(tag) is not None:
                return
            # The tag was moved to it after it was looked at, and went with it.
            for gone in (name, f"{tag}.{known[1]}", tag):
                registry.put_manifest(gone, manifest.body)
        cause = f"the tag {tag} stands for it"
        raise Permanent(FaultCode.DELIVERY_CONFLICT, f"remove {name}", cause, "let that tag stand for another version first")


def _same(there: Manifest, body: bytes) -> bool:
    """Whether a manifest is of the same version: of the same bytes, or of the same files, by whichever export."""
    mine = json.loads(body)
    return there.body == body or (
        documents.ours(there.document) is not None
        and there.document.get("mediaType") == mine["mediaType"]
        and documents.contents(there.document) == documents.contents(mine)
    )


def _fence(there: Manifest | None) -> dict[str, str]:
    """What lets a registry that knows conditional writes refuse a tag that changed meanwhile."""
    if there is None:
        return {"If-None-Match": "*"}
    return {"If-Match": there.etag} if there.etag else {}


def _sorted(rows: Sequence[Listed]) -> Sequence[Listed]:
    return sorted(rows, key=lambda row: (row.run, row.step, row.at, row.version))


def repository_of(path: str, run: str) -> str:
    """The repository of a run."""
    if PART.fullmatch(run) and len(run) <= 100:
        return path.replace("{run}", run)
    plain = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")[:80].rstrip("-")
    return path.replace("{run}", f"{plain or 'run'}-{digest_of(run)}")


def tag_of(tag: str, run: str) -> str:
    """The tag that people of a run follow; room is left for a step behind it."""
    return of_run(tag, run)
