"""A model for which there is no check is refused once, in words that say what can be done."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.contract.faults.errors import Permanent


def test_a_vision_model_has_no_live_reference_and_trying_again_would_not_help(tmp_path: Path) -> None:
    import transformers

    from handlers.validate.engines.pytorch.folder import load_model
    from handlers.validate.engines.task_profile import subject_of

    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48, image_size=32, patch_size=8, num_labels=5
    )
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    with pytest.raises(Permanent, match="a ViTForImageClassification, and ckptd has no check for models of this kind") as caught:
        load_model(tmp_path, subject_of(tmp_path).task)
    assert caught.value.fault.code == "task-unknown" and "validate.publish_unverified" in str(caught.value)
