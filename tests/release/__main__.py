"""`python -m tests.release DIST` (`make release`): builds a release into the new folder DIST and tries it as a user's machine would.

A source distribution of the committed files, a wheel built from that; both are looked at. The wheel is installed into an environment of its
own with the pinned dependencies, runs the demo and an export there, and is uninstalled again, of which nothing may stay. Beside
them: a bill of materials of that environment (CycloneDX, JSON), and SHA-256 digests of all files. Exit status 0 if all of it held.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests import models

ROOT = Path(__file__).parents[2]
TOOLS = Path(__file__).with_name("tools.txt")
NEEDED = ("LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "constraints.txt", "config.toml", "docs/ckptd.1", "docs/recovery.md")
"""What somebody who packages the sources needs, beside the modules."""


class Refused(Exception):
    """A release that does not hold."""


def run(*command: str | Path, at: Path | None = None, **environment: str) -> str:
    """Standard output of a command in a clean environment. Raises Refused with its last lines where it fails."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("CKPTD_", "EXPORT_", "PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, cwd=at, env={**own, **environment})
    if done.returncode:
        raise Refused(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def environment(folder: Path) -> Path:
    """The folder of the commands of a new virtual environment."""
    run(sys.executable, "-m", "venv", folder)
    return folder / "bin"


def build(work: Path, target: Path) -> tuple[Path, Path]:
    """Source distribution and wheel of what is committed."""
    source = work / "source"
    run("git", "clone", "--quiet", "--no-local", ROOT, source)
    tools = environment(work / "tools")
    run(tools / "pip", "install", "--quiet", "--requirement", TOOLS)
    run(tools / "python", "-m", "build", "--outdir", target, source)
    (archive,), (wheel,) = target.glob("*.tar.gz"), target.glob("*.whl")
    return archive, wheel


def compare(archive: Path, wheel: Path) -> None:
    """Raise Refused where a committed module is missing from the wheel, or the sources lack what a packager needs."""
    tracked = set(run("git", "ls-files", at=ROOT).splitlines())
    modules = {name for name in tracked if name.startswith(("daemon/", "handlers/"))}
    for link in [name for name in modules if (ROOT / name).is_dir()]:  # a folder elsewhere in the tree
        below = f"{os.path.normpath(Path(link).parent / os.readlink(ROOT / link))}/"
        modules = modules - {link} | {f"{link}/{name.removeprefix(below)}" for name in tracked if name.startswith(below)}
    inside = set(zipfile.ZipFile(wheel).namelist())
    if lacking := sorted(modules - inside):
        raise Refused(f"{wheel.name} lacks {len(lacking)} files, the first {lacking[0]}")
    if more := sorted(name for name in inside if name.startswith(("daemon/", "handlers/")) and name not in modules):
        raise Refused(f"{wheel.name} holds {len(more)} files that are not committed, the first {more[0]}")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    if lacking := sorted({*modules, *NEEDED} - names):
        raise Refused(f"{archive.name} lacks {len(lacking)} files, the first {lacking[0]}")


def try_out(work: Path, wheel: Path) -> Path:
    """Install, run the demo and an export, uninstall; gives the environment's folder of commands, with ckptd installed again."""
    commands, home = environment(work / "clean"), work / "home"
    home.mkdir()
    constraint = ("--quiet", "--constraint", ROOT / "constraints.txt")
    run(commands / "pip", "install", *constraint, "torch")  # first, so that nothing brings another build of it
    before = installed(commands)
    run(commands / "pip", "install", *constraint, wheel)
    words = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
    print("installed:", run(commands / "ckptd", "--version", at=home, **words).strip(), flush=True)
    run(commands / "ckptd", "demo", at=home, **words)
    print("the demo ran", flush=True)
    base = models.make_base(work / "base")
    checkpoint = models.train_run(base, work / "run") / "checkpoint-4"
    command = (commands / "ckptd", "export", checkpoint, "--base", base, "--output", home / "out", "--json")
    answer = json.loads(run(*command, at=home, **words, CKPTD_EXPORT__VARIANTS="pytorch,onnx"))
    if answer["artifacts"] != {"pytorch": "passed", "onnx": "passed"}:
        raise Refused(f"an export of the installed release gave {answer['artifacts']}")
    print("an export passed:", answer["artifacts"], flush=True)
    run(commands / "pip", "uninstall", "--quiet", "--yes", "ckptd")
    if left := sorted(name for name in installed(commands) - before if "ckptd" in name or name.split("/")[0] in ("daemon", "handlers")):
        raise Refused(f"after the uninstallation {len(left)} files are left, the first {left[0]}")
    run(commands / "pip", "install", "--quiet", "--no-deps", wheel)
    return commands


def installed(commands: Path) -> set[str]:
    """Files in an environment, by their names below its packages or its own folder."""
    prefix = commands.parent
    (packages,) = prefix.glob("lib/python*/site-packages")
    return {str(path.relative_to(packages if packages in path.parents else prefix)) for path in prefix.rglob("*") if path.is_file()}


def describe(work: Path, target: Path, commands: Path, version: str) -> None:
    """Write the bill of materials and the digests."""
    bill = target / f"ckptd-{version}.cdx.json"
    run(work / "tools" / "bin" / "cyclonedx-py", "environment", commands / "python", "--output-format", "JSON", "--output-file", bill)
    names = {component["name"].lower() for component in json.loads(bill.read_text())["components"]}
    if not {"ckptd", "torch", "transformers", "peft", "onnx"} <= names:
        raise Refused(f"{bill.name} does not name all that is installed: {sorted(names)[:10]} …")
    files = sorted(path for path in target.iterdir() if path.is_file())
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (target / "SHA256SUMS").write_text("".join(lines))


def main() -> int:
    """Build and try; gives the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.release", description=__doc__.partition("\n\n")[0] if __doc__ else None)
    parser.add_argument("dist", type=Path, help="a new folder for the release's files")
    target = parser.parse_args().dist.absolute()
    if target.exists() and any(target.iterdir()):
        print(f"{target} is not empty: remove it, or name another folder", file=sys.stderr)
        return 2
    if changed := run("git", "status", "--porcelain", at=ROOT).strip():
        print(f"Only what is committed is released, and there are other changes:\n{changed}", file=sys.stderr)
        return 2
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ckptd-release-") as folder:
        work = Path(folder)
        try:
            archive, wheel = build(work, target)
            compare(archive, wheel)
            print("built:", archive.name, wheel.name, flush=True)
            describe(work, target, try_out(work, wheel), wheel.name.split("-")[1])
        except Refused as error:
            print(error, file=sys.stderr)
            return 1
    print((target / "SHA256SUMS").read_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
