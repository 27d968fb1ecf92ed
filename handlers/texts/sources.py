"""What `validate.prompts` and `validate.data` name, as texts: each file by its kind, within one budget of bytes. Called by `selection`.

Which kind a file is of, its first bytes say, and its name where they don't. Rows that are no texts are counted, and the first of them is
named; a file that is none at all is left out of a folder, and refused where it is the only one.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from daemon.contract.disk.data_files import SUFFIXES, DataFile, DataPlace, other_kind
from daemon.contract.faults.errors import Permanent, from_oserror
from daemon.contract.faults.fault_codes import FaultCode
from handlers.texts import readers, tables
from handlers.texts.readers import BadRow, FileRefused, Row, Share
from handlers.texts.rows import RowRefused, Text, text_of

BUDGET, ROWS = 32 << 20, 100_000
"""Bytes and rows that are read of a setting's files, together."""
LEAST_SHARE = 1 << 20
"""Bytes of each file that is read at all: of more files than fit, some at even distances are read."""
MOST_BAD = 1000
"""Rows that are no texts after which a file is given up."""
_ARROW, _PARQUET = (b"ARROW1", b"\xff\xff\xff\xff"), b"PAR1"
Reader = Callable[[BinaryIO, int, Share], Iterator[Row | BadRow]]


