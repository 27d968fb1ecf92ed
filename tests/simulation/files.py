"""Tiny checkpoints of an adapter, made by hand so that thousands of them cost seconds."""

from __future__ import annotations

import json
import random
import struct

BLOCK = 4096
WEIGHTS = "adapter_model.safetensors"
STATE = "trainer_state.json"
ORDER = ("README.md", WEIGHTS, "adapter_config.json", "tokenizer.json", "training_args.bin", "optimizer.pt", "rng_state.pth", STATE)
"""As transformers' Trainer writes them."""
TRAINERS_OWN = ("training_args.bin", "optimizer.pt", "rng_state.pth", STATE)
"""Those that tell a Trainer's checkpoint from an adapter that was saved by hand, which has no last file."""


def make_weights(rng: random.Random) -> bytes:
    """A safetensors file of one tensor of three to five blocks, no byte of it zero."""
    length = rng.randint(3 * BLOCK, 5 * BLOCK)
    header = json.dumps({"lora": {"dtype": "U8", "shape": [length], "data_offsets": [0, length]}}).encode()
    return struct.pack("<Q", len(header)) + header + rng.randbytes(length).replace(b"\0", b"\1")


def make_checkpoint(rng: random.Random, step: int) -> dict[str, bytes]:
    """All files of one save, by name."""
    noise = rng.randbytes(200).hex()
    return {
        "README.md": b"an adapter\n" * 5,
        WEIGHTS: make_weights(rng),
        "adapter_config.json": json.dumps({"peft_type": "LORA", "r": 8, "base_model_name_or_path": "pico", "noise": noise[:40]}).encode(),
        "tokenizer.json": json.dumps({"version": "1.0", "noise": noise}).encode(),
        "training_args.bin": rng.randbytes(300),
        "optimizer.pt": rng.randbytes(500),
        "rng_state.pth": rng.randbytes(100),
        STATE: make_state(rng, step),
    }


def make_state(rng: random.Random, step: int) -> bytes:
    """trainer_state.json of a step with some loss."""
    return json.dumps({"global_step": step, "epoch": 1.0, "log_history": [{"step": step, "loss": round(rng.random(), 4)}]}).encode()
