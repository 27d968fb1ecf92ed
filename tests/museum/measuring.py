"""What the gate says of every exhibit, with all its checks, with each one alone and without each: `results.json`.

`python -m tests.museum.measuring FOLDER [ROOM[/NAME]…]` makes models and mutants below FOLDER, which may be used again, and records all of
the museum, or what is named. TOOLCHAINS_TEST_STATE names the state directory with the toolchain `gguf`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from daemon.contract.jobs.messages import ArtifactCheck, Verdict
from tests.museum import gate
from tests.museum.checks import checks, gone
from tests.museum.exhibit import Exhibit, collected
from tests.museum.hall import Hall
from tests.museum.halls import HALLS

RESULTS = Path(__file__).with_name("results.json")


def result(seen: gate.Seen) -> dict[str, Any]:
    """Return the reasons, the checks that alone are enough, and those without which the mutant passes."""
    names = checks().keys()
    return {
        "reasons": list(seen.judged().reasons),
        "enough": [name for name in names if _failed(seen.judged(without=names - {name}))],
        "slips": [name for name in names if not _failed(seen.judged(without=gone(name)))],
    }


def _failed(check: ArtifactCheck) -> bool:
    return check.verdict is Verdict.FAILED


def wrong(exhibit: Exhibit, measured: dict[str, Any], sound: ArtifactCheck) -> list[str]:
    """Return what is not as the exhibit says."""
    said = " | ".join(measured["reasons"])
    return [
        *([] if re.search(exhibit.words, said) else [f"no reason like {exhibit.words!r}"]),
        *([] if exhibit.check in measured["enough"] else [f"{exhibit.check} alone does not catch it"]),
        *([] if sound.verdict is Verdict.PASSED else [f"the sound one does not pass: {sound.reasons}"]),
    ]


def main() -> None:
    """Measure and record."""
    root, wanted = Path(sys.argv[1]), tuple(sys.argv[2:]) or ("",)
    sys.path += [
        str(path) for path in Path(os.environ.get("TOOLCHAINS_TEST_STATE", "")).glob("toolchains/gguf-*/lib/python*/site-packages")
    ]
    exhibits, halls = collected(), dict[str, Hall]()
    results: dict[str, Any] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.is_file() else {}
    shutil.rmtree(root / "mutants", ignore_errors=True)
    shutil.rmtree(root / "halls", ignore_errors=True)
    for place, exhibit in exhibits.items():
        if not place.startswith(wanted):
            continue
        if exhibit.hall not in halls:
            shared, _, kind = HALLS[exhibit.hall]
            for folder in (root / shared, root / "halls" / exhibit.hall):
                folder.mkdir(parents=True, exist_ok=True)
            halls[exhibit.hall] = kind(root / shared, root / "halls" / exhibit.hall)
        hall, scratch = halls[exhibit.hall], root / "mutants" / place
        scratch.parent.mkdir(parents=True, exist_ok=True)
        results[place] = result(gate.seen(hall, exhibit, scratch))
        faults = wrong(exhibit, results[place], gate.sound(hall, exhibit).judged())
        print(f"{place}: {'; '.join(faults) or 'caught'}", *results[place]["reasons"], sep="\n    ", flush=True)
        print(f"    enough: {results[place]['enough']}\n    slips without: {results[place]['slips']}", flush=True)
    kept = {place: results[place] for place in exhibits if place in results}
    RESULTS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
