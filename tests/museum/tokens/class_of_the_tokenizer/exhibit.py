"""Another class of tokenizer."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="thinking-machines-lab/tinker-cookbook#582",
    name="another class of tokenizer",
    happened="Loading and saving a tokenizer with transformers 5 rewrote `tokenizer_class`: eight models' tokenizers could not be"
    " loaded elsewhere.",
    mutant="`tokenizer_class` in tokenizer_config.json is another one",
    hall="chat",
    variant="onnx",
    make=like("files", "another class of tokenizer"),
    check="finding: tokenizer",
    words=r"tokenizer_class is 'BertTokenizer'",
    quick=True,
)
