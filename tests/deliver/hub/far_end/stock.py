"""The Hub's own client, in a process of its own whose Hub is the local one: what people read and write with, and no code of ckptd's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.deliver.hub.service import TOKEN

BEGIN = """
import json, sys
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, hf_hub_download, snapshot_download
api = HfApi()
given = json.loads(sys.argv[1])
"""


def environment(url: str, home: Path, token: str = TOKEN) -> dict[str, str]:
    """That of a person's process."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))}
    own = {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    return {**kept, **own, **({"HF_TOKEN": token} if token else {})}


def stock(url: str, home: Path, code: str, token: str = TOKEN, **given: Any) -> Any:
    """What the code answers by `say(…)`, which has the client as `api` and the values as `given`."""
    out = home / "said.json"
    home.mkdir(exist_ok=True)
    out.unlink(missing_ok=True)
    say = f"say = lambda value: open({str(out)!r}, 'w').write(json.dumps(value))\n"
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + say + code, json.dumps(given)], env=environment(url, home, token), capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text()) if out.exists() else None
