"""The stage `static-programs`, which the formats for phones and small devices need: nothing of it is published."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from daemon.contract.formats.declaration import Format
from daemon.contract.formats.stages import MIB, StageSpec
from daemon.contract.values import Frozen

STAGE = "static-programs"


class StaticOptions(Frozen):
    """How large the fixed sizes are."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    context_length: int = Field(default=1024, ge=16, le=131072)
    """Tokens that a model for phones and small devices has room for: prompt and answer together, or one text of an encoder. Fewer if the
    model itself knows fewer. The cache has its full size from the start, so that memory and the time of each token grow with it."""


FORMAT = Format(
    name="static-programs",
    about="Programs of fixed sizes, of which the formats for phones and small devices are made.",
    order=85,
    options=StaticOptions,
    section="static",
    stages=(
        StageSpec(
            STAGE, "handlers.static_programs.stage:run", 1, needs=("merge",),
            about="the merged model as programs of fixed sizes, for the formats of phones and small devices",
            memory_fixed=1200 * MIB, memory_fp32=3.5, disk_fp32=1.1, disk_fixed=64 * MIB, settings=("static.context_length",),
            kv_cache="always", text_only=True,
            libraries=("torch", "transformers", "tokenizers", "sentencepiece"),
        ),
    ),
)  # fmt: skip
