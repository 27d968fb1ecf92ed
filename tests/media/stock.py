"""Tiny models of pictures and sound by stock transformers and PEFT, and what they answer. Nothing of ckptd is imported.

`python -m tests.media.stock make FAMILY FOLDER [DTYPE]` makes a base, and an adapter with random factors, in FOLDER.
`python -m tests.media.stock answer FAMILY FOLDER PUBLISHED FORM…` writes there what base + adapter (live.npz), the base (base.npz), and the
forms published in the folder PUBLISHED answer, loaded as their users do.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.media.families import FAMILIES, Family

QUESTION = "What is it?"


def make(name: str, folder: Path, dtype: str = "float32") -> None:
    """The checkpoint `run/checkpoint-4`, beside its base `base`."""
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model

    family, base = FAMILIES[name], folder / "base"
    torch.manual_seed(0)
    model = family.make(transformers).eval()
    for key, parameter in model.named_parameters():
        if "norm" in key and key.endswith("weight"):
            torch.nn.init.normal_(parameter, 1.0, 0.2)
    model.to(getattr(torch, dtype)).save_pretrained(base)
    family.processor(base)
    loaded = getattr(transformers, family.auto).from_pretrained(base, dtype=getattr(torch, dtype))
    linear = [key for key, module in loaded.named_modules() if isinstance(module, torch.nn.Linear)]
    targets = [target for target in family.targets if any(f".{key}".endswith(f".{target}") for key in linear)]
    wrapped = get_peft_model(loaded, LoraConfig(r=4, lora_alpha=8, target_modules=targets, init_lora_weights=False))
    checkpoint = folder / "run" / "checkpoint-4"
    wrapped.save_pretrained(checkpoint)
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": 4}))


def answers(name: str, folder: Path, published: Path, *forms: str) -> None:
    """Those of each model into FORM.npz."""
    answer(name, folder / "base", folder / "live.npz", str(folder / "run" / "checkpoint-4"))
    for form in ("base", *forms):
        answer(name, folder / "base" if form == "base" else published / form, folder / f"{form}.npz")


def answer(name: str, folder: Path, output: Path, adapter: str | None = None) -> None:
    """The outputs of a text, of pictures or sounds, and greedy tokens after them, into an .npz file."""
    import torch
    import transformers

    family = FAMILIES[name]
    if (folder / "model.onnx").is_file():
        np.savez(output, **_by_onnxruntime(family, folder))
        return
    model = getattr(transformers, family.auto).from_pretrained(folder)
    processor = _processor(folder)  # always the folder's own: the base's for the live model
    if adapter:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, adapter)
    model.eval()
    answers = {}
    with torch.inference_mode():
        for number in range(2):
            inputs = _inputs(family, processor, folder, number)
            inputs = {key: value.to(model.dtype) if value.is_floating_point() else value for key, value in inputs.items()}
            if name == "whisper":
                answers[f"media-{number}"] = model(**inputs, decoder_input_ids=torch.tensor([[12, 30, 31, 32]])).logits
            else:
                said = model(**inputs)
                answers[f"media-{number}"] = torch.cat([said[key].flatten() for key in _keys(said)])
            if model.can_generate():
                answers[f"tokens-{number}"] = model.generate(**inputs, max_new_tokens=6, do_sample=False)[0, -6:]
        if family.auto == "AutoModelForImageTextToText":
            answers["text"] = model(input_ids=torch.arange(30, 60)[None]).logits
    np.savez(output, **{key: value.float().numpy() for key, value in answers.items()})


def _keys(said: Any) -> tuple[str, ...]:
    """Outputs that are compared."""
    if "image_embeds" in said:
        return "image_embeds", "text_embeds", "logits_per_image"
    return ("logits",) if "logits" in said else ("last_hidden_state",)


def _by_onnxruntime(family: Family, folder: Path) -> dict[str, np.ndarray]:
    """What a graph answers, fed by names with what the processor in its folder gives."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    types, answers = {"tensor(float16)": np.float16, "tensor(float)": np.float32, "tensor(int64)": np.int64}, {}
    for number in range(2):
        given = _inputs(family, _processor(folder), folder, number)
        feeds = {port.name: given[port.name].numpy().astype(types[port.type]) for port in session.get_inputs()}
        said = dict(zip([port.name for port in session.get_outputs()], session.run(None, feeds), strict=True))
        answers[f"media-{number}"] = np.concatenate([said[key].astype(np.float32).ravel() for key in _keys(said)])
    return answers


def _processor(folder: Path) -> Any:
    from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoProcessor

    try:
        return AutoProcessor.from_pretrained(folder)
    except (ImportError, ValueError, TypeError):  # its part for videos needs torchvision, or the folder has no tokenizer
        picture = json.loads((folder / "preprocessor_config.json").read_text())
        auto = AutoImageProcessor if "image_processor_type" in picture else AutoFeatureExtractor
        return auto.from_pretrained(folder)


def _inputs(family: Family, processor: Any, folder: Path, number: int) -> dict[str, Any]:
    random = np.random.default_rng(number)
    if family.media == "audio":
        wave = random.normal(0, 0.3, 12000 + 4000 * number).astype(np.float32)
        return dict(getattr(processor, "feature_extractor", processor)(wave, sampling_rate=16000, return_tensors="pt"))
    from PIL import Image

    image = Image.fromarray(random.integers(0, 256, (80, 120 - 40 * number, 3), np.uint8))
    if not (folder / "tokenizer.json").is_file():
        return dict(processor(images=image, return_tensors="pt"))
    if hasattr(processor, "tokenizer"):
        text = QUESTION
        if processor.chat_template:
            said = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]}]
            text = processor.apply_chat_template(said, add_generation_prompt=True)
        return dict(processor(text=[text], images=[image], return_tensors="pt"))
    return by_hand(processor, folder, image)


def by_hand(pictures: Any, folder: Path, image: Any) -> dict[str, Any]:
    """What the processor of Qwen's models does, whose part for videos can't be loaded."""
    import torch
    from transformers import AutoTokenizer

    inputs = pictures(images=[image], return_tensors="pt")
    mark, count = "<|image_pad|>", int(inputs["image_grid_thw"].prod()) // 4
    tokenizer = AutoTokenizer.from_pretrained(folder)
    said = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]}]
    text = tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False).replace(mark, mark * count)
    words = tokenizer(text, return_tensors="pt")
    kinds = (words["input_ids"] == tokenizer.convert_tokens_to_ids(mark)).to(torch.int64)
    return {**inputs, **words, "mm_token_type_ids": kinds}


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])
    else:
        answers(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), *sys.argv[5:])
    assert not {"daemon", "handlers"} & sys.modules.keys()
