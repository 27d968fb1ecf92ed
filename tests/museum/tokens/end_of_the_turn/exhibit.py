"""Another end of a turn."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit, damaged
from tests.validate.damage_files import keys

EXHIBIT = Exhibit(
    bug="unslothai/unsloth#5386",
    name="another end of a turn",
    happened="The merge wrote the base's raw end token into tokenizer_config.json in the place of the chat model's: a server never"
    " stopped.",
    mutant="`eos_token` in tokenizer_config.json is another token",
    hall="chat",
    variant="pytorch",
    make=damaged(keys("tokenizer_config.json", eos_token="<|pad|>")),
    check="finding: special tokens",
    words=r"special tokens .* eos_token",
    quick=True,
)
