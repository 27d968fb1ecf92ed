"""Deliveries beside the stock tools, after a cut, and from a checkpoint's last byte to a server's answer.

    python benchmarks/delivery.py [--json FILE] [--only hub|store|oci|cut|answer …] [--rounds 5] [--wait 0] [--swaps 0]
        [--s3 PYTHON] [--registry FOLDER --oras PYTHON] [--llama-server PROGRAM --toolchains STATE [--base FOLDER]]

*hub*: `hf upload` (huggingface_hub) beside `python -m handlers.deliver`, both as whole commands to the same local server, which is new and
empty for each; *store*: boto3's transfer manager, as `aws s3 cp` has it, to moto's server (`--s3`: a Python that has moto and boto3);
*oci*: oras (`--oras`: a Python that has it) to Debian's docker-registry (`--registry`: the unpacked packages). Rounds are in turns, of one
export of LARGE bytes in eight files and of one of SMALL files. With `--wait 0.015` each request waits that long, as on its way to a far end
that is not on this machine. `…_over_stock` is the median of the rounds' ratios by the wall. The stock
tools read nothing back and compare nothing: `…_read_back_over_stock` is of our process where it does, as it does unless it is told not to.
`peak_mb` is the largest resident memory, `idle_mb` that of our process which only looks at the same far end.

*cut*: an upload is cut at several places by a proxy; `again_bytes` is what went over the line more than without a cut. docker-registry
gives an upload up that is cut within a chunk, so the file begins anew there; *oci-keeping* is the tests' registry, which keeps what came.
*answer*: a real trainer writes a LoRA of 0.8 M parameters below a watched root; seconds from the last byte of a checkpoint to the answers
of a running llama.cpp server, which are the fine-tuned model's. With `--swaps`, adapters of two
checkpoints are delivered in turns to one such server, each asked after that: `stale` answered otherwise than its own live model.
"""

from __future__ import annotations

import shutil
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common, _far_ends, _llama
from benchmarks._far_ends import FarEnd

LARGE, PIECES = 1_000_000_000, 8
SMALL, SMALL_BYTES = 1000, 4000
CUT_BYTES = 600_000
PARTS = ("hub", "store", "oci", "cut", "answer")
MAKE = """
import sys
from pathlib import Path
from tests.deliver import exports
kind, folder = sys.argv[1], Path(sys.argv[2])
large, small = {f"pytorch/model-{n}.safetensors": int(sys.argv[3]) for n in range(int(sys.argv[4]))}, {
    f"pytorch/code/part-{n}.json": int(sys.argv[6]) for n in range(int(sys.argv[5]))}
exports.make(folder, run=kind, files=large if kind == "large" else small)
"""


