"""Whether a model reads pictures or sound, by config.json alone."""

from __future__ import annotations

from typing import Literal

from daemon.contract.values import Json

Media = Literal["image", "audio"]
NOUNS = {"image": "pictures", "audio": "sound"}


def media_of(config: Json) -> Media | None:
    """Return what a model reads beside text, or instead of it, by the keys that transformers' configurations of such models have.

    Towers have a configuration of their own (`vision_config`, `audio_config`). Bare encoders of pictures have sizes of them and no
    vocabulary (BEiT counts its codes under that name, beside `use_mean_pooling`); of sounds, a number of mel bins (Whisper, AST), strides
    of convolutions (Wav2Vec2 and its relatives), or the width of features (Wav2Vec2-BERT).
    """
    if isinstance(config.get("vision_config"), dict):
        return "image"
    if isinstance(config.get("audio_config"), dict) or isinstance(config.get("conv_stride"), list):
        return "audio"
    if "num_mel_bins" in config or "feature_projection_input_dim" in config:
        return "audio"
    bare = "vocab_size" not in config or "use_mean_pooling" in config
    return "image" if bare and ("image_size" in config or "num_channels" in config) else None
