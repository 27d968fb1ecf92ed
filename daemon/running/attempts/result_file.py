"""The result file of an attempt: read where it can be trusted.

Called by executors once nothing of an attempt runs any more, and at a start for those of a daemon that died.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from daemon.contract.disk.own_folders import is_still
from daemon.contract.jobs.messages import CONTRACT_VERSION, StageContext, StageResult

RESULT_LIMIT = 64 << 20
"""Bytes of the largest result file that is read: ten thousand files take one or two MiB."""


def examine(context: StageContext) -> tuple[StageResult | None, str]:
    """The attempt's result, if it is whole, of this contract, and true about the staging folder; else None and what is wrong.

    No file at all is None and "".
    """
    path = Path(context.result)
    try:
        with open(path, "rb") as stream:
            data = stream.read(RESULT_LIMIT + 1)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"its result file can't be read: {error.strerror}"
    if len(data) > RESULT_LIMIT:
        return None, f"its result file is larger than {RESULT_LIMIT >> 20} MiB"
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError):
        return None, f"its result file is truncated or not JSON ({len(data)} bytes)"
    version = raw.get("contract", CONTRACT_VERSION) if isinstance(raw, dict) else None
    if version != CONTRACT_VERSION:
        return None, f"its result file uses version {version} of the contract, but this daemon uses version {CONTRACT_VERSION}"
    try:
        result = StageResult.model_validate_json(data)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        return None, f"its result file is invalid: {where or 'the whole'}: {error.errors()[0]['msg']}"
    wrong = _untrue(context, result)
    return (None, wrong) if wrong else (result, "")


def _untrue(context: StageContext, result: StageResult) -> str:
    """Whether a result speaks of another attempt's files: "" or what is wrong."""
    if result.attempt not in ("", context.attempt_id):
        return f"its result file belongs to {result.attempt}"
    staging = Path(context.staging)
    if not is_still(staging, context.staging_inode):
        return f"its folder {staging} was replaced by another one, or by a link, while it ran"
    for entry in result.files:
        pure = PurePosixPath(entry.path)
        if pure.is_absolute() or ".." in pure.parts:
            return f"its result names the file {entry.path}, which is outside its folder"
        try:
            size = (staging / entry.path).stat().st_size
        except OSError:
            return f"its result names the file {entry.path}, which is not in its folder"
        if size != entry.size:
            return f"its result gives {entry.path} a size of {entry.size} bytes, but the file has {size}"
    return ""
