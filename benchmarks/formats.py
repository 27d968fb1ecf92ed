"""What it takes to write a model in a format, beside the format's own converter, in turns.

    python benchmarks/formats.py --llama-cpp DIR [--state DIR] [--json FILE] [--rounds 3] [--hidden 1024] [--layers 16]

DIR of `--llama-cpp`: a checkout of llama.cpp, whose `convert_hf_to_gguf.py` is the peer; `--state`: a state directory with the toolchain
`gguf` (`ckptd toolchain install gguf`). A Mistral with random weights in bf16 is written as GGUF in bf16 and q8_0 by both: `seconds` and
`peak_mb` of the process, medians. ckptd's time includes the proof of the tokenizer by llama.cpp, which the peer has not. `equal`: both
files hold the same tensors, by name, type and bytes. `peak_over_weights`: bytes of the process over those of the weights.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common
from daemon.config.settings import Settings
from daemon.toolchains.registry import Toolchains

TYPES = ("bf16", "q8_0")
MAKE = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.gguf import kinds
kinds.KINDS["bench"] = ("Mistral", {options!r})
kinds.make("bench", Path({folder!r}), dtype="bfloat16")
"""
WRITE = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from handlers.gguf.file.model_file import ModelFile
target = Path({target!r})
ModelFile(Path({folder!r}), "bench", target.parent).write({kind!r}, target, lambda done: None)
"""
COMPARE = """
import sys, gguf, numpy
one, other = ({{tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}} for path in {paths!r})
same = one.keys() == other.keys() and all(
    one[name].tensor_type == other[name].tensor_type and numpy.array_equal(one[name].data, other[name].data) for name in one
)
sys.exit(0 if same else 1)
"""


def main() -> None:
    """Make the model, write it in turns, print the table, write the JSON file."""
    parser = _common.parser("What it takes to write a model in a format, beside the format's own converter.")
    parser.add_argument("--llama-cpp", type=Path, required=True, metavar="DIR", help="a checkout of llama.cpp")
    parser.add_argument("--state", type=Path, help="a state directory with the toolchain gguf; default: that of the configuration")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=1024, help="width of the model, a multiple of 64")
    parser.add_argument("--layers", type=int, default=16)
    options = parser.parse_args()
    chain = Toolchains(options.state or Settings().state_directory).get("gguf")
    if chain is None:
        sys.exit("the toolchain gguf is not installed there: ckptd toolchain install gguf")
    taken_on, python = _common.machine(), str(chain.folder / "bin" / "python")
    figures: dict[str, Any] = {}
    with _common.scratch("formats") as folder:
        shape = {
            "sliding_window": None, "head_dim": 64, "hidden_size": options.hidden, "intermediate_size": 4 * options.hidden,
            "num_hidden_layers": options.layers, "num_attention_heads": options.hidden // 64, "num_key_value_heads": options.hidden // 128,
            "initializer_range": 0.02,
        }  # fmt: skip
        model = folder / "model"
        subprocess.run([sys.executable, "-c", MAKE.format(root=str(_common.ROOT), options=shape, folder=str(model))], check=True)
        size = (model / "model.safetensors").stat().st_size
        figures["weights_mb"] = size / 1e6
        # The peer imports torch and transformers, which the toolchain does not have, and gguf, which this Python does not have.
        packages = next(chain.folder.glob("lib/python*/site-packages"))
        environment = {**os.environ, "PYTHONPATH": f"{options.llama_cpp / 'gguf-py'}{os.pathsep}{packages}"}
        for kind in TYPES:
            ours, theirs = folder / f"ckptd-{kind}.gguf", folder / f"peer-{kind}.gguf"
            script = WRITE.format(root=str(_common.ROOT), target=str(ours), folder=str(model), kind=kind)
            peer = [
                sys.executable,
                str(options.llama_cpp / "convert_hf_to_gguf.py"),
                str(model),
                "--outfile",
                str(theirs),
                "--outtype",
                kind,
            ]
            ways = {"ckptd": [python, "-I", "-c", script], "llama.cpp": ["env", f"PYTHONPATH={environment['PYTHONPATH']}", *peer]}
            found = _common.interleaved(ways, options.rounds)
            mine, other = found["ckptd"], found["llama.cpp"]
            compare = [python, "-I", "-c", COMPARE.format(paths=[str(ours), str(theirs)])]
            figures[kind] = {
                **{f"{name}_{key}": value for name, one in found.items() for key, value in one.items()},
                "seconds_ratio": mine["seconds"] / other["seconds"], "peak_ratio": mine["peak_mb"] / other["peak_mb"],
                "peak_over_weights": mine["peak_mb"] * 1e6 / size, "equal": subprocess.run(compare).returncode == 0,
            }  # fmt: skip
    _common.write("formats", figures, options.json, libraries=("torch", "transformers", "safetensors"), taken_on=taken_on)


if __name__ == "__main__":
    main()
