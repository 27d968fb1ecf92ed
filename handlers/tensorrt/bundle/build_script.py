"""build.sh: the same as build.py by NVIDIA's program trtexec, which TensorRT's archives and containers bring.

Called by the stages of the bundle.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from daemon.contract.values import Json

NAME = "build.sh"
_HEAD = r"""#!/usr/bin/env bash
# Builds the engines of this folder with trtexec, for the sizes in profiles.json.
#
#     bash build.sh [@PRECISIONS@]
#
# TRTEXEC names the program, where it is not in PATH (/usr/src/tensorrt/bin/trtexec in NVIDIA's containers). Writes engines/ with a log of
# each build. Exit code 0, 1: trtexec could not build a graph, 2: it can't be started, or can't do what was asked.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"

fail() {
  printf 'build.sh: %s\n' "$2" >&2
  exit "$1"
}

precision="${1:-@DEFAULT@}"
trtexec="${TRTEXEC:-trtexec}"
words="@WORDS@"
case " $words " in
  *" $precision "*) ;;
  *) fail 2 "the precision can't be $precision; it is one of: $words." ;;
esac
command -v -- "$trtexec" >/dev/null || fail 2 "$trtexec is not found: install TensorRT, or set TRTEXEC to its trtexec."
help="$("$trtexec" --help 2>&1 || true)"

knows() {
  [[ "$help" == *"$1"* ]]
}

flags=()
case "$precision" in
  fp32) if knows --noTF32; then flags+=(--noTF32); fi ;;
  tf32) ;;
@HALVES@
esac
for flag in --skipInference --buildOnly; do
  if knows "$flag"; then
    flags+=("$flag")
    break
  fi
done
if knows --timingCacheFile; then flags+=(--timingCacheFile=engines/timing.cache); fi
mkdir -p engines
rm -f engines/built.json

build() {
  local graph="$1" engine="engines/$2" log="engines/$2.log"
  shift 2
  printf 'building %s ...\n' "$engine"
  if ! "$trtexec" "--onnx=$graph" "--saveEngine=$engine.part" ${flags[@]+"${flags[@]}"} "$@" >"$log" 2>&1; then
    fail 1 "trtexec can't build $graph: $(grep -m 1 -F '[E]' "$log" || tail -n 1 "$log") (see $log)"
  fi
  [[ -s "$engine.part" ]] || fail 1 "trtexec left no engine of $graph (see $log)"
  mv -- "$engine.part" "$engine"
}

"""
_TYPED = "  fp16) if knows --stronglyTyped; then flags+=(--stronglyTyped); fi ;;"
_FLAGS = r"""  fp16 | bf16)
    knows "--$precision" || fail 2 "this trtexec takes a graph's types as they are, and these graphs are in fp32: for fp16 use the folder \
tensorrt-bundle-fp16 instead; for bf16 convert the graphs with python -m modelopt.onnx.autocast --low_precision_type bf16 first."
    flags+=("--$precision")
    ;;"""
_TAIL = r"""
printf '{"library": "trtexec", "precision": "%s"}\n' "$precision" >engines/built.json
printf 'The engines are in engines; python verify.py compares them with what the model says.\n'
"""


def script(known: Json) -> str:
    """The script for what profiles.json says."""
    plain = known["dtype"] == "float32"
    words = ("fp32", "tf32", "fp16", "bf16") if plain else ("fp16",)
    head = _HEAD.replace("@HALVES@", _FLAGS if plain else _TYPED)
    for mark, text in (("@PRECISIONS@", "|".join(words)), ("@WORDS@", " ".join(words)), ("@DEFAULT@", words[0])):
        head = head.replace(mark, text)
    builds = [" \\\n  ".join([f"build {shlex.quote(graph['file'])} {shlex.quote(graph['engine'])}", *flags(graph["profiles"])])
              for graph in known["graphs"]]  # fmt: skip
    return head + "\n".join(builds) + "\n" + _TAIL


def flags(profiles: Sequence[Json]) -> list[str]:
    """trtexec's flags for the profiles of a graph, each as a word of a shell."""
    words = []
    for number, profile in enumerate(profiles):
        words.append(f"--profile={number}")
        for key in ("min", "opt", "max"):
            shapes = ",".join(f"{name}:{'x'.join(map(str, sizes[key]))}" for name, sizes in profile["inputs"].items())
            words.append(shlex.quote(f"--{key}Shapes={shapes}"))
    return words
