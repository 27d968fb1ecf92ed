"""What rounding the merged weights loses of the adapter's effect: the figure, and the sentence that names the key which keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.contract.jobs.figures import Likeness
from handlers.validate.checks.merge_rounding import lost_share, sentence
from tests.validate.conftest import Validated


def test_the_share_is_the_one_that_stock_peft_and_transformers_give(
    validated: Validated, pico_base: Path, pico_checkpoint: Path, folders: dict[str, Path]
) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(pico_checkpoint)
    base, merged, under = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval() for folder in (pico_base, folders["pytorch"], pico_base)
    )
    live = PeftModel.from_pretrained(under, pico_checkpoint).eval()
    lost = effect = 0.0
    with torch.no_grad():
        for prompt in validated.figures["prompts"]:
            ids = torch.tensor([tokenizer(prompt)["input_ids"]])
            whole = live.generate(ids, max_new_tokens=12, do_sample=False)
            said = live(input_ids=whole).logits
            lost += float((merged(input_ids=whole).logits - said).abs().sum())
            effect += float((base(input_ids=whole).logits - said).abs().sum())
    share = validated.checks["pytorch"].figures["rounding_share"]
    assert share == pytest.approx(lost / effect, rel=0.05)
    assert "rounding_share" not in validated.checks["onnx"].figures


@pytest.mark.parametrize(("dtype", "base", "share"), [
    ("bfloat16", Likeness(error_mean_absolute=0.5), 0.09), ("float16", Likeness(error_mean_absolute=0.5), 0.09),
    ("float32", Likeness(error_mean_absolute=0.5), None), ("bfloat16", None, None), ("bfloat16", Likeness(error_mean_absolute=0.0), None),
    ("bfloat16", Likeness(), None),
])  # fmt: skip
def test_it_is_of_weights_in_16_bits_and_of_an_adapter_that_changes_something(
    dtype: str, base: Likeness | None, share: float | None
) -> None:
    assert lost_share(Likeness(error_mean_absolute=0.045), base, dtype) == (None if share is None else pytest.approx(share))


def test_the_sentence_says_how_much_and_names_the_key() -> None:
    said = sentence(0.09, "bfloat16")
    assert said is not None and said.startswith(
        "rounding the merged weights to bfloat16 changes its outputs by 9% of what the adapter changes"
    )
    assert 'merge.dtype = "float32"' in said
    assert sentence(0.04, "bfloat16") is None and sentence(None, "bfloat16") is None
