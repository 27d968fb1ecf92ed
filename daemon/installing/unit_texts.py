"""The text of the units for one box: those of `units/`, with the command, the configuration and what the settings ask for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

UNITS = Path(__file__).with_name("units")
SERVICE, SLICE = "ckptd.service", "ckptd.slice"
_COMMAND, _CONFIG = "/opt/ckptd/.venv/bin/ckptd", "/etc/ckptd/config.toml"


def command() -> tuple[str, ...]:
    """The command line that runs this very installation: the script beside its Python, or the module where there is no script."""
    script = Path(sys.executable).with_name("ckptd")
    return (str(script),) if script.is_file() else (sys.executable, "-m", "ckptd")


def quoted(words: Sequence[object], *, of_command: bool = False) -> str:
    """Words of a unit's value: quoted where they must be, and what systemd would replace in a path or `of_command` is not."""
    return " ".join(_quoted(str(word), of_command) for word in words)


def _quoted(word: str, of_command: bool) -> str:
    plain = word.replace("\\", "\\\\").replace("%", "%%")
    plain = plain.replace("$", "$$") if of_command else plain
    return '"' + plain.replace('"', '\\"') + '"' if not plain or any(character in plain for character in " \t\"'\\;") else plain


def service(config: Path, *, of_user: bool = False) -> str:
    """The service's unit."""
    text = (UNITS / ("user" if of_user else ".") / SERVICE).read_text("utf-8")
    before, after = f"{_COMMAND} ", f" --config {_CONFIG}"
    lines = [
        line.replace(before, f"{quoted(command(), of_command=True)} ").replace(after, f" --config {quoted([config], of_command=True)}")
        if line.startswith("Exec")
        else line
        for line in text.splitlines()
    ]
    return "\n".join(lines) + "\n"


def slice_() -> str:
    """The slice's unit."""
    return (UNITS / SLICE).read_text("utf-8")


def drop_in(name: str, **changed: str) -> str:
    """One of `drop-ins/`. `changed`: values by their key, in place of the example's, which may be commented out."""
    lines = (UNITS / "drop-ins" / f"{name}.conf").read_text("utf-8").splitlines()
    keys = [line.removeprefix("#").partition("=")[0] for line in lines]
    return "\n".join(f"{key}={changed[key]}" if key in changed else line for key, line in zip(keys, lines, strict=True)) + "\n"


def credential(name: str, file: Path) -> str:
    """Value of LoadCredential=, whose path is all that follows the colon: nothing in it is quoted (systemd.exec(5))."""
    return f"{name}:{str(file).replace('%', '%%')}"


def group_of(slice_name: str) -> str:
    """Path of the service's control group below a slice: `a-b.slice` lies in `a.slice`."""
    parts = slice_name.removesuffix(".slice").split("-")
    return "/".join(f"{'-'.join(parts[: end + 1])}.slice" for end in range(len(parts))) + f"/{SERVICE}"
