"""Named points at which a crash can be provoked: `CKPTD_FAULT=publish.renamed` kills the process there, as kill -9 would.

They stand at every commit of the journal and every step of a publication, so that "killed anywhere" can be tried.
"""

from __future__ import annotations

import os
import signal


def point(name: str) -> None:
    """Die here without a chance to clean up if this point is the one that the environment names."""
    if os.environ.get("CKPTD_FAULT") == name:
        os.kill(os.getpid(), signal.SIGKILL)
