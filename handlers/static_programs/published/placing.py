"""What lies beside the programs in a published folder, so that it runs without ckptd: an example, and what it opens programs with.

Called by the stages of the formats that are made of `static-programs`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from handlers.folder import opening

_HERE = Path(__file__).parent
SESSION = "session.py"


def place(task: str, folder: Path, session: Path, needs: str) -> None:
    """Put `example.py` for a task and its modules into `folder`. `session`: the format's module with a class `Session(path, role)`, see
    `feeding`, which imports its runtime and numpy alone; `needs`: the package that brings the runtime."""
    opening.place(task, folder, _HERE / "opener.py", needs)
    shutil.copyfile(_HERE / "feeding.py", folder / "feeding.py")
    shutil.copyfile(session, folder / SESSION)
