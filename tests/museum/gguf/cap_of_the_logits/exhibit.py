"""A cap of the logits that is lost."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="NVIDIA-NeMo/Megatron-Bridge#4645",
    name="a cap of the logits that is lost",
    happened="Dense Gemma 4 models lost `final_logit_softcapping`; the most likely token is the same without it.",
    mutant="the file says another cap of the logits",
    hall="gguf Gemma 2",
    variant="gguf-q8_0",
    make=like("gguf", "a cap of the logits"),
    check="finding: structure",
    words=r"its graph is not the model that its own weights give",
)
