"""onnxruntime with other processors' kernels, at full speed on this one: `python -m tests.portability.masking LEVEL SCRIPT ARGUMENT…`.

A processor's kernels are all in the library, which asks the instruction `cpuid` what it may use. In a copy of onnxruntime each `cpuid` is
replaced by an instruction of the same length that does not exist; the signal that follows is answered here with what the processor says,
less the features that are to be hidden. So a processor with VNNI runs what one with AVX2 alone runs, and no emulator is in between.
x86-64 and Linux only; no processor can be made to run kernels that it lacks.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import runpy
import shutil
import signal
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

LEVELS = {"sse4.1": "sse4_1", "avx": "avx", "avx2": "avx2", "avx512": "avx512bw", "vnni": "avx512_vnni", "own": ""}
"""Level → the feature, in the kernel's words, without which this processor can't play it. "own" hides nothing."""

_CPUID, _UNDEFINED = b"\x0f\xa2", b"\x0f\x0b"
_AMX = 1 << 22 | 1 << 24 | 1 << 25
_VNNI = 1 << 11
_AVX512_B = 1 << 16 | 1 << 17 | 1 << 21 | 1 << 26 | 1 << 27 | 1 << 28 | 1 << 30 | 1 << 31
_AVX512_C = 1 << 1 | 1 << 6 | _VNNI | 1 << 12 | 1 << 14
_AVX_VNNI_A, _AVX_VNNI_D = 1 << 4 | 1 << 5 | 1 << 21 | 1 << 23, 1 << 4 | 1 << 5 | 1 << 10
_AVX2_B = 1 << 5
_AVX_C, _FMA_C, _F16C_C = 1 << 28, 1 << 12, 1 << 29

Registers = tuple[int, int, int, int]


def masked(level: str, leaf: int, subleaf: int, registers: Registers) -> Registers:
    """What `cpuid` answers (eax, ebx, ecx, edx) on a processor of that level."""
    a, b, c, d = registers
    if level == "own":
        return registers
    if (leaf, subleaf) == (7, 0):
        d &= ~_AMX
        if level == "avx512":
            c &= ~_VNNI
        elif level != "vnni":
            b, c = b & ~_AVX512_B, c & ~_AVX512_C
        if level in ("sse4.1", "avx"):
            b &= ~_AVX2_B
    elif (leaf, subleaf) == (7, 1):
        a, d = a & ~_AVX_VNNI_A, d & ~_AVX_VNNI_D
    elif leaf == 1 and level in ("sse4.1", "avx"):
        c &= ~(_FMA_C | _F16C_C | (_AVX_C if level == "sse4.1" else 0))
    return a, b, c, d


def _executable(data: bytes) -> Iterator[tuple[int, int]]:
    """(offset, size) of an ELF file's sections that hold instructions."""
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry, count = struct.unpack_from("<HH", data, 0x3A)
    for number in range(count):
        _, kind, flags, _, offset, size = struct.unpack_from("<IIQQQQ", data, table + number * entry)
        if kind == 1 and flags & 4:
            yield offset, size


def cpuid_places(data: bytes) -> list[int]:
    """Offsets of the instruction `cpuid`. Its two bytes occur inside others as well, so the code before them is read from many points:
    instructions of different lengths soon fall into step, and most readings of a real one arrive at it."""
    import capstone

    reader = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    found = []
    for offset, size in _executable(data):
        place = data.find(_CPUID, offset, offset + size)
        while place != -1:
            starts = range(max(offset, place - 96), max(offset, place - 32), 4)
            arrivals = 0
            for start in starts:
                read = list(reader.disasm_lite(data[start : place + 2], start))
                arrivals += bool(read) and read[-1][0] == place and read[-1][2] == "cpuid"
            if 2 * arrivals > len(starts):
                found.append(place)
            place = data.find(_CPUID, place + 2, offset + size)
    return found


def patched_copy(folder: Path) -> Path:
    """A folder for sys.path with an onnxruntime that asks us instead of the processor."""
    import importlib.util

    spec = importlib.util.find_spec("onnxruntime")
    assert spec is not None and spec.origin is not None
    target = folder / "onnxruntime"
    shutil.copytree(
        Path(spec.origin).parent, target, ignore=shutil.ignore_patterns("libonnxruntime.so*", "__pycache__", "tools", "transformers")
    )
    libraries = list((target / "capi").glob("onnxruntime_pybind11_state*.so"))
    assert len(libraries) == 1
    data = bytearray(libraries[0].read_bytes())
    places = cpuid_places(bytes(data))
    assert places
    for place in places:
        data[place : place + 2] = _UNDEFINED
    libraries[0].write_bytes(data)
    return folder


class _Action(ctypes.Structure):
    """`struct sigaction` of Linux on x86-64."""

    _fields_ = (("handler", ctypes.c_void_p), ("mask", ctypes.c_ulong * 16), ("flags", ctypes.c_int), ("restorer", ctypes.c_void_p))


# push rbx; mov eax, edi; mov ecx, esi; mov r8, rdx; cpuid; mov [r8], eax; mov [r8+4], ebx; mov [r8+8], ecx; mov [r8+12], edx; pop rbx; ret
_ASK = bytes.fromhex("53 89f8 89f1 4989d0 0fa2 418900 41895804 41894808 4189500c 5b c3")
_GENERAL_REGISTERS = 40
"""Offset in `ucontext_t`."""
_RBX, _RDX, _RAX, _RCX, _RIP = 11, 12, 13, 14, 16


class Mask:
    """Answers the signal; `asked` counts."""

    def __init__(self, level: str) -> None:
        self.asked = 0
        self._level = level
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(_ASK)
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        self._ask = ctypes.CFUNCTYPE(None, ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p)(address)
        self._handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(self._answer)
        siginfo, nested = 4, 0x40000000
        self._action = _Action(ctypes.cast(self._handler, ctypes.c_void_p).value, (ctypes.c_ulong * 16)(), siginfo | nested, None)
        self._kept = page
        if ctypes.CDLL(None).sigaction(int(signal.SIGILL), ctypes.byref(self._action), None) != 0:
            raise OSError("sigaction refused")

    def _answer(self, _number: int, _info: int, context: int) -> None:
        def register(number: int) -> ctypes.c_uint64:
            return ctypes.c_uint64.from_address(context + _GENERAL_REGISTERS + 8 * number)

        place = register(_RIP)
        if ctypes.string_at(place.value, 2) != _UNDEFINED:
            os.write(2, b"an illegal instruction that is not ours\n")
            os._exit(132)
        self.asked += 1
        leaf, subleaf = register(_RAX).value & 0xFFFFFFFF, register(_RCX).value & 0xFFFFFFFF
        answer = (ctypes.c_uint32 * 4)()
        self._ask(leaf, subleaf, ctypes.addressof(answer))
        values = masked(self._level, leaf, subleaf, (answer[0], answer[1], answer[2], answer[3]))
        for number, value in zip((_RAX, _RBX, _RCX, _RDX), values, strict=True):
            register(number).value = value & 0xFFFFFFFF
        place.value += 2


def main() -> None:
    level, site, script, *arguments = sys.argv[1:]
    mask = Mask(level)
    sys.path.insert(0, site)
    sys.argv = [script, *arguments]
    import onnxruntime

    assert onnxruntime.__file__.startswith(site), onnxruntime.__file__
    runpy.run_path(script, run_name="__main__")
    assert mask.asked, "nobody asked what the processor can do"


if __name__ == "__main__":
    main()
