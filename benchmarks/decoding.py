"""Milliseconds a token of the quantized ONNX graphs on top of pasts of different lengths, beside onnxruntime-genai's own graph and torch.

    python benchmarks/decoding.py [--json FILE] [--layers 28] [--hidden 1024] [--vocabulary 151936] [--pasts 64 1024 4096] [--rounds 9]

A Qwen3 with random weights, one thread, one sequence. All graphs run in onnxruntime with their inputs and outputs bound, in turns, one
token at a time: `shared` with past and present in one buffer, where the graph can do that, `copied` without; `cache8` with that buffer in
int8; `basic` is the graph of the standard's operators. `ms_…` are medians of the processor time of a step, which other programs disturb
less than they do the clock's; `over_genai_…` is how many times as fast a graph is as genai's with a shared buffer, `over_basic_…` as the
standard's operators, `over_eager_…` as PyTorch in fp32. `read_share_…` is the share of the time in which the weights could be read from
memory once, at `read_gb_per_second`. Products with 4-bit weights are computed at the accuracy level `--level` in all of them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import onnxruntime

from benchmarks import _common, _stages
from benchmarks.onnx import stage
from daemon.contract.jobs.plan import spec_of
from handlers.onnx.options import OnnxOptions

FORMS = ("onnx-int8", "onnx-int4", "onnx-genai-int4")
PAST, PRESENT = "past_key_values", "present"
WIDTH = 128
"""Of a head."""


class Decoder:
    """One graph, its inputs bound for a step after a past."""

    def __init__(self, path: Path, *, shared: bool) -> None:
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        self.session, self.shared = onnxruntime.InferenceSession(str(path), settings), shared
        self.bytes = sum(one.stat().st_size for one in path.parent.iterdir() if ".onnx" in one.name)

    def bind(self, past: int) -> None:
        """Make ready for a token after `past` others."""
        generator, self.binding = np.random.default_rng(0), self.session.io_binding()
        inputs = {one.name: one for one in self.session.get_inputs()}
        self.caches = {}
        for name, one in inputs.items():
            if name.startswith(PAST):
                room = past + 16 if self.shared else past
                array = generator.standard_normal((1, one.shape[1], room, WIDTH))
                array = array.astype(np.float32) if one.type == "tensor(float)" else (array * 40).clip(-127, 127).astype(np.int8)
                cache = self.caches[name] = onnxruntime.OrtValue.ortvalue_from_numpy(array)
                self.binding.bind_ortvalue_input(name, cache)
                if self.shared:
                    self.binding.bind_ortvalue_output(name.replace(PAST, PRESENT), cache)
                else:
                    self.binding.bind_output(name.replace(PAST, PRESENT), "cpu")
        self.binding.bind_output("logits", "cpu")
        feeds = {"input_ids": [[5]], "attention_mask": [[1] * (past + 1)], "position_ids": [[past]]}
        for name, rows in feeds.items():
            if name in inputs:
                self.binding.bind_cpu_input(name, np.array(rows, np.int64))

    def step(self) -> None:
        """Compute one token; the cache stays as it was, but for one row."""
        self.session.run_with_iobinding(self.binding)


class Eager:
    """The model in PyTorch."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self.torch, self.model = torch, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def bind(self, past: int) -> None:
        """See `Decoder.bind`."""
        with self.torch.inference_mode():
            self.cache = self.model(input_ids=self.torch.full((1, past), 5), use_cache=True, logits_to_keep=1).past_key_values

    def step(self) -> None:
        """See `Decoder.step`."""
        with self.torch.inference_mode():
            self.model(input_ids=self.torch.tensor([[5]]), past_key_values=self.cache, use_cache=True)
        self.cache.crop(-1)


def timed(step: Any) -> float:
    """Milliseconds of processor time."""
    started = time.process_time()
    step()
    return 1000 * (time.process_time() - started)


def reading_speed() -> float:
    """Bytes a second that one thread reads from memory."""
    array = np.ones(1 << 28, np.uint8).view(np.int64)
    array.max()
    return array.nbytes / min(timed(array.max) / 1000 for _ in range(7))


