"""What a version is in a repository: its files where the Hub's readers look for them, the record of them, and the model card."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

from daemon.contract.disk.files import read_bounded
from daemon.contract.faults.errors import CkptdError
from daemon.contract.values import Json
from handlers.deliver.hub import card
from handlers.deliver.hub.declaration import HubOptions
from handlers.deliver.hub.interface.commits import Piece, made
from handlers.deliver.hub.layout import README, RECORD, placed, top_variant
from handlers.deliver.version import Version
from handlers.models.tasks import task_of

REPORT_BYTES = 64 << 20
LIBRARIES = {"pytorch-adapter": "peft", "pytorch": "transformers", "gguf": "gguf", "web": "transformers.js", "onnx": "onnx", "mlx": "mlx"}
"""`library_name` by how the variant's name begins."""


class Contents:
    """One version in one repository."""

    def __init__(self, version: Version, options: HubOptions, repository: str) -> None:
        self.version, self.options, self.repository = version, options, repository
        self.name = version.name
        self.top = top_variant(version.variants, options.top) if options.layout == "ready" else None
        self.places = placed((file.path for file in version.files), self.top, options.layout)
        self.large: set[str] = set()
        """Paths of files that the Hub keeps as large ones."""
        self.sent: dict[str, Callable[[int], None]] = {}
        """What is told of the bytes of a small file."""
        self._made: tuple[Piece, ...] = ()

    def files(self) -> tuple[Piece, ...]:
        """The export's files."""
        if not self._made:
            self._made = tuple(
                Piece(
                    self.places[file.path], file.size, file.sha256, file, lfs=self.places[file.path] in self.large,
                    sent=self.sent.get(self.places[file.path], lambda count: None),
                )
                for file in self.version.files
            )  # fmt: skip
        return self._made

    def pieces(self) -> tuple[Piece, ...]:
        """All files of the version's own commit."""
        return (*self.files(), self.record(), *((made(README, self.card("")),) if self.options.card else ()))

    def record(self) -> Piece:
        """What ckptd brought, by which it knows on `main` what is its own."""
        rows = {self.places[file.path]: {"from": file.path, "size": file.size, "sha256": file.sha256} for file in self.version.files}
        for piece in self.files():
            if not piece.lfs:
                rows[piece.path]["git"] = piece.git
        version = self.version
        value = {
            "ckptd": 1, "version": self.name, "run": version.run, "step": version.step, "export": version.export,
            "digest": version.digest, "verdicts": dict(version.verdicts), "files": rows,
        }  # fmt: skip
        return made(RECORD, json.dumps(value, indent=1, sort_keys=True).encode() + b"\n")

    def card(self, old: str) -> bytes:
        """The model card: the old one with ckptd's parts in it."""
        report = self._report()
        values = card.metadata(report, self.options.license, self.options.tags, self._library(), self.name)
        version = self.version
        lines = [
            f"Step {version.step} of the run `{' '.join(version.run.split())}`, exported and compared with the live model by ckptd.",
            f"This version's name is `{self.name}`; it never changes. `report.json` has all figures.",
        ]
        rows = [(name, *self._use(name)) for name in version.variants]
        return card.written(
            old, values, card.section("What this is", lines, rows, {str(k): str(v) for k, v in version.verdicts.items()})
        ).encode("utf-8", "surrogateescape")

    def usage(self) -> str:
        """One line that fetches the version."""
        if self.top is not None and self.top.startswith("pytorch") and not self.top.endswith("-adapter"):
            return f'{self._loader(self.top)}.from_pretrained("{self.repository}", revision="{self.name}")'
        return f"hf download {self.repository} --revision {self.name}"

    def _use(self, variant: str) -> tuple[str, str]:
        """Where a variant lies, and how it is used."""
        inner = [self.places[file.path] for file in self.version.files if file.path.startswith(variant + "/")]
        if variant == self.top and variant.startswith("pytorch"):
            call = "PeftModel.from_pretrained(base, " if variant.endswith("-adapter") else f"{self._loader(variant)}.from_pretrained("
            return "/", f'`{call}"{self.repository}", revision="{self.name}")`'
        for path in inner:
            if path.endswith(".gguf") and "/" not in path:
                return path, f"`llama-server -hf {self.repository}:{variant.removeprefix('gguf-').upper()}`"
        if variant.startswith("pytorch") and not variant.endswith("-adapter"):
            return f"{variant}/", f'`subfolder="{variant}"`'
        return f"{variant}/", f"`{variant}/README.md`" if f"{variant}/README.md" in inner else ""

    def _loader(self, variant: str) -> str:
        """The class of transformers that loads a variant with its head."""
        with contextlib.suppress(CkptdError):
            if (task := task_of(self.version.folder / variant)) is not None:
                return task.auto
        return "AutoModel"

    def _library(self) -> str:
        first = self.top or (self.version.variants[0] if self.version.variants else "pytorch")
        return next((library for begins, library in LIBRARIES.items() if first.startswith(begins)), "transformers")

    def _report(self) -> Json:
        """The export's report; {} where it can't be read, for which nobody's delivery fails."""
        try:
            report: Any = json.loads(read_bounded(self.version.folder / "report.json", REPORT_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        return report if isinstance(report, dict) else {}
