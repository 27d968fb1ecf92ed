"""`ckptd verify`: every difference between an export and its manifest is found, and nothing outside it is touched."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from daemon.cli.main import maintenance
from daemon.contract.disk.export_layout import MANIFEST
from daemon.contract.faults.errors import UsageError
from daemon.publishing.verification import exports_below, to_verify, verify
from tests.publish.parts import link as link_to
from tests.publish.parts import publish

app = typer.Typer()
maintenance.register(app)


@pytest.fixture
def export(tmp_path: Path) -> Path:
    target = tmp_path / "exports" / "run" / "step-4"
    publish(tmp_path, 1, target, run="run", step=4, export_id="job-4", status="succeeded")
    return target


def codes(export: Path, **options: Any) -> list[tuple[str, str]]:
    return [(problem.code, problem.path) for problem in verify(export, **options).problems]


def edit_manifest(export: Path, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = json.loads((export / MANIFEST).read_bytes())
    change(manifest)
    (export / MANIFEST).write_text(json.dumps(manifest))


def ask(*words: str) -> tuple[int, str]:
    """Exit code and output of `ckptd verify`; our own errors are left to the console script, which makes them 2."""
    answer = CliRunner().invoke(app, ["verify", *words])
    if isinstance(answer.exception, UsageError):
        return 2, str(answer.exception)
    return answer.exit_code, answer.output


def test_an_export_as_it_was_published_is_sound(export: Path) -> None:
    found = verify(export)
    assert found.sound
    assert (found.export, found.status, found.files) == ("job-4", "succeeded", 5)
    assert found.bytes == sum(path.stat().st_size for path in export.rglob("*") if path.is_file()) - (export / MANIFEST).stat().st_size


def test_every_difference_is_told_not_only_the_first(export: Path) -> None:
    (export / "README.md").unlink()
    (export / "report.json").write_text("short")
    weights = export / "pytorch" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-2] + b"!\n")
    (export / "pytorch" / "notes.txt").write_text("of a person")
    (export / "pytorch" / "config.json").unlink()
    (export / "pytorch" / "config.json").symlink_to(weights)
    os.mkfifo(export / "pytorch" / "pipe")
    assert codes(export) == [
        ("missing", "README.md"), ("symlink", "pytorch/config.json"), ("content", "pytorch/model.safetensors"),
        ("extra", "pytorch/notes.txt"), ("special", "pytorch/pipe"), ("size", "report.json"),
    ]  # fmt: skip


def test_a_shallow_look_compares_names_and_sizes_only(export: Path) -> None:
    weights = export / "pytorch" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-2] + b"!\n")
    assert codes(export, deep=False) == []
    weights.write_text("short")
    assert codes(export, deep=False) == [("size", "pytorch/model.safetensors")]


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "pytorch/../../secret", "", "./report.json", "pytorch//config.json", "a\0b"])
def test_a_path_that_leads_out_of_the_export_is_refused_and_not_read(export: Path, path: str, tmp_path: Path) -> None:
    os.mkfifo(export.parent / "secret")  # whoever opened it for reading would wait for ever
    edit_manifest(export, lambda manifest: manifest["files"].append({"path": path, "size": 1, "sha256": "0" * 64}))
    assert ("path-refused", path) in codes(export)


def test_a_linked_folder_inside_an_export_is_not_followed(export: Path, tmp_path: Path) -> None:
    shutil.move(export / "pytorch", tmp_path / "elsewhere")
    (export / "pytorch").symlink_to(tmp_path / "elsewhere")
    found = codes(export)
    assert ("symlink", "pytorch") in found
    assert ("missing", "pytorch/config.json") in found


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00", "null", '{"manifest_version": true}', '{"manifest_version": 1}', "[" * 100_000])
def test_what_is_no_manifest_is_told(export: Path, text: str) -> None:
    (export / MANIFEST).write_text(text)
    assert codes(export) == [("manifest-malformed", MANIFEST)]


@pytest.mark.parametrize("row", [{}, {"path": "a", "size": "1", "sha256": "x"}, "a", None, {"path": 1, "size": 1, "sha256": ""}])
def test_an_entry_that_is_not_understood_is_told_and_the_rest_still_compared(export: Path, row: object) -> None:
    edit_manifest(export, lambda manifest: manifest["files"].append(row))
    (export / "README.md").unlink()
    assert codes(export) == [("manifest-malformed", MANIFEST), ("missing", "README.md")]


def test_a_file_named_twice_is_told(export: Path) -> None:
    edit_manifest(export, lambda manifest: manifest["files"].append(manifest["files"][0]))
    assert [code for code, _ in codes(export)] == ["manifest-malformed"]


def test_a_manifest_of_a_newer_version_is_refused(export: Path) -> None:
    edit_manifest(export, lambda manifest: manifest.update(manifest_version=2))
    assert codes(export) == [("manifest-newer", MANIFEST)]


def test_a_folder_without_manifest_and_one_whose_manifest_is_a_link(export: Path, tmp_path: Path) -> None:
    shutil.move(export / MANIFEST, tmp_path / MANIFEST)
    assert codes(export) == [("no-manifest", MANIFEST)]
    (export / MANIFEST).symlink_to(tmp_path / MANIFEST)
    assert codes(export) == [("symlink", MANIFEST)]


UNPRIVILEGED = """
import os, sys
from pathlib import Path
from daemon.contract.values import build_models
from daemon.publishing.verification import verify
build_models()  # while Python may still read its own library
os.chdir(sys.argv[1])
if os.geteuid() == 0:
    os.setegid(65534)
    os.seteuid(65534)
