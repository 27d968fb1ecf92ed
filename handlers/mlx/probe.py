"""Probe of the toolchain `mlx`: mlx-lm builds a model of one layer, MLX packs it into 4 bits, and both compute. Runs inside."""

from __future__ import annotations

import argparse

from handlers.toolchains import inside


def probe(options: argparse.Namespace) -> inside.Probed:
    """Run it. Raises whatever is wrong."""
    import mlx.core as mx
    import mlx.nn as nn
    import numpy as np
    from mlx_lm.models import qwen3
    from mlx_lm.models.cache import make_prompt_cache

    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    settings = {"rms_norm_eps": 1e-6, "vocab_size": 64, "max_position_embeddings": 64, "head_dim": 32, "rope_theta": 1e4}
    mx.random.seed(0)
    model = qwen3.Model(qwen3.ModelArgs(model_type="qwen3", tie_word_embeddings=False, **sizes, **settings))
    tokens = mx.array([[3, 1, 4]])
    plain = np.array(model(tokens, cache=make_prompt_cache(model)))
    nn.quantize(model, 64, 4)
    error = float(np.abs(np.array(model(tokens, cache=make_prompt_cache(model))) - plain).max() / plain.std())
    if not 0 < error < 1:
        raise RuntimeError(f"MLX's logits in 4 bits differ by {error} standard deviations from those in fp32")
    return inside.Probed(inside.versions(("mlx", "mlx-lm", "transformers")), error)


if __name__ == "__main__":
    inside.main(argparse.ArgumentParser(description=__doc__), probe)
