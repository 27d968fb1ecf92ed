"""pytorch-w8a8 and pytorch-w4a16: what compressed-tensors unpacks is what was computed, and errors are corrected by what the layers get."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Verdict
from tests import models
from tests.merge import helpers
from tests.onnx import qwen
from tests.pytorch.forms import gpt2, loaded, make
from tests.sampling import some
from tests.validate import zoo
from tests.validate.bench import Bench

LAYER = "model.layers.1.mlp.down_proj"
IDS = list(range(2, 34))


def said(folder: Path) -> dict[str, Any]:
    """The quantization_config of a folder."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())["quantization_config"]
    return config


def unpacked(table: dict[str, Any], tensor: str, dtype: str = "bfloat16") -> Any:
    """The weight that a folder's numbers mean, by this test's own arithmetic, multiplied in `dtype`."""
    import torch

    scales = table[f"{tensor}_scale"].to(getattr(torch, dtype))
    if tensor in table:
        return table[tensor].to(scales.dtype) * scales
    words = table[f"{tensor}_packed"]
    values = torch.stack([(words >> (4 * place)) & 15 for place in range(8)], dim=-1).view(len(words), -1) - 8
    assert list(values.shape) == table[f"{tensor}_shape"].tolist()
    return (values.to(scales.dtype).view(*scales.shape, -1) * scales[..., None]).view(values.shape)


SOURCES: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "tied decoder": ("AutoModelForCausalLM", lambda folder: models.make_base(folder)),
    "decoder with biases": ("AutoModelForCausalLM", lambda folder: qwen.make(folder, "Qwen2", tie_word_embeddings=False)),
    "encoder": ("AutoModelForMaskedLM", lambda folder: zoo.make_encoder_base(folder, "AutoModelForMaskedLM")),
}
CASES = [(name, variant) for name in SOURCES for variant in ("pytorch-w4a16", "pytorch-w8a8")]


@pytest.mark.parametrize(("name", "variant"), some(CASES, 5))
def test_transformers_unpacks_the_weights_that_were_written(name: str, variant: str, tmp_path: Path) -> None:
    import torch

    auto, source = SOURCES[name]
    model = source(tmp_path / "model")
    folder, output = make(variant, model, tmp_path / "work", error_correction=False)
    table = helpers.stored(folder)
    quantized = [key.removesuffix("_scale") for key in table if key.endswith("_scale")]
    assert len(quantized) == output.figures["quantized_layers"] > 0
    theirs, ours = loaded(folder, auto), loaded(model, auto, dtype=torch.bfloat16)
    for tensor in quantized:
        ours.get_parameter(tensor).data = unpacked(table, tensor)
    if variant == "pytorch-w8a8":  # activations are rounded there, and not in a plain layer
        assert all(torch.equal(ours.get_parameter(tensor), unpacked(table, tensor)) for tensor in quantized)
        error = (theirs(torch.tensor([IDS]))[0] - ours(torch.tensor([IDS]))[0]).float().abs().max()
        assert 0 < error < 0.5 * ours(torch.tensor([IDS]))[0].float().std()
    else:
        with torch.inference_mode():
            assert torch.equal(theirs(torch.tensor([IDS]))[0], ours(torch.tensor([IDS]))[0])


@pytest.mark.parametrize("variant", some(["pytorch-w4a16", "pytorch-w8a8"], 2))
def test_the_output_head_the_embeddings_and_ties_stay_as_they_are(variant: str, tmp_path: Path) -> None:
    import torch

    for tied in (True, False):
        root = tmp_path / str(tied)
        source = models.make_base(root / "model", tie_word_embeddings=tied)
        folder, _ = make(variant, source, root / "work", error_correction=False)
        before, after = helpers.stored(source), helpers.stored(folder)
        assert said(folder)["ignore"] == ["lm_head"] and ("lm_head.weight" in after) == (not tied)
        for name in ("model.embed_tokens.weight", *(() if tied else ("lm_head.weight",))):
            assert torch.equal(before[name], after[name])