print([(problem.code, problem.path) for problem in verify(Path(".")).problems])
"""


def test_files_that_may_not_be_read_are_told(export: Path) -> None:
    """Root may read everything, so the look happens in a process that is not root."""
    for path in (export, *export.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (export / "pytorch" / "model.safetensors").chmod(0)
    answer = subprocess.run([sys.executable, "-c", UNPRIVILEGED, str(export)], capture_output=True, text=True, check=False)
    assert answer.stdout.strip() == "[('unreadable', 'pytorch/model.safetensors')]", answer.stdout + answer.stderr


def test_an_export_that_is_replaced_while_it_is_verified_is_never_called_unsound(tmp_path: Path, export: Path) -> None:
    """The first look loses its files in the middle; the second one sees the new export, whole."""
    versions = [2]

    def replace(count: int) -> None:
        if versions:
            publish(tmp_path, versions.pop(), export, export_id="another")

    found = verify(export, on_bytes=replace)
    assert (found.export, found.problems) == ("another", ())


def test_a_file_that_becomes_a_link_while_it_is_verified_is_not_followed(tmp_path: Path, export: Path) -> None:
    shutil.copy(export / "report.json", tmp_path / "elsewhere")

    def relink(count: int) -> None:
        (export / "report.json").unlink()
        (export / "report.json").symlink_to(tmp_path / "elsewhere")

    found = verify(export, on_bytes=relink)
    assert [(problem.code, problem.path) for problem in found.problems] == [("unreadable", "report.json")]


def test_all_exports_below_a_folder_are_found_hidden_ones_and_links_left_out(tmp_path: Path, export: Path) -> None:
    publish(tmp_path, 1, tmp_path / "exports" / "run" / "step-8", run="run", step=8)
    publish(tmp_path, 1, tmp_path / "exports" / "other" / "deep" / "step-2", run="other", step=2)
    publish(tmp_path, 1, tmp_path / "exports" / ".staging" / "x" / "publish", run="run", step=9)
    link_to(tmp_path / "exports" / "run" / "latest", export)
    found = [path.relative_to(tmp_path / "exports").as_posix() for path in exports_below(tmp_path / "exports")]
    assert found == ["other/deep/step-2", "run/step-4", "run/step-8"]
    assert to_verify(tmp_path / "exports" / "run" / "latest") == [(tmp_path / "exports" / "run" / "latest", "")]


def test_one_folder_of_an_export_can_be_verified_alone(export: Path) -> None:
    (export / "report.json").write_text("changed by somebody")
    assert to_verify(export / "pytorch") == [(export, "pytorch")]
    assert codes(export, inside="pytorch") == []
    assert verify(export, inside="pytorch").files == 3
    (export / "pytorch" / "config.json").unlink()
    assert codes(export, inside="pytorch") == [("missing", "pytorch/config.json")]


def test_the_exit_code_says_sound_not_sound_or_nothing_there(tmp_path: Path, export: Path) -> None:
    code, said = ask(str(export))
    assert code == 0 and re.fullmatch(re.escape(f"{export}: sound (5 files, {ask_size(export)}, ") + r"[\d.]+ m?s\)\n", said), said
    (export / "README.md").unlink()
    code, said = ask(str(export.parent))
    assert code == 1
    assert "README.md: the manifest names it, but it does not exist" in said
    code, said = ask(str(tmp_path / "exports"), "--json")
    answer = json.loads(said)
    assert (code, answer["sound"], answer["exports"][0]["problems"][0]["code"]) == (1, False, "missing")
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "nowhere", tmp_path / "empty", export / "report.json"):
        assert ask(str(path))[0] == 2


def ask_size(export: Path) -> str:
    from daemon.contract import units

    return units.size(verify(export).bytes)
