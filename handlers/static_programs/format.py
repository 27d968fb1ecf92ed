"""The stage `static-programs`, which the formats for phones and small devices need: nothing of it is published."""

from __future__ import annotations

from daemon.contract.formats.declaration import Format
from daemon.contract.formats.stages import MIB, StageSpec

STAGE = "static-programs"


FORMAT = Format(
    name="static-programs",
    about="Programs of fixed sizes, of which the formats for phones and small devices are made.",
    order=85,
    options="handlers.static_programs.options:StaticOptions",
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