def test_weights_are_the_nearest_of_their_scales(tmp_path: Path) -> None:

    source = models.make_base(tmp_path / "model")
    exact = helpers.stored(source)[f"{LAYER}.weight"].float()
    for variant, most in (("pytorch-w8a8", 127), ("pytorch-w4a16", 7)):
        folder, _ = make(variant, source, tmp_path / variant, error_correction=False)
        table = helpers.stored(folder)
        scales = table[f"{LAYER}.weight_scale"].float()
        error = (unpacked(table, f"{LAYER}.weight", "float32") - exact).view(*scales.shape, -1) / scales[..., None]
        within = (exact.view(*scales.shape, -1) / scales[..., None]).abs() <= most
        assert float(error.abs()[within].max()) < 0.5001 and float(within.float().mean()) > 0.95


def test_answers_are_compared(live: Bench, tmp_path: Path) -> None:
    folder, _ = make("pytorch-w8a8", live.merged, tmp_path)
    check = live.check("pytorch-w8a8", folder)
    assert check.verdict is Verdict.PASSED, check.reasons


def test_group_sizes_are_made_smaller_where_they_must_and_odd_layers_stay_in_16_bits_and_are_told(tmp_path: Path) -> None:
    source = models.make_base(tmp_path / "model", hidden_size=64, intermediate_size=128 + 32)
    folder, output = make("pytorch-w4a16", source, tmp_path / "work", error_correction=False)
    assert output.figures["group_sizes"] == {"32": 2, "64": 12}
    groups = said(folder)["config_groups"]
    assert [one["weights"]["group_size"] for one in groups.values()] == [64, 32]
    assert groups["group_0"]["targets"] == ["Linear"]
    assert groups["group_1"]["targets"] == [f"model.layers.{layer}.mlp.down_proj" for layer in (0, 1)]
    assert not output.warnings and loaded(folder) is not None
    odd = models.make_base(tmp_path / "odd", intermediate_size=100)
    folder, output = make("pytorch-w4a16", odd, tmp_path / "odd-work", error_correction=False)
    assert "2 linear layers stay in 16 bits, since their sizes do not fit pytorch-w4a16, for example model.layers.0.mlp.down_proj" in (
        output.warnings
    )
    assert "model.layers.1.mlp.down_proj" in said(folder)["ignore"] and loaded(folder) is not None
    folder, output = make("pytorch-w4a16", source, tmp_path / "small", error_correction=False, group_size=32)
    assert output.figures["group_sizes"] == {"32": 14}


def test_errors_are_corrected_by_texts_that_nothing_is_compared_on(live: Bench, tmp_path: Path) -> None:
    """Measured as it is used: the divergence from the live model over all tokens of its prompts."""
    plain, _ = make("pytorch-w4a16", live.merged, tmp_path / "plain", error_correction=False)
    folder, output = make("pytorch-w4a16", live.merged, tmp_path / "corrected")
    assert output.figures["corrected_layers"] == output.figures["quantized_layers"] == 14 and not output.fallbacks
    assert output.figures["calibration_texts"] >= 20 and output.figures["calibration_tokens"] > 500
    corrected, nearest = (live.examine("pytorch-w4a16", one).figures.kl for one in (folder, plain))
    assert corrected is not None and nearest is not None and corrected < 0.8 * nearest, (corrected, nearest)


