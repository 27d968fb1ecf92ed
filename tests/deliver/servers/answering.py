"""Sites of servers: an export's report has what its model must answer, and the server knows the step of each file of weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tests.deliver import exports
from tests.deliver.contract.site import Contents, Site
from tests.deliver.exports import Export
from tests.deliver.proxy import Proxy
from tests.deliver.servers.ollama_stub import TOP, live_of
from tests.deliver.servers.stub import Scripted, serving

ABOUT = ".ckptd.json"
NO_FENCE = (
    "the server knows no conditional requests: deliveries of one machine wait for each other, and a person's change in between is lost"
)
FORGETS = "where it refuses everything it also refuses to forget what it has loaded, which is whole and under nobody's name"
LACKS = {
    "chosen_variants_go_alone": "a server has one variant whatever is chosen, and nothing of the export's top",
    "a_later_step_that_comes_at_the_end_stays_followed": NO_FENCE,
    "a_later_step_that_comes_at_any_request_stays_followed": NO_FENCE,
    "what_a_person_moves_at_the_end_stays_moved": NO_FENCE,
}


def dress(export: Export, questions: Mapping[str, list[int]], steps: dict[str, int], weights: str) -> None:
    """Let an export say what its step's model answers."""
    known = [
        {"ids": ids, "known": [[token, live_of(export.step, place)[token], TOP[token]] for token in TOP]}
        for place, ids in enumerate(questions.values())
    ]
    exports.report(export, answers={"top": 20, "positions": known})
    steps[export.digests[weights]] = export.step


def left_on(shelf: Path) -> list[str]:
    """What lies in a folder from which a server loads and is of no version: what was being made or removed, contents with one name."""
    fresh = [path for path in shelf.rglob("*") if path.name.startswith((".new", ".old"))]
    return [str(path) for path in (*fresh, *(path for path in (shelf / ".parts").glob("*") if path.stat().st_nlink == 1))]


class AnsweringSite(Site):
    """Of one variant's files."""

    def expected(self, export: Export, variants: tuple[str, ...] = ()) -> Contents:
        return {path: digest for path, digest in export.digests.items() if path.split("/")[0] == self.weights.split("/")[0]}

    def carried(self, export: Export) -> int:
        return sum((export.folder / path).stat().st_size for path in self.expected(export))

    def contents(self, folder: Path) -> Contents:
        """Of a version's folder."""
        return {
            f"{self.weights.split('/')[0]}/{path.relative_to(folder)}": hashlib.sha256(path.read_bytes()).hexdigest()
            for path in folder.rglob("*") if path.is_file() and path.name != ABOUT
        }  # fmt: skip

    @property
    def shelf(self) -> Path:
        """The folder from which the server loads."""
        return self.folder / "shelf"

    def lay_foreign(self) -> None:
        folder = self.shelf / "foreign-1-00000000"
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(b"a person's")
        (folder / ABOUT).write_text('["a", "person\'s"]')

    def foreign_is_there(self) -> bool:
        return (self.shelf / "foreign-1-00000000/weights").is_file()

    def leftovers(self) -> list[str]:
        return left_on(self.shelf)

    def stored(self) -> int:
        return sum({path.stat().st_ino: path.stat().st_size for path in self.folder.rglob("*") if path.is_file()}.values())

    def serve(self, stub: Scripted) -> None:
        """Let a stub be reached through a proxy."""
        self._serving = serving(stub)
        self._serving.__enter__()
        self.proxy = Proxy(int(stub.url.rpartition(":")[2]))
        self.proxy.__enter__()

    def stop(self) -> None:
        assert self.proxy is not None
        self.proxy.__exit__()
        self._serving.__exit__(None, None, None)


class AdapterSite(AnsweringSite):
    """A stub of vLLM and SGLang."""

    files: ClassVar[Mapping[str, bytes | int]] = {
        "README.md": b"# An export\n", "pytorch-adapter/adapter_config.json": b'{"r": 8}',
        "pytorch-adapter/adapter_model.safetensors": 150_000, "onnx/model.onnx": 40_000,
    }  # fmt: skip
    weights = "pytorch-adapter/adapter_model.safetensors"
    secret = "a-key-that-nobody-may-see"
    lacks: ClassVar[Mapping[str, str]] = {
        **LACKS,
        "a_far_end_that_lies_is_caught": "contents go by a folder, not over the network",
        "a_refusal_in_the_midst_makes_nothing_visible": FORGETS,
    }

    def start(self) -> None:
        self.stub = Scripted()
        self.serve(self.stub)

    def options(self) -> dict[str, Any]:
        assert self.proxy is not None
        return {"url": self.proxy.url, "folder": str(self.shelf)}

    def dress(self, export: Export) -> None:
        dress(export, {str(place): [place, 3] for place in range(4)}, self.stub.steps, self.weights)

    def visible(self, run: str) -> Mapping[str, Contents]:
        seen = {}
        for name, path in dict(self.stub.names).items():
            if name == Path(path).name and f'"run": "{run}"' in (Path(path) / ABOUT).read_text().encode().decode("unicode_escape"):
                seen[name] = self.contents(Path(path))
        return seen

    def current(self, run: str) -> str | None:
        from handlers.deliver.names import short

        path = self.stub.names.get(short(run))
        return Path(path).name if path else None
