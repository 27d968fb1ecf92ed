"""The token that a target begins with."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="OpenNMT/CTranslate2#1552",
    name="the token that a target begins with",
    happened="The padding token was taken for the token that targets begin with; MADLAD-400 has another.",
    mutant="`decoder_start_token_id` in generation_config.json is another token",
    hall="translator",
    variant="onnx",
    make=like("files", "a translator's first token"),
    check="finding: special tokens",
    words=r"special tokens|its generation_config",
)
