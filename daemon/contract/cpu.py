"""The processor of this box, as far as results can depend on it: libraries choose their kernels by its instruction sets.

Called for resume keys (`daemon.running.rules.resume_keys`), by the stages that keep something for a later attempt, by validation, the
report and `ckptd formats`. Reads /proc/cpuinfo once; elsewhere than on Linux it knows the architecture alone.
"""

from __future__ import annotations

import functools
import platform
import re
from collections.abc import Iterable
from pathlib import Path

from daemon.contract.language.catalog import to_translate
from daemon.contract.light import dataclass

CPU_INFO = Path("/proc/cpuinfo")

FEATURES: dict[str, tuple[str, ...]] = {
    "x86_64": (
        "sse4_1", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx_vnni_int8", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni",
        "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16",
    ),
    "aarch64": ("asimd", "fphp", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme", "sme2"),
}  # fmt: skip
"""Instruction sets by which the numerical libraries choose how they multiply, in the kernel's own words."""


@dataclass(frozen=True)
class Kernels:
    """A kind of integer kernels in the libraries, and the instruction set that they need."""

    architecture: str
    name: str
    needs: str
    """One of FEATURES."""


INTEGER_KERNELS = (
    Kernels("x86_64", "AVX2", "avx2"),
    Kernels("x86_64", to_translate("AVX-512 without VNNI"), "avx512bw"),
    Kernels("x86_64", "AVX-VNNI", "avx_vnni"),
    Kernels("x86_64", "AVX-512 VNNI", "avx512_vnni"),
    Kernels("x86_64", "AMX", "amx_int8"),
    Kernels("aarch64", "ARM64", "asimd"),
    Kernels("aarch64", to_translate("ARM64 with dot products"), "asimddp"),
    Kernels("aarch64", to_translate("ARM64 with i8mm"), "i8mm"),
)
"""The kernels in which a product of integers may run where an artifact is deployed; of one architecture, the wider ones come later."""


@dataclass(frozen=True)
class Cpu:
    """A processor; `features` are those of FEATURES that it has, in that order."""

    architecture: str
    vendor: str
    """As the processor names itself: "GenuineIntel", "AuthenticAMD", "0x41" for ARM's own; "" where that is not known."""
    model: str | None
    features: tuple[str, ...]

    @property
    def key(self) -> list[str]:
        """What must be equal for two boxes to be taken to compute the same bits. The vendor counts: MKL chooses by it too."""
        return [self.architecture, self.vendor, *self.features]

    @property
    def facts(self) -> dict[str, object]:
        """For reports and manifests."""
        return {"architecture": self.architecture, "vendor": self.vendor, "model": self.model, "features": list(self.features)}


def not_run_on(cpu: Cpu) -> tuple[str, ...]:
    """The integer kernels that a check on `cpu` can't run, the libraries taking the widest that there are.

    A processor with VNNI never runs the kernels of one without it, so these are named as well.
    """
    present = [kernel for kernel in INTEGER_KERNELS if kernel.architecture == cpu.architecture and kernel.needs in cpu.features]
    used = present[-1:]
    return tuple(kernel.name for kernel in INTEGER_KERNELS if kernel not in used)


def doubt(arithmetic: str, cpu: Cpu) -> str | None:
    """What a check on `cpu` does not prove for other processors. `arithmetic`: see `daemon.contract.formats.stages`.

    None where nothing is left open: fp32 differs by rounding alone, and sums of integers are proved from the weights.
    """
    if arithmetic == "half" and "asimdhp" not in cpu.features:
        return to_translate("ARM64 processors may add up in fp16, which is less exact; this processor computes fp16 in fp32")
    if arithmetic == "blocks":
        return to_translate("its runtime may round activations to 8 bits, which other kinds of processors do differently")
    return None


@functools.cache
def here() -> Cpu:
    """The processor that this process runs on."""
    try:
        return described(CPU_INFO.read_text(encoding="utf-8"), platform.machine())
    except OSError:
        return Cpu(platform.machine(), "", None, ())


def described(cpuinfo: str, architecture: str) -> Cpu:
    """The processor that the text of /proc/cpuinfo describes; where its cores differ, what all of them have."""

    def values(*names: str) -> list[str]:
        return re.findall(rf"^(?:{'|'.join(names)})[ \t]*:[ \t]*(.*?)[ \t]*$", cpuinfo, re.MULTILINE)

    cores = [set(line.split()) for line in values("flags", "Features")]
    common: Iterable[str] = set.intersection(*cores) if cores else ()
    features = tuple(name for name in FEATURES.get(architecture, ()) if name in common)
    vendors = sorted(set(values("vendor_id", "CPU implementer")))
    models = values("model name", "Model")
    return Cpu(architecture, "+".join(vendors), models[0] if models else None, features)
