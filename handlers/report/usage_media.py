"""The example of a model that reads pictures or sound: a program that prepares a file by the model's own processor."""

from __future__ import annotations

from handlers.models.tasks import Task

_OPEN = {
    "image": ("from PIL import Image", 'image = Image.open("picture.png").convert("RGB")'),
    "audio": ("import soundfile", 'sound, rate = soundfile.read("sound.wav", dtype="float32")  # one channel'),
}
OPENERS = {"image": ("pillow", "torchvision"), "audio": ("soundfile",)}
"""Packages that open a file and prepare it."""
_ASKED = 'text = "Describe it."'
_NAMES = 'for name, value in output.items():\n    print(name, getattr(value, "shape", ""))'


def example(task: Task, folder: str, loading: str = "", spoken: bool = True) -> str:
    """Return the program, without the fence around it.

    `loading`: further arguments of `from_pretrained`. `spoken`: the processor has a tokenizer.
    """
    assert task.media is not None
    library, opened = _OPEN[task.media]
    loader = "AutoProcessor" if spoken else {"image": "AutoImageProcessor", "audio": "AutoFeatureExtractor"}[task.media]
    lines = [library, "import torch", f"from transformers import {task.auto}, {loader}", "", f'folder = "{folder}"']
    lines += [f"processor = {loader}.from_pretrained(folder)"]
    lines += [f'model = {task.auto}.from_pretrained(folder, dtype="auto"{loading})', "", opened]
    given = "images=image" if task.media == "image" else "sound, sampling_rate=rate"
    if task.kind == "causal":
        content = '{"type": "image", "image": image}' if task.media == "image" else '{"type": "audio", "audio": sound}'
        lines += [f'messages = [{{"role": "user", "content": [{content}, {{"type": "text", "text": "Describe it."}}]}}]']
        template = 'messages, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"'
        lines += [f"inputs = processor.apply_chat_template({template})"]
    elif task.name == "image-feature-extraction" and spoken:
        lines += [_ASKED, f'inputs = processor(text=[text], {given}, return_tensors="pt", padding=True)']
    else:
        lines += [f'inputs = processor({given}, return_tensors="pt")']
    lines += ["inputs = inputs.to(model.device, dtype=model.dtype)"]
    if task.kind == "encoder":
        lines += ["with torch.inference_mode():", "    output = model(**inputs)", _NAMES]
    else:
        start = ', inputs["input_ids"].shape[1] :' if task.kind == "causal" else ""
        lines += ["output = model.generate(**inputs, max_new_tokens=32, do_sample=False)"]
        lines += [f"print(processor.decode(output[0{start}], skip_special_tokens=True))"]
    return "\n".join(lines)
