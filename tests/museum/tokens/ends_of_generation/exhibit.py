"""An end token of generation_config.json."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="hiyouga/EasyR1#11007",
    name="an end token of generation_config.json",
    happened="The merge made generation_config.json anew of config.json, which has a single end token: texts no longer ended at"
    " `<|im_end|>`.",
    mutant="generation_config.json has another end",
    hall="chat",
    variant="onnx",
    make=like("files", "another end"),
    check="finding: generation",
    words=r"its generation_config.json is not the checkpoint's: eos_token_id",
    quick=True,
)
