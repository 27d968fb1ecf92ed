"""What another user's process wrote and the service's user may not read is said with who lacks what, where, and what mends it.

As root the tests run without the rights that let root into everything, and what is closed is another user's; else it is open to nobody.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daemon.checkpoints.readable import closed, closed_directory
from daemon.system.filesystems import access
from tests.service import Service, making

ROOT = os.geteuid() == 0
PREFIX = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if ROOT else ()
NOBODY = 65534
ME = access.user_name()

Make = Callable[..., "OtherUser"]

pytestmark = pytest.mark.skipif(ROOT and not shutil.which("setpriv"), reason="root reads everything")


class OtherUser(Service):
    """A daemon whose user has no right to others' files."""

    command = (*PREFIX, *Service.command)

    def run_verb(self, *words: str) -> int:
        """As `Service.run_verb`, as the same user."""
        answer = subprocess.run(
            [*PREFIX, sys.executable, "-m", "daemon", *words], capture_output=True, text=True, timeout=60, check=False,
            env={**os.environ, "NO_COLOR": "1"},
        )  # fmt: skip
        self.said = answer.stdout + answer.stderr
        return answer.returncode


@pytest.fixture
def make_other(tmp_path: Path) -> Iterator[Callable[..., OtherUser]]:
    """Makes such daemons and ends whatever is left of them."""
    yield from making(OtherUser, tmp_path)


def close(path: Path, mode: int) -> None:
    """Make it another user's with these rights, or, where this test is not root, take them from oneself."""
    os.chmod(path, mode & 0o077 if not ROOT else mode)
    if ROOT:
        os.chown(path, NOBODY, NOBODY)


def asked(code: str, *arguments: Path) -> str:
    """What a process that is another user, for these files, answers: setuid as root, oneself else."""
    become = f"import os; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n" if ROOT else ""
    imports = "from pathlib import Path; import sys; from daemon.checkpoints import readable; from daemon.system.filesystems import access"
    script = f"{imports}\n{become}{code}"
    answer = subprocess.run([sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.fixture
def checkpoint(pico_checkpoint: Path) -> Iterator[Path]:
    """A checkpoint whose directories everybody may enter; pytest closes its own to others again and again."""
    top = Path(tempfile.mkdtemp(prefix="ckptd-test-"))
    target = top / "runs" / "run" / "checkpoint-4"
    shutil.copytree(pico_checkpoint, target)
    for path in (top, *top.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    yield target
    subprocess.run(["chmod", "-R", "u+rwX", str(top)], check=True)
    shutil.rmtree(top)


SENTENCE = "print((lambda fault: fault.sentence() if fault else 'open')(readable.closed(Path(sys.argv[1]))))"


def closed_part(checkpoint: Path, part: str) -> Path:
    return {
        "file": checkpoint / "adapter_model.safetensors",
        "itself": checkpoint,
        "run": checkpoint.parent,
        "root": checkpoint.parents[1],
    }[part]


@pytest.mark.parametrize(
    ("part", "mode", "right"),
    [
        ("file", 0o600, "read"), ("itself", 0o711, "list"), ("root", 0o700, "enter"),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (
            ("file", 0o640, "read"), ("itself", 0o700, "list"), ("itself", 0o744, "list"), ("run", 0o700, "enter"),
        )),
    ],
)  # fmt: skip
def test_the_sentence_says_who_lacks_which_right_on_which_path(checkpoint: Path, part: str, mode: int, right: str) -> None:
    path = closed_part(checkpoint, part)
    path.chmod(mode if ROOT else mode & 0o077)
    said = asked(SENTENCE, checkpoint)
    user = access.user_name(NOBODY) if ROOT else ME
    rights = f"mode {mode if ROOT else mode & 0o077:04o}, owner {ME}, group "
    assert f"the user {user} has no right to {right} {path} ({rights}" in said
    path.chmod(0o755)
    assert asked(SENTENCE, checkpoint) == "open\n"


def test_of_a_file_that_its_owner_alone_may_read_it_says_that_the_next_ones_will_be_so(checkpoint: Path) -> None:
    (checkpoint / "adapter_model.safetensors").chmod(0o600 if ROOT else 0)
    said = asked(SENTENCE, checkpoint)
    assert (f"run the service as {ME}" in said) is (ME != "root") and "safetensors 0.8" in said, "the service is none of root's"
    (checkpoint / "adapter_model.safetensors").chmod(0o640 if ROOT else 0o040)
    said = asked(SENTENCE, checkpoint)
    assert "setfacl -R -d -m" in said and said.count("`") % 2 == 0 and len(said) <= 601, "other ways, as far as there is room"


@pytest.mark.skipif(not ROOT, reason="needs a second user")
@pytest.mark.parametrize("part", ["file", *(pytest.param(part, marks=pytest.mark.slow) for part in ("itself", "run", "root"))])
def test_the_commands_that_it_names_mend_it(checkpoint: Path, part: str) -> None:
    """With setfacl where that is installed, else with the same entries by hand."""
    closed_part(checkpoint, part).chmod(0o600 if part == "file" else 0o700)
    code = (
        "import json; p = Path(sys.argv[1]); found = readable._denial(p)\n"
        "print(json.dumps(access.commands(found, p.parent) if found else []))"
    )
    commands = json.loads(asked(code, checkpoint))
    assert commands
    for command in commands:
        if shutil.which("setfacl"):
            subprocess.run(["bash", "-c", command], check=True)
        else:
            by_hand(command)
    assert asked(SENTENCE, checkpoint) == "open\n"


def by_hand(command: str) -> None:
    """What `setfacl [-R] -m u:NAME:RIGHTS PATH` does."""
    words = command.split()
    assert words[0] == "setfacl" and words[-3] == "-m"
    _, name, rights = words[-2].split(":")
    top = Path(words[-1])
    assert name == access.user_name(NOBODY)
    try:
        for path in [top, *(top.rglob("*") if "-R" in words else ())]:
            mode = path.stat().st_mode
            executes = path.is_dir() or mode & 0o111 != 0
            given = ("r" in rights) * 4 + (1 if "x" in rights or ("X" in rights and executes) else 0)
            none, group = 0xFFFFFFFF, mode >> 3 & 7
            rows = [(1, mode >> 6 & 7, none), (2, given, NOBODY), (4, group, none), (0x10, group | given, none), (0x20, mode & 7, none)]
            os.setxattr(path, "system.posix_acl_access", struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in rows))
    except OSError as error:
        pytest.skip(f"no ACLs on this file system: {error.strerror}")


def test_safetensors_still_writes_files_that_no_default_acl_opens(tmp_path: Path) -> None:
    """What the sentence says of it; when this fails, the sentence and the drop-in can go."""
    import torch
    from safetensors.torch import save_file

    none = 0xFFFFFFFF
    rows = [(1, 7, none), (2, 5, NOBODY), (4, 5, none), (0x10, 5, none), (0x20, 0, none)]
    try:
        os.setxattr(tmp_path, "system.posix_acl_default", struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in rows))
    except OSError as error:
        pytest.skip(f"no ACLs on this file system: {error.strerror}")
    save_file({"a": torch.zeros(2)}, tmp_path / "a.safetensors")
    (tmp_path / "plain").touch()
    assert (tmp_path / "a.safetensors").stat().st_mode & 0o077 == 0
    assert (tmp_path / "plain").stat().st_mode & 0o040


