"""The tokenizer of an ONNX folder, read as the folder's own example reads it: tokenizer.json, or a Marian's SentencePiece models.

Called wherever texts go through exported graphs: validation's engines, calibration, the proofs of optimization. Free of torch and
transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer

from daemon.contract.faults.advice import quoted
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.child import foreign

MARIAN = ("source.spm", "vocab.json")
"""Files of a tokenizer that has no tokenizer.json."""
REMEDY = "put a tokenizer into the base's folder that transformers can convert to a tokenizer.json, or the files of a Marian tokenizer"


class FolderTokenizer(Protocol):
    """What all of them can do."""

    size: int
    """Number of tokens."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, special tokens as the tokenizer's own default has them."""

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Token ids of two texts as one input, and the segment of each token. Permanent where the tokenizer knows no pairs."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens."""

    def decode_whole(self, ids: Sequence[int]) -> str | None:
        """The text of token ids, with special tokens; None where the reader leaves them out always."""


class _Json:
    def __init__(self, path: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(path))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.size = int(self._tokenizer.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text).ids)

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        encoded = self._tokenizer.encode(first, second)
        return list(encoded.ids), list(encoded.type_ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def decode_whole(self, ids: Sequence[int]) -> str | None:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


class _Marian:
    def __init__(self, folder: Path) -> None:
        from handlers.folder.examples.marian_tokenizer import MarianTokenizer  # sentencepiece is for such folders alone

        self._folder = folder
        self._tokenizer = MarianTokenizer(folder)
        self.size = len(self._tokenizer)

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        raise Permanent(
            FaultCode.NO_PAIRS,
            "load the tokenizer",
            "a Marian tokenizer does not support pairs of texts",
            "leave the variant out",
            path=self._folder,
        )

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids)

    def decode_whole(self, ids: Sequence[int]) -> str | None:
        return None


def load(folder: Path, operation: str = "load the tokenizer") -> FolderTokenizer:
    """The tokenizer of a folder. Permanent where it has none that runs without transformers, or where its files can't be read."""
    path = folder / "tokenizer.json"
    marian = all((folder / name).is_file() for name in MARIAN)
    if not path.is_file() and not marian:
        cause = f"there is no tokenizer.json, and no {' with '.join(MARIAN)}, so this folder alone can't turn texts into tokens"
        raise Permanent(FaultCode.TOKENIZER_NOT_FOUND, operation, cause, REMEDY, path=path)
    try:
        return _Json(path) if path.is_file() else _Marian(folder)
    except ImportError as error:
        raise Permanent(
            FaultCode.PACKAGE_MISSING,
            operation,
            f"the Python package {quoted(error.name)} is not installed",
            "pip install sentencepiece" if error.name == "sentencepiece" else "install ckptd again, with all packages that it needs",
            path=folder,
        ) from error
    except Exception as error:  # tokenizers and sentencepiece raise types of their own, all of them about the folder's files
        if foreign.of_machine(error):
            raise
        cause = f"its files can't be read: {foreign.in_words(error)}"
        raise Permanent(
            FaultCode.TOKENIZER_UNREADABLE, operation, cause, "restore the tokenizer's files from their source", path=folder
        ) from error
