"""A trained head that is not merged."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import Tensors, from_base


def _base_head(tensors: Tensors, base: Tensors) -> None:
    tensors["lm_head.weight"] = base["model.embed_tokens.weight"]


EXHIBIT = Exhibit(
    bug="unslothai/unsloth-zoo#369",
    name="a trained head that is not merged",
    happened="What `modules_to_save` had trained, `lm_head` and the embedding, was left out of the merged model, which kept the base's.",
    mutant="`lm_head` is the base's embedding",
    hall="tied, head and embedding trained",
    variant="pytorch",
    make=from_base(_base_head),
    check="share of the fine-tuning",
    words=r"the share of the fine-tuning's effect",
    merge=True,
)