def test_the_daemon_lists_what_it_may_not_read_says_it_once_and_takes_it_when_it_may(
    make_other: Make, pico_checkpoint: Path, pico_base: Path
) -> None:
    service = make_other(extra=f'[base]\nsearch = ["{pico_base.parent}"]\n')
    closed_ones = {
        "file": service.add(pico_checkpoint, "file") / "adapter_model.safetensors",
        "itself": service.add(pico_checkpoint, "itself", "checkpoint-5"),
        "run": service.add(pico_checkpoint, "inside").parent,
    }
    for name, path in closed_ones.items():
        close(path, 0o600 if name == "file" else 0o700)
    listed = {str(closed_ones["file"].parent), str(closed_ones["itself"]), str(closed_ones["run"])}
    service.start()
    try:
        value = service.wait_for(lambda v: set(v["unreadable"]) == listed, 40)
        for name, path in closed_ones.items():
            (sentence,) = (text for listed_path, text in value["unreadable"].items() if path.is_relative_to(listed_path))
            assert f"the user {ME} has no right to {'read' if name == 'file' else 'list'} {path} " in sentence
            assert "setfacl" in sentence
        assert service.run_verb("status", "--config", str(service.config)) == 0
        assert service.said.count("not readable") == 3 and "setfacl" in service.said
        # Whoever asks by the daemon's eyes is told the same; a person, what that person lacks.
        checkpoint = closed_ones["file"].parent
        assert service.run_verb("explain", str(checkpoint), "--config", str(service.config)) == 1
        assert "no right" in service.said and str(closed_ones["file"]) in service.said and "Traceback" not in service.said
        before = service.log().count("has no right to")
        for path in (closed_ones["itself"], closed_ones["run"], closed_ones["file"]):
            if ROOT:
                os.chown(path, 0, 0)
            path.chmod(0o755)
        value = service.wait_for(lambda v: len(v["jobs"]) >= 1 and not v["unreadable"], 60)
        assert before == 3 == service.log().count("has no right to")
    finally:
        for path in closed_ones.values():
            path.chmod(0o755)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["root", "around"])
