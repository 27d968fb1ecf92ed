"""Processors that are not here, by QEMU's user-mode emulation: Python with numpy and onnxruntime below each of them.

`qemu-x86_64` runs this interpreter with its libraries; its processors have AVX2 at most (QEMU 7.2 translates no AVX-512, so Skylake-Server
and Cascadelake-Server come out as AVX2 machines). For `qemu-aarch64` Debian's packages of Python and the wheels of this environment's
versions are unpacked into a folder, with apt's state in a folder of its own.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGES = (
    "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "libc6", "libstdc++6", "libgcc-s1", "zlib1g", "libffi8",
    "libexpat1", "libssl3", "libbz2-1.0", "liblzma5", "libuuid1", "libcrypt1",
)  # fmt: skip
WHEELS = ("onnxruntime", "numpy")
QUIET_X86 = "-hle,-rtm,-pcid,-x2apic,-invpcid,-tsc-deadline"
_ARM_BASE = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
_ARM_DOT = f"{_ARM_BASE} atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp ssbs"


@dataclass(frozen=True)
class Arm:
    """A processor as QEMU calls it, and what /proc/cpuinfo says of it, which onnxruntime reads besides."""

    cpu: str
    part: str
    features: str


ARMS = (
    Arm("cortex-a53", "0xd03", _ARM_BASE),
    Arm("cortex-a76", "0xd0b", _ARM_DOT),
    # Without SME: QEMU 7.2 computes its sums of outer products wrong, a bare one gives zeros.
    Arm("max,sme=off", "0xd40", f"{_ARM_DOT} jscvt fcma sha3 sha512 sve asimdfhm ilrcpc flagm dcpodp sve2 i8mm svei8mm bf16"),
)  # fmt: skip


class Unavailable(Exception):
    """What is missing, and how to get it."""


def emulator(architecture: str) -> str:
    """Path of QEMU's emulator of processes; Unavailable where it is not installed."""
    found = shutil.which(f"qemu-{architecture}")
    if found is None:
        raise Unavailable(f"qemu-{architecture} is not installed; on Debian and Ubuntu: apt-get install qemu-user")
    return found


def x86(cpu: str) -> list[str]:
    """The beginning of a command that runs this interpreter on an x86-64 processor."""
    return [emulator("x86_64"), "-cpu", cpu if cpu == "Nehalem" else f"{cpu},{QUIET_X86}", sys.executable]


class ArmRoot:
    """An ARM64 Python with numpy and onnxruntime, unpacked below `folder`."""

    def __init__(self, folder: Path) -> None:
        """Raises Unavailable where Debian's tools or their archive can't be had."""
        self._qemu = emulator("aarch64")
        self._folder = folder
        self._root, self._site = folder / "root", folder / "site"
        if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
            raise Unavailable("an ARM64 Python is unpacked from Debian's packages, and there is no apt-get here")
        self._unpack_python()
        self._unpack_wheels()

    def _run(self, *argv: str, cwd: Path | None = None) -> None:
        ended = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=600)
        if ended.returncode != 0:
            raise Unavailable(f"{' '.join(argv[:2])} ended with {ended.returncode}: {ended.stderr.strip()[-500:]}")

    def _unpack_python(self) -> None:
        state, packages = self._folder / "apt", self._folder / "packages"
        for name in ("state/lists/partial", "cache/archives/partial"):
            (state / name).mkdir(parents=True)
        packages.mkdir()
        self._root.mkdir()
        (state / "status").write_text("")
        settings = {
            "Dir::State": state / "state", "Dir::State::status": state / "status", "Dir::Cache": state / "cache",
            "APT::Architecture": "arm64", "APT::Architectures::": "arm64", "APT::Sandbox::User": "root", "Acquire::Languages": "none",
        }  # fmt: skip
        apt = ["apt-get", "-qq", *(word for name, value in settings.items() for word in ("-o", f"{name}={value}"))]
        self._run(*apt, "update")
        self._run(*apt, "download", *PACKAGES, cwd=packages)
        for package in packages.glob("*.deb"):
            self._run("dpkg", "-x", str(package), str(self._root))

    def _unpack_wheels(self) -> None:
        wheels = self._folder / "wheels"
        platforms = [f"manylinux_2_{number}_aarch64" for number in (28, 27, 17)] + ["manylinux2014_aarch64"]
        wanted = [f"{name}=={importlib.metadata.version(name)}" for name in WHEELS]
        self._run(
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version", "3.11",
            "--implementation", "cp", *(word for name in platforms for word in ("--platform", name)), "-d", str(wheels), *wanted,
        )  # fmt: skip
        self._site.mkdir()
        for wheel in wheels.glob("*.whl"):
            self._run(sys.executable, "-m", "zipfile", "-e", str(wheel), str(self._site))

    def python(self, arm: Arm) -> tuple[list[str], dict[str, str]]:
        """The beginning of a command that runs Python on a processor, and its environment."""
        place = self._folder / arm.cpu.replace(",", "-").replace("=", "-")
        if not place.exists():
            (place / "proc").mkdir(parents=True)
            for name in ("usr", "lib", "etc"):
                (place / name).symlink_to(self._root / name)
            core = (
                f"processor\t: {{}}\nBogoMIPS\t: 50.00\nFeatures\t: {arm.features}\nCPU implementer\t: 0x41\nCPU architecture: 8\n"
                f"CPU variant\t: 0x1\nCPU part\t: {arm.part}\nCPU revision\t: 1\n\n"
            )
            (place / "proc" / "cpuinfo").write_text("".join(core.format(number) for number in range(os.cpu_count() or 1)))
        argv = [self._qemu, "-L", str(place), "-cpu", arm.cpu, str(place / "usr/bin/python3.11")]
        return argv, {"PYTHONPATH": str(self._site), "PYTHONDONTWRITEBYTECODE": "1"}


def run(argv: Sequence[str], environment: dict[str, str], script: Path, folder: Path, target: Path) -> None:
    """Run `answers.py` on an emulated processor."""
    target.mkdir()
    given = {**os.environ, "ORT_DISABLE_TELEMETRY": "1", **environment}
    ended = subprocess.run([*argv, str(script), str(folder), str(target)], env=given, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, f"{' '.join(argv)} ended with {ended.returncode}: {ended.stderr[-2000:]}"
