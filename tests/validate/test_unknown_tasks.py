"""A model for which there is no check is refused once, in words that say what can be done."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.contract.faults.errors import Permanent
from daemon.contract.values import Json
from handlers.models.tasks import task_of_config


def test_a_model_that_finds_objects_has_no_live_reference_and_trying_again_would_not_help(tmp_path: Path) -> None:
    import transformers

    from handlers.validate.engines.pytorch.folder import load_model
    from handlers.validate.engines.task_profile import subject_of

    config = transformers.YolosConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48, image_size=[32, 32], patch_size=8, num_labels=5
    )
    transformers.YolosForObjectDetection(config).save_pretrained(tmp_path)
    with pytest.raises(Permanent, match="a YolosForObjectDetection, and ckptd has no check for models of this kind") as caught:
        load_model(tmp_path, subject_of(tmp_path).task)
    assert caught.value.fault.code == "task-unknown" and "validate.publish_unverified" in str(caught.value)


MADE_UP = [
    ({"vision_config": {}, "architectures": ["Qwen2_5_VLForConditionalGeneration"]}, "image-text-to-text"),
    (
        {"num_mel_bins": 80, "is_encoder_decoder": True, "architectures": ["WhisperForConditionalGeneration"]},
        "automatic-speech-recognition",
    ),
    ({"image_size": 224, "architectures": ["ViTModel"]}, "image-feature-extraction"),
    ({"image_size": 224, "architectures": ["Dinov2ForImageClassification"]}, "image-classification"),
    ({"vision_config": {}, "text_config": {}, "architectures": ["CLIPModel"]}, "image-feature-extraction"),
    ({"conv_stride": [5], "vocab_size": 32, "architectures": ["Wav2Vec2ForSequenceClassification"]}, "audio-classification"),
    ({"conv_stride": [5], "vocab_size": 32, "architectures": ["Wav2Vec2ForCTC"]}, "audio-ctc"),
    ({"is_encoder_decoder": True, "architectures": ["T5ForConditionalGeneration"]}, "text2text-generation"),
    ({"is_encoder_decoder": True, "architectures": ["BartForSequenceClassification"]}, "text-classification"),
    ({"vocab_size": 99, "num_channels": 3, "architectures": ["LayoutLMv3ForTokenClassification"]}, "token-classification"),
    ({"architectures": ["LlamaForCausalLM"]}, "text-generation"),
    ({"is_encoder_decoder": True, "num_mel_bins": 80, "architectures": ["WhisperModel"]}, None),
    ({"is_encoder_decoder": True, "architectures": ["T5Model"]}, None),
]


@pytest.mark.parametrize(("config", "name"), MADE_UP, ids=lambda value: value["architectures"][0] if isinstance(value, dict) else "")
def test_what_a_model_reads_is_known_from_its_configuration(config: Json, name: str | None) -> None:
    task = task_of_config(config)
    assert (task.name if task else None) == name