def make_export(folder: Path, kind: str, large: int) -> Path:
    """An export of noise, made in a process of its own."""
    words = (kind, str(folder), str(large // PIECES), str(PIECES), str(SMALL), str(SMALL_BYTES))
    _common.run_child(_common.python("-c", MAKE, *words))
    return folder


def beside_stock(far_end: FarEnd, export: Path, rounds: int, folder: Path, wait: float) -> dict[str, float]:
    """Our process without and with reading back, and the stock tool, in turns."""
    rows: dict[str, list[tuple[float, float]]] = {"ours": [], "read_back": [], "stock": [], "idle": []}
    for number in range(rounds + 1):  # the first is not counted: it warms files and code
        for name, samples in rows.items():
            scratch = folder / f"{far_end.kind}-{number}-{name}"
            with _far_ends.running(far_end, scratch, wait) as port:
                if name == "stock":
                    command, variables = far_end.stock_command(port, export), far_end.stock_variables(port, scratch)
                    seconds, peak = _common.run_child(command, env=variables)
                else:
                    rest = {"action": "look"} if name == "idle" else {"export": str(export), "read_back": name == "read_back"}
                    seconds, peak, _ = _far_ends.ours(far_end.order(port, **rest), scratch)
            shutil.rmtree(scratch)
            if number:
                samples.append((seconds, peak / 1e6))
    figures = {
        f"{name}_over_stock": statistics.median(mine[0] / its[0] for mine, its in zip(rows[way], rows["stock"], strict=True))
        for name, way in (("time", "ours"), ("read_back", "read_back"))
    }
    figures |= {f"{name}_s": statistics.median(seconds for seconds, _ in samples) for name, samples in rows.items()}
    figures |= {f"{name}_peak_mb": statistics.median(peak for _, peak in samples) for name, samples in rows.items()}
    figures["mb_beyond_idle"] = max(figures["ours_peak_mb"], figures["read_back_peak_mb"]) - figures["idle_peak_mb"]
    return figures


def after_cuts(kind: str, argument: str, folder: Path) -> dict[str, float]:
    """Bytes that were sent again after a cut, the most of several places, and what a part is."""
    from tests.deliver.contract.bench import Bench
    from tests.deliver.oci.far_end import CHUNK
    from tests.deliver.proxy import Fault, writes

    again, part = list[int](), 0
    for number, share in enumerate((None, 0.1, 0.35, 0.6, 0.85, 0.99)):
        (place := folder / f"cut-{kind}-{number}").mkdir(parents=True)
        (place / "far end").mkdir()
        made = _far_ends.site(kind, place / "far end", argument)
        if kind == "hub":
            made.chunk = made.part = 1 << 16  # type: ignore[attr-defined, misc]
        with made as site:
            bench = Bench(site, place)
            export = bench.export(files={"pytorch/model.safetensors": CUT_BYTES})
            part = CHUNK if kind.startswith("oci") else site.part
            if share is not None:
                big = [0]

                def reached(request: Any, big: list[int] = big, at: float = share, size: int = export.size) -> bool:
                    before, big[0] = big[0], big[0] + request.length
                    return bool(writes(request)) and before <= at * size < big[0]

                bench.proxy.plan(Fault(cut_request=max(1, part // 2)), when=reached)
            receipt = bench.deliver(export).receipt
            assert receipt is not None
            again.append(bench.proxy.sent)
        shutil.rmtree(place)
    return {"again_bytes": max(0, max(again[1:]) - again[0]), "part_bytes": part, "file_bytes": CUT_BYTES, "places": len(again) - 1}


def answers(options: Any, folder: Path) -> dict[str, Any]:
    """Figures of *answer*, with its swaps."""
    program, toolchains = options.llama_server, options.toolchains
    python = _llama.python_of(toolchains)
    base = options.base or _llama.make_base(folder / "base")
    figures: dict[str, Any] = {}
    seconds, parts, exports = _llama.checkpoint_to_answer(program, toolchains, python, base, folder, options.rounds + 1)
    figures["first_checkpoint_to_answer_s"] = seconds[0]
    figures["checkpoint_to_answer_s"] = statistics.median(seconds[1:])
    figures["checkpoint_to_answer_most_s"] = max(seconds[1:])
    figures["checkpoint_to_answer_parts"] = _llama.lasting(parts[1:])
    if options.swaps:
        figures |= _llama.swaps(program, python, base, exports, folder / "swaps", options.swaps)
    return figures


def wanted(options: Any, parser: Any) -> set[str]:
    """The parts that are measured. One whose tool is missing is left out with a sentence; where it was asked for, that is the end."""
    asked = set(options.only or PARTS)
    if options.swaps:
        asked.add("answer")
    needs: dict[str, tuple[tuple[str, Any], ...]] = {
        "hub": (("--hf", shutil.which(options.hf)),), "store": (("--s3", options.s3),),
        "oci": (("--registry", options.registry), ("--oras", options.oras)),
        "answer": (("--llama-server", options.llama_server), ("--toolchains", options.toolchains)),
    }  # fmt: skip
    for part in sorted(asked & needs.keys()):
        if lacking := [name for name, value in needs[part] if not value]:
            said = f"{part} needs {' and '.join(lacking)}"
            if part in (options.only or ()):
                parser.error(said)
            print(f"not measured: {said}", file=sys.stderr)
            asked.discard(part)
    return asked


def main() -> None:
    """Measure, print a table, write the JSON file."""
    parser = _common.parser((__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--wait", type=float, default=0.0, metavar="SECONDS", help="of each request, before the far end gets it")
    parser.add_argument("--large", type=int, default=LARGE, help="bytes of the large export")
    parser.add_argument("--kinds", nargs="+", choices=("large", "small"), default=("large", "small"))
    parser.add_argument("--hf", default=str(Path(sys.executable).parent / "hf"), help="huggingface_hub's command")
    parser.add_argument("--s3", metavar="PYTHON", help="of an environment with moto[server] and boto3")
    parser.add_argument("--registry", metavar="FOLDER", help="Debian's docker-registry and skopeo, unpacked")
    parser.add_argument("--oras", metavar="PYTHON", help="of an environment with oras")
    parser.add_argument("--llama-server", metavar="PROGRAM")
    parser.add_argument("--toolchains", type=Path, metavar="STATE", help="state directory with the toolchain gguf")
    parser.add_argument("--base", type=Path, help="what an earlier run has trained, kept")
    parser.add_argument("--swaps", type=int, default=0)
    options = parser.parse_args()
    asked = wanted(options, parser)
    ends: dict[str, Callable[[], FarEnd]] = {
        "hub": lambda: _far_ends.hub(options.hf), "store": lambda: _far_ends.store(options.s3),
        "oci": lambda: _far_ends.oci(options.registry, options.oras),
    }  # fmt: skip
    figures: dict[str, Any] = {}
    with _common.scratch("delivery") as folder:
        exports = {}
        if asked & ends.keys():
            exports = {kind: make_export(folder / f"export-{kind}", kind, options.large) for kind in options.kinds}
        for name in (name for name in ends if name in asked):
            for kind, export in exports.items():
                figures |= {
                    f"{name}_{kind}_{key}": value
                    for key, value in beside_stock(ends[name](), export, options.rounds, folder, options.wait).items()
                }
        if "cut" in asked:
            arguments = {"hub": "-", "store": options.s3, "oci": options.registry, "oci-keeping": "-"}
            for kind in (kind for kind, argument in arguments.items() if argument):
                figures |= {f"{kind}_cut_{key}": value for key, value in after_cuts(kind, arguments[kind], folder).items()}
        if "answer" in asked:
            figures |= answers(options, folder)
    _common.write("delivery", figures, options.json, libraries=("huggingface_hub", "urllib3", "obstore"))


if __name__ == "__main__":
    main()
