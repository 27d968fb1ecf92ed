"""Probe of the toolchain `gguf`: llama.cpp loads a file that the package gguf wrote, and computes and quantizes it. Runs inside."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from handlers.toolchains import inside

WIDTH, HEADS, WORDS = 256, 4, 64


def probe(options: argparse.Namespace) -> inside.Probed:
    """Run a model of one layer. Raises whatever is wrong."""
    import numpy as np

    from handlers.gguf.llama import library

    with tempfile.TemporaryDirectory() as folder:
        plain, small = Path(folder, "plain.gguf"), Path(folder, "small.gguf")
        _write(plain)
        library.quantize(plain, small, "Q8_0", 1, {})
        logits = []
        for path in (plain, small):
            with library.Model(path) as model:
                context = library.Context(model, 256, 1, 1)
                logits.append(context.run([(token, place, 0) for place, token in enumerate((3, 1, 4))]))
                context.close()
    error = float(np.abs(logits[0] - logits[1]).max())
    if not 0 < error < 0.1 * float(logits[0].std()):
        raise RuntimeError(f"llama.cpp's logits in Q8_0 differ by {error} from those in fp32")
    return inside.Probed(inside.versions(("llama_cpp_python", "gguf", "tokenizers")), error)


def _write(path: Path) -> None:
    import gguf
    import numpy as np

    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_block_count(1)
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(WORDS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"t{number}" for number in range(WORDS)])
    writer.add_token_types([gguf.TokenType.NORMAL] * WORDS)
    writer.add_token_merges(["t 0"])
    shapes = {
        **{f"blk.0.attn_{part}.weight": (WIDTH, WIDTH) for part in ("q", "k", "v", "output")},
        **{f"blk.0.ffn_{part}.weight": (WIDTH, WIDTH) for part in ("gate", "up", "down")},
        "token_embd.weight": (WORDS, WIDTH), "output.weight": (WORDS, WIDTH),
    }  # fmt: skip
    for name, shape in shapes.items():
        writer.add_tensor(name, random.normal(size=shape).astype(np.float32) / 16)
    for name in ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"):
        writer.add_tensor(name, np.ones(WIDTH, np.float32))
    for part in ("q", "k", "v"):
        writer.add_tensor(f"blk.0.attn_{part}.bias", np.zeros(WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    inside.main(argparse.ArgumentParser(description=__doc__), probe)
