"""Processors are loaded as their folders describe them, also where the installed packages can't load their part for videos."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.media import stock
from tests.media.families import FAMILIES

PICTURES = [name for name, family in FAMILIES.items() if family.media == "image"]
TYPES = {"qwen2.5-vl": "qwen2_5_vl", "qwen3-vl": "qwen3_vl", "smolvlm": "idefics3", "vit-bare": "vit"}


def described(name: str, folder: Path) -> Path:
    """A folder with a family's processor and no weights."""
    FAMILIES[name].processor(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": TYPES.get(name, name)}))
    return folder


def rewritten(file: Path, **more: Any) -> None:
    before = json.loads(file.read_bytes()) if file.is_file() else {}
    file.write_text(json.dumps(before | more))


@pytest.mark.parametrize("name", PICTURES)
def test_the_processor_of_each_family_prepares_a_picture(name: str, tmp_path: Path) -> None:
    from handlers.validate.engines.media import processors

    processor = processors.load([described(name, tmp_path)], "image")
    inputs = processors.prepared(processor, "image", 0)
    assert inputs["pixel_values"].isfinite().all() and inputs["pixel_values"].std() > 0.1
    assert ("input_ids" in inputs) == (tmp_path / "tokenizer.json").is_file()


@pytest.mark.parametrize("name", ["qwen2.5-vl", "qwen3-vl"])
def test_without_its_part_for_videos_a_processor_prepares_pictures_as_the_whole_does(name: str, tmp_path: Path) -> None:
    from PIL import Image
    from transformers import AutoImageProcessor

    from handlers.validate.engines.media import processors

    still = processors._without_videos(described(name, tmp_path))
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (80, 120, 3), np.uint8))
    said = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": stock.QUESTION}]}]
    mine = still(text=[still.apply_chat_template(said, add_generation_prompt=True)], images=[image], return_tensors="pt")
    theirs = stock.by_hand(AutoImageProcessor.from_pretrained(tmp_path), tmp_path, image)
    assert dict(mine).keys() == theirs.keys()
    assert all((mine[key] == theirs[key]).all() for key in theirs)


def test_without_its_part_for_videos_a_processor_has_the_settings_and_the_chat_template_of_its_folder(tmp_path: Path) -> None:
    from handlers.validate.engines.media import processors

    kind = "LlavaOnevisionProcessor"
    described("llava", tmp_path)
    rewritten(tmp_path / "preprocessor_config.json", image_processor_type="LlavaOnevisionImageProcessor", processor_class=kind)
    rewritten(tmp_path / "processor_config.json", processor_class=kind, num_image_tokens=7, vision_feature_select_strategy="full")
    rewritten(tmp_path / "config.json", model_type="llava_onevision")
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "{{ 'of the folder' }}"}))  # as hubs' older folders have it
    still = processors._without_videos(tmp_path)
    assert (type(still).__mro__[1].__name__, still.num_image_tokens, still.vision_feature_select_strategy) == (kind, 7, "full")
    assert still.chat_template == "{{ 'of the folder' }}" and still.video_processor is None
