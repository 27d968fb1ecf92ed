"""What the stages of all formats say alike: that a variant can't be made, and that one is hardly smaller than what it was made of."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from daemon.contract.faults.errors import CkptdError, Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import StageContext
from handlers.child import foreign

ENOUGH = 0.8
"""Share of the weights in fewer bits below which a smaller form is worth a warning."""
UNREACHED = "multiplied by an operator that is not quantized, as experts of a mixture are"
"""Why a converter or a quantizer of graphs leaves weights as they are."""
_MOST_OF_WORDS = 400
"""Characters of a library's words in a sentence."""


class NotPossible(Exception):
    """Why a format can't hold a model, as a clause: raised below a stage, which makes `not_possible` of it."""


def not_possible(
    context: StageContext, cause: str, path: Path | str | None = None, *, remedy: str = "", operation: str = ""
) -> Permanent:  # fmt: skip
    """Return the fault `form-not-possible` of a stage whose variant can't be made, to be raised.

    `path`: what it would have been made of. `remedy`, `operation`: in place of "leave STAGE out of export.variants" and "make the variant
    STAGE".
    """
    return Permanent(
        FaultCode.FORM_NOT_POSSIBLE, operation or f"make the variant {context.stage}", cause,
        remedy or f"leave {context.stage} out of export.variants", path=path,
    )  # fmt: skip


@contextlib.contextmanager
def refusing(context: StageContext, what: str, path: Path | str | None = None) -> Iterator[None]:
    """Turn what a library raises inside into `form-not-possible`: `what`, and the first words of its message; that of a
    `NotPossible` alone says it all. Errors of ours and of the machine pass."""
    try:
        yield
    except (CkptdError, OSError, MemoryError):
        raise
    except NotPossible as error:
        raise not_possible(context, str(error), path) from error
    except Exception as error:  # converters and runtimes raise types of their own
        if foreign.of_machine(error):
            raise
        raise not_possible(context, f"{what} ({in_a_line(error)})", path) from error


def in_a_line(error: BaseException) -> str:
    """Return an error's kind and its first words."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:_MOST_OF_WORDS]


def warn_of_little(share: float, why: str, enough: float = ENOUGH) -> list[str]:
    """Return the warning of a smaller form of which no more than `enough` of the weights have fewer bits; none above. `share`: 0 to 1."""
    return [] if share > enough else [f"{1 - share:.0%} of the weights are left as they are, since they are {why}"]
