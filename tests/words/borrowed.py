"""Sentences of others that stand in ours: of the system, of Python's TOML reader, and of APScheduler for the expressions of windows."""

from __future__ import annotations

import errno
import os

OF_THE_SYSTEM = tuple(
    os.strerror(number)
    for number in (
        errno.EPERM, errno.ENOENT, errno.EIO, errno.EACCES, errno.EEXIST, errno.EXDEV, errno.ENOTDIR, errno.EISDIR, errno.EINVAL,
        errno.ENFILE, errno.EMFILE, errno.ETXTBSY, errno.EFBIG, errno.ENOSPC, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTEMPTY,
        errno.ELOOP, errno.EAGAIN, errno.ENOMEM, errno.EBUSY, errno.ETIMEDOUT, errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ESTALE,
        errno.EDQUOT,
    )
)  # fmt: skip
"""What goes wrong with files, memory and connections."""
OF_TOML = (
    "Invalid statement", "Expected newline or end of document after a statement", "Expected {value}", "Found invalid character {value}",
    "Cannot declare …", "Cannot overwrite a value", "Expected ']' at the end of a table declaration",
    "Cannot mutate immutable namespace …", "Expected ']]' at the end of an array declaration", "Cannot redefine namespace …",
    "Expected '=' after a key in a key/value pair", "Invalid initial character for a key part", "Unclosed array",
    "Duplicate inline table key …", "Unclosed inline table", "Unescaped '\\' in a string", "Invalid hex value",
    "Unterminated string", "Illegal character {value}", "Invalid date or datetime", "Invalid value", "at line {line}, column {column}",
    "at end of document",
)  # fmt: skip
"""What `tomllib` says of a file, and where; the keys that it quotes are left out (`daemon.config.layers`)."""
OF_WINDOWS = (
    "Wrong number of fields; got {got}, expected {expected}", "Error validating expression {expression}: {cause}",
    'Unrecognized expression "{expression}" for field "{field}"', "Increment must be higher than 0",
    "the last value ({last}) is higher than the maximum value ({most})",
    "the first value ({first}) is lower than the minimum value ({least})",
    'Invalid weekday name "{name}"', 'Invalid month name "{name}"',
    "The minimum value in a range must not be higher than the maximum",
)  # fmt: skip
"""What `CronTrigger.from_crontab` says of an expression."""
OF_ERRORS = ("[Errno {number}] {strerror}: {file}", "[Errno {number}] {strerror}")
"""How Python joins a system's sentence with its number and the file."""