def test_a_root_that_is_closed_is_listed_too(make_other: Make, tmp_path: Path, part: str) -> None:
    outer = tmp_path / "home"
    outer.mkdir()
    (outer / "runs").mkdir()
    service = make_other(root=outer / "runs")
    path = outer if part == "around" else outer / "runs"
    close(path, 0o700)
    try:
        assert service.run_verb("check", "--config", str(service.config)) == 2
        right = "enter" if part == "around" else "list"
        assert f"the user {ME} has no right to {right} {path}" in service.said.replace("\n", " ")
        service.start()
        value = service.wait_for(lambda v: bool(v["unreadable"]), 40)
        assert f"no right to {right} {path}" in value["unreadable"][str(outer / "runs")]
    finally:
        path.chmod(0o755)


@pytest.mark.parametrize("part", ["file", *(pytest.param(part, marks=pytest.mark.slow) for part in ("itself", "run"))])
def test_export_and_explain_end_in_one_sentence(make_other: Make, pico_checkpoint: Path, part: str) -> None:
    service = make_other()
    checkpoint = service.add(pico_checkpoint)
    path = closed_part(checkpoint, part)
    close(path, 0o600 if part == "file" else 0o700)
    try:
        assert service.run_verb("export", str(checkpoint), "--config", str(service.config)) == 2
        sentence = service.said.strip()
        assert f"the user {ME} has no right to" in sentence and str(path) in sentence and "setfacl" in sentence
        assert "Traceback" not in sentence and len(sentence.splitlines()) == 1
        assert service.run_verb("explain", str(checkpoint), "--config", str(service.config)) in (1, 2)
        assert f"the user {ME} has no right to" in service.said and "Traceback" not in service.said
    finally:
        path.chmod(0o755)


@pytest.mark.slow
def test_a_base_that_can_not_be_read_is_said_with_the_command(
    make_other: Make, tmp_path: Path, pico_base: Path, pico_checkpoint: Path
) -> None:
    bases = tmp_path / "bases"
    shutil.copytree(pico_base, bases / "pico")
    service = make_other(extra=f'[base]\nsearch = ["{bases}"]\n')
    checkpoint = service.add(pico_checkpoint)
    config = json.loads((checkpoint / "adapter_config.json").read_text())
    (checkpoint / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "pico"}))
    close(bases, 0o700)
    service.start()
    try:
        (job,) = service.wait_for(lambda v: bool(v["jobs"]) and (v["jobs"][0]["error"] or v["jobs"][0]["waiting_for"]), 60)["jobs"]
        assert f"no right to enter {bases}" in (job["error"] or job["waiting_for"])
        assert "setfacl" in (job["error"] or job["waiting_for"])
    finally:
        bases.chmod(0o755)


@pytest.mark.slow
@pytest.mark.skipif(not ROOT, reason="becomes another user")
def test_check_by_root_tries_as_the_user_of_the_service(checkpoint: Path, tmp_path: Path) -> None:
    service = Service(tmp_path, root=checkpoint.parents[1])
    service.state.mkdir()
    os.chown(service.state, NOBODY, NOBODY)
    other = checkpoint.with_name("checkpoint-5")
    shutil.copytree(checkpoint, other)
    service.run_verb("check", "--json")
    diagnosis = json.loads(service.said)
    assert diagnosis["facts"]["reads"] == f"as {access.user_name(NOBODY)}: 2 checkpoints"
    (other / "adapter_model.safetensors").chmod(0o600)
    service.run_verb("check", "--json")
    diagnosis = json.loads(service.said)
    assert any(f"no right to read {other}/adapter_model.safetensors" in one for one in diagnosis["warnings"])
    (checkpoint / "adapter_config.json").chmod(0o600)
    service.run_verb("check", "--json")
    diagnosis = json.loads(service.said)
    assert len([one for one in diagnosis["problems"] if "no right to read" in one]) == 2
    assert diagnosis["facts"]["reads"] == f"as {access.user_name(NOBODY)}: 0 checkpoints"


def test_what_is_open_or_gone_is_not_closed(checkpoint: Path, tmp_path: Path) -> None:
    function: Callable[[Path], object]
    for function in (closed, closed_directory):
        assert function(checkpoint) is None
        assert function(tmp_path / "gone" / "checkpoint-9") is None
