"""What `ckptd check` says of the targets of `[[deliver]]`: each is asked whether it can be reached, all at once, for a bounded time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from daemon.config.settings import Settings
from daemon.contract.faults.advice import quoted
from daemon.delivering.asking import LOOK_SECONDS, ask


def problems_of_deliveries(settings: Settings) -> Iterator[str]:
    """Yield what keeps exports from each target now."""
    if not settings.deliver:
        return
    from daemon.contract.delivering.kinds import kinds

    yield from kinds().problems
    with ThreadPoolExecutor(len(settings.deliver)) as pool:
        looks = [pool.submit(ask, target, "look", LOOK_SECONDS, settings.limits.pass_environment) for target in settings.deliver]
        for target, look in zip(settings.deliver, looks, strict=True):
            if (fault := look.result().fault) is not None:
                where = f" ({fault.path})" if fault.path else ""
                yield f"deliver.{target.name} ({target.kind}): {fault.cause}{where}; {fault.remedy}"


def doubts_of_deliveries(settings: Settings) -> Iterator[str]:
    """Yield what may be meant otherwise."""
    for target in settings.deliver:
        missing = [name for name in target.variants if name not in settings.variants]
        if missing:
            yield (
                f"deliver.{target.name}.variants: {quoted(missing[0])} is not in export.variants, so that no export has it unless a run's"
                " own settings name it"
            )
