"""Small files are put side by side where a target can, each counted, and what fails is said."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.delivering.orders import Order
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.deliver.target import SMALL_BYTES
from handlers.deliver.transfer import Transfer
from handlers.deliver.version import SourceFile
from tests.deliver import exports

FILES: dict[str, bytes | int] = {
    "README.md": b"first\n", "pytorch/model.bin": SMALL_BYTES + 1, **{f"pytorch/{n}.json": 200 + n for n in range(8)},
    "pytorch/same.json": b"first\n",
}  # fmt: skip


class Counting:
    """A target whose small files come in fours: each waits until four are there."""

    at_once = 4

    def __init__(self, refuses: str = "") -> None:
        self.refuses, self.ended = refuses, list[str]()
        self.together = threading.Barrier(4, timeout=60)

    def read_back(self, file: SourceFile) -> Iterator[bytes]:
        self.put(file, lambda count: None)
        yield file.source.read_bytes()

    def put(self, file: SourceFile, sent: Callable[[int], None]) -> int:
        if file.path == self.refuses:
            raise Permanent(FaultCode.DELIVERY_REFUSED, "put", "refused by a test", "nothing")
        if 200 <= file.size < 300 and not self.refuses and file.path != "report.json":
            self.together.wait()
        for _ in range(file.size):
            sent(1)
        self.ended.append(file.path)
        return 0


def transfer(folder: Path, target: Any) -> Transfer:
    order = Order(kind="tried", entry="a:b", name="tried", export=str(folder), read_back=False)
    return Transfer(order, target, lambda said: None)


def test_small_files_go_together_behind_the_first_and_before_the_large(tmp_path: Path) -> None:
    export, target = exports.make(tmp_path, files=FILES), Counting()
    made = transfer(export.folder, target)
    made._put(made.version())
    assert target.ended[0] == "README.md"
    assert sorted(target.ended) == sorted(export.digests)
    assert target.ended[-1] == "pytorch/model.bin"
    assert made._sent == export.size


def test_small_files_are_read_back_together(tmp_path: Path) -> None:
    export, target = exports.make(tmp_path, files=FILES), Counting()
    made = transfer(export.folder, target)
    made._compare(made.version())
    assert sorted(target.ended) == sorted(export.digests)
    assert made._read == export.size


def test_what_is_refused_among_small_files_ends_the_delivery(tmp_path: Path) -> None:
    export, target = exports.make(tmp_path, files=FILES), Counting("pytorch/3.json")
    made = transfer(export.folder, target)
    with pytest.raises(Permanent, match="refused by a test"):
        made._put(made.version())
    assert "pytorch/model.bin" not in target.ended
