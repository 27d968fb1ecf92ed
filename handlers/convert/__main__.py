"""`python -m handlers.convert SOURCE TARGET --answer FILE`: the child of `ckptd convert`.

Each line on stdout is {"share", "doing"}; FILE gets an `Answer` of `daemon.contract.jobs.processes.conversion`. Exit code 0, or 1 with a
fault.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from pathlib import Path

from daemon.contract.faults.errors import CkptdError, Fault, Retryable, from_oserror
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.processes.conversion import Answer
from handlers.convert import folder, pickles


def main() -> int:
    """Convert; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--answer", required=True, type=Path)
    options = parser.parse_args()

    def said(share: float, doing: str) -> None:
        print(json.dumps({"share": round(share, 4), "doing": doing}), flush=True)

    try:
        answer = Answer(conversion=folder.convert(options.source, options.target, said))
    except CkptdError as error:
        answer = Answer(fault=error.fault, transient=isinstance(error, Retryable))
    except OSError as error:
        refused = from_oserror(error, pickles.OPERATION)
        answer = Answer(fault=refused.fault, transient=isinstance(refused, Retryable))
    except Exception as error:
        fault = Fault(
            code=FaultCode.UNEXPECTED, operation=pickles.OPERATION, cause=f"{type(error).__name__}: {error}", path=str(options.source),
            remedy="report it with the details", details=traceback.format_exc()[-4000:],
        )  # fmt: skip
        answer = Answer(fault=fault)
    options.answer.write_text(answer.model_dump_json(), encoding="utf-8")
    return 0 if answer.fault is None else 1


if __name__ == "__main__":
    sys.exit(main())
