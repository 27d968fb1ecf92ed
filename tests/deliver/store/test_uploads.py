"""An upload in parts: which lie there, what is sent of the others, and that a part goes as it stands in the file."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from handlers.deliver.calls import Said
from handlers.deliver.store.uploads import AHEAD, Uploads
from handlers.deliver.target import Resume
from handlers.deliver.version import SourceFile

PART = 1000


class Service:
    """S3 as far as an upload needs it. It looks at a part only after a while, as a slow line does."""

    def __init__(self, contents: bytes, there: set[int]) -> None:
        self.contents = contents
        self.parts = {place: self.of(place) for place in there}
        self.sent: list[int] = []
        self.under_way = self.most_under_way = 0
        self._lock = threading.Lock()

    def of(self, place: int) -> bytes:
        return self.contents[(place - 1) * PART : place * PART]

    def ask(self, operation: str, method: str, key: str, values: Any = None, *, body: Any = None, **rest: Any) -> Said:
        said = ""
        if operation == "begin an upload":
            said = "<r><UploadId>7</UploadId></r>"
        elif operation == "look at an upload":
            rows = (f"<Part><PartNumber>{n}</PartNumber><Size>{len(data)}</Size><ETag>{n}</ETag></Part>" for n, data in self.parts.items())
            said = f"<r>{''.join(rows)}</r>"
        elif operation == "send a part":
            place = int(values["partNumber"])
            with self._lock:
                self.sent.append(place)
                self.under_way += 1
                self.most_under_way = max(self.most_under_way, self.under_way)
            time.sleep(0.02)
            with self._lock:
                self.parts[place] = bytes(body)
                self.under_way -= 1
            return Said(200, {"ETag": str(place)}, b"", "")
        return Said(200, {}, said.encode(), "")


@pytest.mark.parametrize("seed", range(12))
def test_parts_arrive_as_they_stand_in_the_file_whichever_lie_there(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    contents = rng.randbytes(rng.randint(2 * PART, 12 * PART))
    last = -(-len(contents) // PART)
    there = {place for place in range(1, last + 1) if rng.random() < seed / 11}
    (tmp_path / "file").write_bytes(contents)
    file = SourceFile("file", tmp_path / "file", len(contents), hashlib.sha256(contents).hexdigest())
    service, counts = Service(contents, set(there)), list[int]()
    known = {"upload key": {"id": "7", "sha256": file.sha256, "part": PART}} if there else {}
    before = Uploads(service.ask, Resume(known), PART).send("key", file, {}, counts.append)
    assert service.parts == {place: service.of(place) for place in range(1, last + 1)}
    assert sorted(service.sent) == sorted(set(range(1, last + 1)) - there)
    assert before == sum(len(service.of(place)) for place in there)
    assert sum(counts) == len(contents) - before
    assert service.most_under_way <= AHEAD
    assert known == {}


def test_a_part_of_another_size_is_sent_again(tmp_path: Path) -> None:
    contents = bytes(range(250)) * 20
    (tmp_path / "file").write_bytes(contents)
    file = SourceFile("file", tmp_path / "file", len(contents), hashlib.sha256(contents).hexdigest())
    service = Service(contents, {1, 2})
    service.parts[2], service.parts[9] = b"short", b"of another file"
    Uploads(service.ask, Resume({"upload key": {"id": "7", "sha256": file.sha256, "part": PART}}), PART).send(
        "key", file, {}, lambda _: None
    )
    assert service.sent == [2, 3, 4, 5]
