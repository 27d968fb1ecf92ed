"""JSON files of a model's folder, read as users' programs meet them: what is missing or can't be read says nothing."""

from __future__ import annotations

from pathlib import Path

from daemon.contract.faults.errors import CkptdError
from daemon.contract.values import Json
from handlers.models.files import read_json

_OPERATION = "read the files beside the weights"


def values(path: Path) -> Json:
    """Give the object in a JSON file; {} where there is no file, none that can be read, or no object."""
    try:
        content = read_json(path, _OPERATION) if path.is_file() else {}
    except CkptdError:
        return {}
    return content if isinstance(content, dict) else {}
