"""The kind `command`: what a program is given, and what its end means."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.delivering.declaration import DeliveryKind
from daemon.journal.shipment_rows import ShipmentRow
from handlers.deliver.command.declaration import KIND
from tests.deliver.queue.yard import Aim, Yard, ended, run_until

TELL = """
import json, os, sys
told = json.load(sys.stdin)
open(os.environ["OUT"], "w").write(json.dumps([told, os.getcwd(), os.environ.get("TOKEN")]))
print("thank you"); print("  https://far.example/there  "); print()
"""


def aim(yard: Yard, script: str, **options: Any) -> Aim:
    program = yard.folder / "program.py"
    program.write_text(script)
    return Aim(
        kind="command", entry=KIND.entry, options={"command": [sys.executable, str(program)], **options}, key="hush-hush-0123456789",
        secret_variables={"OUT": str(yard.folder / "out.json")},
    )  # fmt: skip


def first_end(yard: Yard, target: Aim) -> ShipmentRow:
    """The delivery after its first attempt."""
    job = yard.end(100, variants=("pytorch",))
    with ended(yard.queue(target)) as queue:
        run_until(queue, lambda: yard.row(job).state in ("delivered", "failed") or yard.row(job).failures == 1)
    return yard.row(job)


def test_it_gets_the_version_and_the_folder_and_says_where_that_is(yard: Yard) -> None:
    row = first_end(yard, aim(yard, TELL, secret_variable="TOKEN"))
    assert row.receipt is not None and row.receipt.place == "https://far.example/there"
    told, folder, secret = json.loads((yard.folder / "out.json").read_text())
    assert (Path(folder), secret) == (row.export, "hush-hush-0123456789")
    assert (told["version"], told["run"], told["step"], told["move"]) == (row.receipt.version, "run-a", 100, "move")
    assert told["variants"] == ["pytorch"] and told["verdicts"]["pytorch"] == "passed"
    assert {entry["path"] for entry in told["files"]} == {"README.md", "pytorch/config.json", "pytorch/model.safetensors", "report.json"}


@pytest.mark.parametrize(
    ("code", "state", "cause"),
    [(65, "failed", "it ended with exit code 65"), (75, "waiting", "it ended with exit code 75"), (1, "waiting", "exit code 1")],
)
def test_its_exit_code_says_whether_it_is_tried_again(yard: Yard, code: int, state: str, cause: str) -> None:
    row = first_end(yard, aim(yard, f"raise SystemExit({code})"))
    assert row.state == state and row.fault is not None and cause in row.fault.cause


def test_one_that_takes_too_long_is_ended(yard: Yard) -> None:
    row = first_end(yard, aim(yard, "import time; time.sleep(3600)", limit_seconds=1.0))
    assert row.state == "waiting" and row.fault is not None and row.fault.cause == "it did not end within 1 s, and was ended"


def test_one_that_changes_the_export_delivers_nothing(yard: Yard) -> None:
    row = first_end(yard, aim(yard, "open('pytorch/config.json', 'w').write('{}')"))
    assert row.state == "failed" and row.fault is not None and row.fault.code == "delivery-source"


def test_one_that_is_not_there_says_so(yard: Yard) -> None:
    target = aim(yard, "", command=["/no/such/program"])
    row = first_end(yard, target)
    assert row.state == "failed" and row.fault is not None and row.fault.cause == 'there is no program "/no/such/program"'


def test_one_that_reads_nothing_and_prints_without_end_is_kept_within_its_bounds(yard: Yard) -> None:
    row = first_end(yard, aim(yard, "import sys\nfor _ in range(500): sys.stdout.write('x' * 4096)\nprint('\\nplace')"))
    assert row.receipt is not None and row.receipt.place == "place"
    (log,) = (yard.state / "deliveries").glob("*/*.log")
    assert log.stat().st_size <= 3 << 20


def test_the_kind_is_declared() -> None:
    assert isinstance(KIND, DeliveryKind) and KIND.options.model_validate({"command": ["true"]})
