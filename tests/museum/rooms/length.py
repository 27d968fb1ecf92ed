"""Faults that only long texts show."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBITS = {
    "long_factors_lost": Exhibit(
        bug="ggml-org/llama.cpp#24820",
        name="the factors of long texts",
        happened="The factors of LongRoPE were read under their old name alone and left out without a word.",
        mutant="the factors of long texts are never taken",
        hall="long longrope",
        variant="onnx",
        make=like("length", "long factors never taken"),
        check="long text",
        words=r"long text",
    ),
    "overflow": Exhibit(
        bug="huggingface/transformers#19229",
        name="an overflow in long texts",
        happened="In fp16 the hidden states of long inputs became infinite.",
        mutant="logits are infinite from position 300 on",
        hall="long qwen3",
        variant="onnx-fp16",
        make=like("length", "overflow from 300 on"),
        check="finding: length",
        words=r"not finite, from position 3",
    ),
    "scaling_lost": Exhibit(
        bug="ggml-org/llama.cpp#2772",
        name="the scale of the rotary positions",
        happened="The converter did not read `rope_scaling`: a model for 16k tokens wrote nonsense.",
        mutant="config.json says `rope_type` default",
        hall="long linear",
        variant="pytorch",
        make=like("length", "scaling lost in the settings"),
        check="finding: config",
        words=r"rope_type",
    ),
    "window_ignored": Exhibit(
        bug="unslothai/unsloth#8253",
        name="no window",
        happened="A path of attention was never given the window: every token saw the whole text.",
        mutant="the window of the graph is a million tokens",
        hall="long mistral",
        variant="onnx-int8",
        make=like("length", "window ignored"),
        check="long text",
        words=r"long text",
    ),
    "window_off_by_one": Exhibit(
        bug="huggingface/transformers#39408",
        name="a window that is one too large",
        happened="With flash attention each token saw one token more than its sliding window has.",
        mutant="the window of the graph is one token larger",
        hall="long mistral",
        variant="onnx",
        make=like("length", "window one too large"),
        check="limit: merged",
        words=r"long text",
    ),
}