def test_no_text_that_is_compared_on_is_calibrated_with(pico_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer

    from handlers.pytorch.quantize import calibration

    lines = [f"text number {number % 9}, which is used" for number in range(20)]  # each twice and more
    (tmp_path / "prompts.txt").write_text("\n".join(lines) + "\n")
    context = helpers.context(tmp_path / "work", pico_base, None, method="full", merge=pico_base)
    validation = context.work.validation.model_copy(update={"prompts": str(tmp_path / "prompts.txt"), "samples": 5})
    context = context.model_copy(update={"work": context.work.model_copy(update={"validation": validation})})
    rows = calibration.token_rows(context, 8)
    texts = [AutoTokenizer.from_pretrained(pico_base).decode(row) for row in rows]
    assert set(lines[5:9]) <= set(texts) and not set(lines[:5]) & set(texts)


@pytest.mark.parametrize("readable", [True, False])
def test_a_model_that_is_not_walked_through_is_rounded_to_nearest_and_that_is_told(readable: bool, tmp_path: Path) -> None:
    import torch

    if readable:
        source = zoo.make_encoder_base(tmp_path / "model", "AutoModelForMaskedLM", hidden_size=64, intermediate_size=128)
        why = "its quantized layers do not lie in one list of equal layers"
    else:
        source, why = models.make_base(tmp_path / "model"), "there is no tokenizer"
        for file in source.glob("*token*"):
            file.unlink()
    folder, output = make("pytorch-w4a16", source, tmp_path / "work")
    (fallback,) = output.fallbacks
    assert fallback.wanted == "rounding with its errors corrected (GPTQ)" and why in fallback.reason
    assert "rounding to nearest in" in fallback.taken and output.figures["corrected_layers"] == 0
    plain, _ = make("pytorch-w4a16", source, tmp_path / "plain", error_correction=False)
    first, second = helpers.stored(folder), helpers.stored(plain)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("variant", some(["pytorch-w8a8", "pytorch-w4a16"], 2))
def test_what_compressed_tensors_can_not_hold_is_refused_with_what_to_use(variant: str, tmp_path: Path) -> None:
    refused = {
        "Conv1D": gpt2(tmp_path / "gpt2"),
        "beside experts that are stored one by one": qwen.make(tmp_path / "moe", "Qwen3Moe"),
        "can't generate with an encoder-decoder": zoo.make_seq2seq_base(tmp_path / "t5", "t5"),
    }
    for number, (why, source) in enumerate(refused.items()):
        with pytest.raises(Permanent) as raised:
            make(variant, source, tmp_path / str(number))
        assert raised.value.fault.code == FaultCode.FORM_NOT_POSSIBLE and why in raised.value.fault.sentence()
        assert f"use pytorch-bnb-int8 or pytorch-bnb-nf4, and leave {variant} out" in raised.value.fault.sentence()


def test_a_weight_that_is_not_a_number_is_refused_by_its_name(tmp_path: Path) -> None:
    source = models.make_base(tmp_path / "model")
    helpers.rewrite(source / "model.safetensors", lambda table: table[f"{LAYER}.weight"].view(-1)[3].fill_(float("nan")))
    with pytest.raises(Permanent, match="it holds NaN or infinity") as raised:
        make("pytorch-w8a8", source, tmp_path / "work")
    assert raised.value.fault.code == FaultCode.NOT_FINITE and f"{LAYER}.weight" in raised.value.fault.sentence()


MEMORY = """
import resource, sys
from pathlib import Path
import torch
from tests.pytorch.forms import make
figures = []
for place in (1, 3):
    make(sys.argv[1 + place], Path(sys.argv[1 + place + 1]), Path(sys.argv[1]) / str(place))
    figures.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(figures[1] - figures[0])
"""


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["pytorch-w4a16", "pytorch-w8a8", "pytorch-bnb-nf4"])
def test_memory_does_not_grow_with_the_number_of_layers(variant: str, tmp_path: Path) -> None:
    """6 layers of 9 MB in fp32 more, and embeddings of 32,000 rows (66 MB) in place of 320."""
    sizes = {"hidden_size": 512, "intermediate_size": 1024}
    small = models.make_base(tmp_path / "small", num_hidden_layers=2, **sizes)
    large = models.make_base(tmp_path / "large", num_hidden_layers=8, vocab_size=32_000, **sizes)
    arguments = [str(tmp_path), variant, str(small), variant, str(large)]
    done = subprocess.run([sys.executable, "-c", MEMORY, *arguments], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 60_000, f"{done.stdout} KiB more"
