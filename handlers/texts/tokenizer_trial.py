"""Whether a model's tokenizer reads ordinary texts in a bounded time and memory, before anything else gives it a text.

Called by the merge, with which every export begins: a normalizer that doubles a text again and again, or a pattern that never comes to an
end, would take every stage that reads a text, and the machine's memory with it.
"""

from __future__ import annotations

from pathlib import Path

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.child.bounded import BoundedProcess, TooMuch
from handlers.texts.built_in import BUILT_IN

FILE = "tokenizer.json"
CPU_SECONDS = 30
"""The largest vocabularies in use (262,000 tokens) take about two to be read, the texts a hundredth of one."""
MEMORY = 4 << 30
"""Bytes of address space; the largest in use take less than one of the four GiB."""
MOST_TOKENS = 16
"""Tokens a byte of UTF-8: a tokenizer that falls back on bytes writes one, and normalizers add a few."""


def try_tokenizer(folder: Path) -> None:
    """Raise Permanent where the folder's tokenizer.json is too costly to use, or unusable; whether it is right is for others to see."""
    path = folder / FILE
    if not path.is_file():
        return
    process = BoundedProcess("handlers.texts.tokenizer_program", cpu_seconds=CPU_SECONDS, memory=MEMORY)
    try:
        said = process.ask({"file": str(path), "texts": BUILT_IN})
    except TooMuch as error:
        raise _too_costly(f"to encode {len(BUILT_IN)} short texts with it {error}", path) from None
    finally:
        process.close()
    if "broken" in said:
        raise Permanent(
            FaultCode.TOKENIZER_UNREADABLE, "try the tokenizer",
            f"the tokenizers library gives up on an ordinary text ({said['broken'][:200]})",
            "use the tokenizer with which the model was trained", path=path,
        )  # fmt: skip
    for text, count in zip(BUILT_IN, said.get("counts", ()), strict=False):
        if count > MOST_TOKENS * len(text.encode()):
            raise _too_costly(f"it makes {count:,} tokens of a text of {len(text)} characters", path)


def _too_costly(cause: str, path: Path) -> Permanent:
    return Permanent(
        FaultCode.TOKENIZER_TOO_COSTLY, "try the tokenizer", cause,
        "use the tokenizer with which the model was trained: no server could use this one either", path=path,
    )  # fmt: skip
