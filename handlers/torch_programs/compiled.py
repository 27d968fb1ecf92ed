"""Programs of torch.export as compiled C++ (AOTInductor): one file that torch loads and runs without Python's part of the compiler.

The code is for a class of processors, not for the one it is compiled on: on x86-64 AVX2 with FMA (x86-64-v3: Haswell, Zen and later), on
other machines what their compiler takes for the plain architecture. The number of threads is not part of it, weights are not packed for a
processor, and matrix products are those of the torch that loads it. The compiler's cache lies in the attempt's temporary folder, sources
and the names of this box's folders are left out of the file. Called by the stage `pt2-aoti`.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.plan import spec_of

MARCH = {"x86_64": ("x86-64-v3", 256), "aarch64": ("armv8-a", 128)}
"""Machine → instruction set for the compiler, and bits of its vectors, as torch's compiler names them."""
_PLAIN = re.compile(r"[\w./+@%=:,-]+")
_NEEDED = re.compile(rb"\b(GLIBC|GLIBCXX)_(\d+(?:\.\d+)+)\0")


def compiler(stage: str) -> str:
    """The C++ compiler of this box. Permanent where there is none."""
    spec = spec_of(stage)
    program = spec.program()
    if program is None:
        cause = f"it is compiled, and there is no C++ compiler here ({', '.join(spec.programs)})"
        raise Permanent(
            FaultCode.FORM_NOT_POSSIBLE, f"make the variant {stage}", cause,
            f"install one (Debian and Ubuntu: apt-get install g++) and run ckptd queue retry, or leave {stage} out of export.variants",
        )  # fmt: skip
    return program


def write(program: torch.export.ExportedProgram, path: Path, cxx: str, scratch: Path) -> None:
    """Compile a program into `path`. Raises whatever torch's compiler raises."""
    with _folder(scratch) as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
        whole = folder / path.name
        torch._inductor.aoti_compile_and_package(program, package_path=str(whole), inductor_configs=settings(_quiet(cxx, folder)))
        _copy(whole, path)


@contextlib.contextmanager
def _folder(scratch: Path) -> Iterator[Path]:
    """A folder for the compiler, which is gone afterwards. torch does not quote names, so one with a space in it lies elsewhere."""
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch if _PLAIN.fullmatch(str(scratch)) else None, prefix="compiler-") as name:
        yield Path(name)


def settings(cxx: str) -> dict[str, Any]:
    """What torch's compiler is told."""
    march, bits = MARCH.get(platform.machine(), ("", 0))
    return {
        "cpp.march": march, "cpp.simdlen": bits, "cpp.dynamic_threads": True, "cpp.cxx": (cxx,), "compile_threads": 1,
        "aot_inductor.enable_line_tables": False, "aot_inductor.precompile_headers": False,
    }  # fmt: skip


def _quiet(cxx: str, folder: Path) -> str:
    """The compiler, told to write no folder of this box into what it makes."""
    wrapper = folder / "bin" / Path(cxx).name
    wrapper.parent.mkdir(exist_ok=True)
    places = {folder: "compiled", Path(torch.__file__).parent: "torch"}
    flags = [f"-ffile-prefix-map={place}={name}" for place, name in places.items()]
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.join([cxx, *flags])} "$@"\n', encoding="utf-8")
    wrapper.chmod(0o700)
    return str(wrapper)


def _copy(source: Path, target: Path) -> None:
    """A package without its C++ sources."""
    reader = torch._C.PyTorchFileReader(str(source))
    writer = torch._C.PyTorchFileWriter(str(target))
    for name in reader.get_all_records():
        if not name.endswith(".cpp") and name not in ("byteorder", "version", ".data/version", ".data/serialization_id"):
            record = reader.get_record(name)
            writer.write_record(name, record, len(record))
    writer.write_end_of_file()


def needed(path: Path) -> dict[str, str]:
    """Newest versions of the system's C and C++ libraries that a compiled program asks for: "GLIBC" → "2.34"."""
    newest: dict[str, tuple[int, ...]] = {}
    for name, version in _NEEDED.findall(path.read_bytes()):
        numbers = tuple(map(int, version.split(b".")))
        newest[name.decode()] = max(numbers, newest.get(name.decode(), ()))
    return {name: ".".join(map(str, numbers)) for name, numbers in sorted(newest.items())}
