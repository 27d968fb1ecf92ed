"""Ray's words: why an actor died, and why one waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from daemon.running.cluster.port import Ending

_ENDINGS = (
    ("preempted", Ending.PREEMPTED),
    ("killed by `ray.kill`", Ending.CANCELLED),
    ("running low on memory", Ending.OUT_OF_MEMORY),
    ("its node has died", Ending.NODE_LOST),
    ("node died", Ending.NODE_LOST),
    ("node was terminated", Ending.NODE_LOST),
)
"""What a death's sentences have in them; the first that fits decides."""
_NAMES = {"CPU": "CPUs", "GPU": "GPUs"}


def ending_of(cause: str) -> Ending:
    """Why an actor died, by Ray's sentences; ENDED where they say nothing of that."""
    lowered = cause.lower()
    return next((ending for words, ending in _ENDINGS if words in lowered), Ending.ENDED)


def reason_to_wait(asked: Mapping[str, float] | None, free: Mapping[str, float], machines: Sequence[Mapping[str, float]]) -> str:
    """Why an actor waits. `asked`: what it needs, None where that is not known. `machines`: what each has in all."""
    if asked is None:
        return "it waits for what it needs to be free"
    if not machines:
        return "the cluster has no machine"
    needed = {name: amount for name, amount in asked.items() if amount > 0}
    if not any(all(machine.get(name, 0) >= amount for name, amount in needed.items()) for machine in machines):
        return f"no machine of the cluster has {_listed(needed)}"
    scarce = [name for name, amount in needed.items() if free.get(name, 0) < amount]
    if not scarce:
        return f"no machine has {_listed(needed)} free, or it is just starting"
    counts = ", ".join(f"{_amount(name, free.get(name, 0))} of {_total(name, machines)} free" for name in scarce)
    return f"waits for {_listed({name: needed[name] for name in scarce})} ({counts})"


def _listed(amounts: Mapping[str, float]) -> str:
    return " and ".join(_measured(name, amount) for name, amount in amounts.items())


def _measured(name: str, amount: float) -> str:
    return f"{_amount(name, amount)} of memory" if name == "memory" else f"{_amount(name, amount)} {_NAMES.get(name, name)}"


def _amount(name: str, amount: float) -> str:
    return f"{amount / (1 << 20):,.0f} MiB" if name == "memory" else f"{amount:g}"


def _total(name: str, machines: Sequence[Mapping[str, float]]) -> str:
    return _amount(name, sum(machine.get(name, 0) for machine in machines))
