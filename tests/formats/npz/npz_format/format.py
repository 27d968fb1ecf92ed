"""What the format says of itself."""

from __future__ import annotations

from pathlib import Path

from pydantic import ConfigDict

from daemon.contract.formats.declaration import Format, Limits, Variant
from daemon.contract.formats.thresholds import EXACT, Thresholds
from daemon.contract.values import Frozen

USAGE = Path(__file__).with_name("usage.md")


class NpzOptions(Frozen):
    """How weights become .npz."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    compress: bool = False
    """Deflate the arrays. Smaller, and slow to read."""


FORMAT = Format(
    name="npz",
    about="Weights as arrays of numpy, for whoever has numpy alone.",
    options=NpzOptions,
    section="npz",
    engines={"npz": {"causal": "npz_format.engine:NpzEngine"}},
    variants=(
        Variant(
            "npz", "npz_format.stage:full", 1, about="arrays of numpy in fp32", needs=("merge",), disk_fp32=1.1, settings=("npz",),
            libraries=("numpy",), limits=Limits("npz", cache=1e-3, padding=1e-3, merged=1e-3),
            thresholds=EXACT, traits=frozenset({"cache", "padding"}), usage=USAGE,
        ),
        Variant(
            "npz-coarse", "npz_format.stage:coarse", 1, about="arrays of numpy in steps of a 32nd of each array's largest value",
            needs=("npz",), settings=("npz",), libraries=("numpy",), form_of="npz", level="int8", fallback="npz",
            limits=Limits("npz", cache=1e-3, padding=1e-3),
            thresholds=Thresholds(agreement=0.999, kl=1e-9, error=1e-6), traits=frozenset({"cache", "padding"}), usage=USAGE,
        ),
    ),
    families={"decoders": "compared with base + adapter"},
)  # fmt: skip