def in_short(figures: dict[str, Any]) -> dict[str, Any]:
    """The figures that others read by name, as far as their pasts were measured: the fp32 caches and shared buffers of the default."""
    wanted = {
        "decode_int8_over_eager": "over_eager_onnx-int8-shared_64", "decode_int4_over_eager": "over_eager_onnx-int4-shared_64",
        "decode_int4_over_genai_4096": "over_genai_onnx-int4-shared_4096",
        "decode_int4_cache8_over_genai_4096": "over_genai_onnx-int4-cache8_4096",
    }  # fmt: skip
    return {name: figures[known] for name, known in wanted.items() if known in figures}


def main() -> None:
    """Measure, print a table, write the JSON file."""
    parser = _common.parser("Milliseconds a token of the quantized ONNX graphs.")
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=151936)
    parser.add_argument("--pasts", type=int, nargs="+", default=[64, 1024, 4096])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--level", type=int, default=4)
    options = parser.parse_args()
    figures = measure(options)
    _common.write("decoding", figures, options.json, libraries=("torch", "onnxruntime", "onnxruntime-genai"))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Make the graphs and time them: with options as of the command line."""
    speed = reading_speed()
    figures: dict[str, Any] = {"read_gb_per_second": round(speed / 1e9, 1)}
    with _common.scratch("decoding") as folder:
        heads = options.hidden // 64
        base = _stages.make_base(
            folder / "base", num_hidden_layers=options.layers, hidden_size=options.hidden, intermediate_size=3 * options.hidden,
            head_dim=WIDTH, num_attention_heads=heads, num_key_value_heads=max(1, heads // 2), vocab_size=options.vocabulary,
            tie_word_embeddings=True, max_position_embeddings=40960,
        )  # fmt: skip
        plain = stage(folder / "onnx", "onnx", {"merge": base}, base)[0]
        decoders: dict[str, Decoder | Eager] = {"eager": Eager(base)}
        for name in FORMS:
            inputs = {need: {"merge": base, "onnx": plain}[need] for need in spec_of(name).needs}
            made = stage(folder / name, name, inputs, base, OnnxOptions(accuracy_level=options.level))[0]
            decoders[f"{name}-shared"] = Decoder(made / "model.onnx", shared=True)
            if "genai" not in name:
                decoders[f"{name}-copied"] = Decoder(made / "model.onnx", shared=False)
                for form, more in (("cache8", {"kv_cache": "int8"}), ("basic", {"optimize": "basic"})):
                    given = OnnxOptions.model_validate({"accuracy_level": options.level, **more})
                    made = stage(folder / f"{name}-{form}", name, inputs, base, given)[0]
                    decoders[f"{name}-{form}"] = Decoder(made / "model.onnx", shared=form == "cache8")
        for past in options.pasts:
            figures |= _at(past, decoders, options.rounds, speed)
    return figures | in_short(figures)


def _at(past: int, decoders: dict[str, Decoder | Eager], rounds: int, speed: float) -> dict[str, Any]:
    times: dict[str, list[float]] = {name: [] for name in decoders}
    for decoder in decoders.values():
        decoder.bind(past)
        decoder.step()
    for _ in range(rounds):
        for name, decoder in decoders.items():
            times[name].append(timed(decoder.step))
    medians = {name: statistics.median(found) for name, found in times.items()}
    figures = {f"ms_{name}_{past}": round(found, 1) for name, found in medians.items()}
    for name, found in medians.items():
        decoder = decoders[name]
        if isinstance(decoder, Eager) or "genai" in name:
            continue
        figures |= {
            f"over_genai_{name}_{past}": round(medians["onnx-genai-int4-shared"] / found, 2),
            f"over_eager_{name}_{past}": round(medians["eager"] / found, 2),
            f"read_share_{name}_{past}": round(1000 * decoder.bytes / speed / found, 2),
        }  # fmt: skip
        if not name.endswith("basic"):
            figures[f"over_basic_{name}_{past}"] = round(medians[f"{name.rpartition('-')[0]}-basic"] / found, 2)
    return figures


if __name__ == "__main__":
    main()