@dataclass
class Source:
    """One setting with its files, and what was found while they were read."""

    setting: str
    """Key of the configuration."""
    value: str
    rows: int = 0
    """Texts found."""
    warnings: list[str] = field(default_factory=list)
    read: str = ""
    """How much of the files was read, for people."""
    of_lines: bool = False
    """Whether it is one file of plain lines of a person's own."""

    @property
    def is_prompts(self) -> bool:
        """Whether a person put them in order; else they are a data set."""
        return self.setting == "validate.prompts"

    @property
    def shown(self) -> str:
        """The path, for people."""
        try:
            return self.place.shown
        except ValueError:
            return self.value

    @property
    def place(self) -> DataPlace:
        """Where they lie. ValueError where a run named a way out of its folder."""
        return DataPlace.of(self.value)

    @property
    def remedy(self) -> str:
        """What to do where nothing can be read."""
        what = "a UTF-8 text file with one prompt a line, to a .jsonl or .json file, or to a folder of them"
        if not self.is_prompts:
            what = "a folder or file of a data set (arrow, parquet, .jsonl, .json, .csv or .txt)"
        return f'set {self.setting} to {what}, or to ""'

    def texts(self) -> Iterator[Text]:
        """Yield the texts, file by file. Raises Permanent where there are none, or where the files can't be read."""
        operation = "read the validation prompts" if self.is_prompts else "read the data for validation and calibration"
        try:
            files = self._chosen(operation)
            share = max(LEAST_SHARE, BUDGET // len(files))
            refused: list[str] = []
            for file in files:
                try:
                    yield from self._of(file, share, len(files))
                except FileRefused as error:
                    refused.append(f"{file.name}: {error}")
        except (OSError, ValueError) as error:
            raise self._unreadable(error, operation) from error
        if refused and len(refused) == len(files):
            code = FaultCode.PROMPTS_NOT_TEXT if self.is_prompts else FaultCode.DATA_UNREADABLE
            raise Permanent(code, operation, refused[0].partition(": ")[2], self.remedy, path=refused[0].partition(": ")[0])
        if refused:
            self.warnings.append(f"{len(refused)} of {len(files)} files of {self.shown} were left out; the first is {refused[0]}.")
        if not self.rows:
            code = FaultCode.PROMPTS_EMPTY if self.is_prompts else FaultCode.DATA_EMPTY
            cause = "it holds no prompt" if self.is_prompts else "it holds no text"
            raise Permanent(code, operation, cause + self._why_empty(), self.remedy, path=self.shown)

    def _why_empty(self) -> str:
        return f": {self.warnings[0]}".rstrip(".") if self.warnings else ""

    def _chosen(self, operation: str) -> list[DataFile]:
        listed = self.place.files()
        if not listed:
            cause = f"there is no file in it whose name ends with {', '.join(SUFFIXES)}"
            code = FaultCode.PROMPTS_EMPTY if self.is_prompts else FaultCode.DATA_EMPTY
            raise Permanent(code, operation, cause, self.remedy, path=self.shown)
        most = BUDGET // LEAST_SHARE
        files = list(listed) if len(listed) <= most else [listed[number * len(listed) // most] for number in range(most)]
        size = sum(file.size for file in listed)
        if size > BUDGET:
            self.read = (
                f"at most {BUDGET >> 20} MiB of {size / (1 << 20):,.0f} MiB in {len(listed)} {'file' if len(listed) == 1 else 'files'}"
            )
        return files

    def _of(self, file: DataFile, share: int, files: int) -> Iterator[Text]:
        bad, first, good = 0, "", 0
        part = Share(share, max(1, ROWS // files))
        with file.open() as stream:
            kind, names_rows = _reader(stream, file)
            self.of_lines = not names_rows and self.is_prompts and not file.parts
            stream.seek(0)
            for row in kind(stream, file.size, part):
                reason = row.reason if isinstance(row, BadRow) else ""
                if isinstance(row, Row):
                    try:
                        text = text_of(row.value)
                    except RowRefused as error:
                        reason = str(error)
                    else:
                        good += 1
                        self.rows += 1
                        yield text
                        continue
                if not names_rows and self.is_prompts:
                    raise FileRefused("it is not UTF-8 text")  # a file of lines is taken as a whole or not at all
                bad += 1
                first = first or f"{row.where}: {reason}"
                if bad >= MOST_BAD and not good:
                    break
        if part.cut and not self.read:
            self.read = f"{self.rows:,} texts of more than that"
        if bad:
            rows = "row was" if bad == 1 else "rows were"
            self.warnings.append(f"{bad} {rows} left out of {file.name}; the first is {first}.")

    def _unreadable(self, error: OSError | ValueError, operation: str) -> Permanent:
        codes = (FaultCode.PROMPTS_NOT_FOUND, FaultCode.PROMPTS_NOT_TEXT)
        missing, unreadable = codes if self.is_prompts else (FaultCode.DATA_NOT_FOUND, FaultCode.DATA_UNREADABLE)
        if isinstance(error, FileNotFoundError):
            return Permanent(missing, operation, "there is no such file or folder", self.remedy, path=self.shown)
        if isinstance(error, OSError) and error.errno in (errno.ELOOP, errno.ENOTDIR, None):
            cause = str(error.strerror)
            if error.errno == errno.ELOOP:
                inside = self.place.inner is not None
                cause = "a link is on the way, which is not followed below a run" if inside else "its links lead round in a circle"
            return Permanent(unreadable, operation, cause, self.remedy, path=self.shown)
        if isinstance(error, OSError):
            problem = from_oserror(error, operation, self.shown)
            return problem if isinstance(problem, Permanent) else Permanent(unreadable, operation, str(error), self.remedy, path=self.shown)
        return Permanent(unreadable, operation, str(error), self.remedy, path=self.shown)


def _reader(stream: BinaryIO, file: DataFile) -> tuple[Reader, bool]:
    """Return what reads the file, and whether its rows have fields: not those of a plain text file."""
    beginning = stream.read(8)
    if other := other_kind(beginning):
        raise FileRefused(other)
    if beginning.startswith(_PARQUET):
        return tables.parquet, True
    if beginning.startswith(_ARROW) or file.suffix in (".arrow", ".feather"):
        return tables.arrow, True
    if file.suffix == ".parquet":
        raise FileRefused("it does not begin as a Parquet file does")
    if file.suffix in (".jsonl", ".ndjson"):
        return readers.json_lines, True
    if file.suffix in (".csv", ".tsv"):
        return readers.separated, True
    return (readers.json_list, True) if file.suffix == ".json" else (readers.lines, False)


def sources_of(prompts: str, data: str) -> list[Source]:
    """Return the settings that name something, in the order in which they count."""
    named = (("validate.prompts", prompts), ("validate.data", data))
    return [Source(setting, value) for setting, value in named if value]
