"""`[[deliver]]`: a table has the keys of all targets and those of its kind; its secrets stay out of all that is shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from daemon.cli.main import app
from daemon.config.deliver.targets import DeliverTarget
from daemon.config.loading import WrongValues, load
from daemon.contract.delivering import kinds
from daemon.contract.faults.secrets import censored
from daemon.operating.diagnosis.doctor import examine
from daemon.operating.reload import changes

DECLARED = """
from pathlib import Path
from pydantic import field_validator
from daemon.contract.delivering.declaration import DeliveryKind
from daemon.contract.faults.secret_url import SecretUrl
from daemon.contract.frozen import Frozen

class Options(Frozen):
    url: str
    hook: SecretUrl | None = None
    folder: Path | None = None
    parts: int = 3

    @field_validator("url")
    @classmethod
    def _has_a_place(cls, value):
        if not value.startswith(("https://", "file://")):
            raise ValueError("must begin with file:// or https://")
        return value

KIND = DeliveryKind(name="shelf", about="a shelf", options=Options, entry="shelf.target:Shelf", variants=("pytorch", "onnx*"),
                    secret_variables=("SHELF_TOKEN", "SHELF_ROOM"))
BROKEN = DeliveryKind(name="shelf", about="another", options=Options, entry="shelf.target:Shelf")

class Row(Frozen):
    keep: int = 1

TAKEN = DeliveryKind(name="row", about="a row", options=Row, entry="shelf.target:Row")
"""
TABLE = 'name = "a"\nkind = "shelf"\nurl = "https://host/place"\n'


@pytest.fixture(autouse=True)
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package that declares a kind `shelf`."""
    site = tmp_path / "site"
    (site / "shelf").mkdir(parents=True)
    (site / "shelf" / "__init__.py").write_text(DECLARED)
    (site / "shelf-1.dist-info").mkdir()
    (site / "shelf-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf\nVersion: 1\n")
    (site / "shelf-1.dist-info" / "entry_points.txt").write_text("[ckptd.deliveries]\nshelf = shelf:KIND\n")
    monkeypatch.syspath_prepend(site)
    monkeypatch.delenv("SHELF_TOKEN", raising=False)
    kinds.kinds.cache_clear()
    yield site
    sys.modules.pop("shelf", None)
    kinds.kinds.cache_clear()


def configured(folder: Path, *tables: str) -> Path:
    file = folder / "config.toml"
    state = f'[state]\ndirectory = "{folder}/state"\n[watch]\nroots = ["{folder}/runs"]\n[output]\ndirectory = "{folder}/out"\n'
    file.write_text("".join(f"[[deliver]]\n{table}\n" for table in tables) + state)
    file.chmod(0o600)
    return file


def test_a_table_has_the_keys_of_all_targets_and_those_of_its_kind(tmp_path: Path) -> None:
    (target,) = load(configured(tmp_path, TABLE + 'hook = "https://host/S3CRET"\nfolder = "here"\nbandwidth = "10MB"\nkeep = 2')).deliver
    assert (target.name, target.kind, target.policy, target.bandwidth, target.keep) == ("a", "shelf", "passed", 10_000_000, 2)
    assert target.options == {
        "url": "https://host/place", "hook": "https://host/S3CRET", "folder": str(tmp_path / "here"), "parts": 3,
    }  # fmt: skip
    assert target.folders == (tmp_path / "here",)
    assert target.is_for("any") and load(configured(tmp_path, TABLE + 'runs = ["prod-*"]')).deliver[0].is_for("prod-1")
    assert not load(configured(tmp_path, TABLE + 'runs = ["prod-*"]')).deliver[0].is_for("test-1")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('kind = "shelf"\nurl = "file:///x"', "deliver.0.name: is not given; add it"),
        ('name = "a b"\nkind = "shelf"\nurl = "file:///x"', "deliver.0.name: must be of letters, digits, _ and -, at most 40"),
        ('name = "a"\nkind = "shelv"\nwhatever = 1', "deliver.0.kind: there is no such kind; did you mean 'shelf'?"),
        ('name = "a"\nkind = "S3CRET"', "deliver.0.kind: there is no such kind; the names are"),
        ('name = "a"\nkind = "shelf"', "deliver.0.url: is not given; add it"),
        ('name = "a"\nkind = "shelf"\nurl = "gopher"', "deliver.0.url: must begin with file:// or https://"),
        (TABLE + "partts = 2", "deliver.0.partts: is not a known key; did you mean 'parts'?"),
        (TABLE + "S3CRETx = 2", "deliver.0.***: is not a known key"),
        (TABLE + 'polici = "all"', "deliver.0.polici: is not a known key; did you mean 'policy'?"),
        (TABLE + 'policy = "passd"', "deliver.0.policy: must be 'all', 'passed' or 'best' (it is 'passd'); did you mean 'passed'?"),
        (TABLE + "keep = -1", "deliver.0.keep: must be at least 0"),
        (TABLE + 'parts = "S3CRET"', "deliver.0.parts: must be a whole number"),
        (TABLE + "hook = 3", "deliver.0.hook: must be text in quotation marks"),
        (TABLE + 'variants = ["onyx-int8"]', "deliver.0.variants: there is no variant 'onyx-int8'; did you mean 'onnx-int8'?"),
        (TABLE + 'variants = ["gguf-f16"]', "deliver.0.variants: a target of the kind shelf can't take 'gguf-f16'; it takes pytorch,"),
        (TABLE + 'secret_file = "nowhere"', "deliver.0.secret_file: there is no such file; make it, with the secret alone"),
        (TABLE + 'secret_file = "empty"', "deliver.0.secret_file: the file is empty"),
        ('name = "a"\nkind = "shelf"\nurl = "https://me:S3CRET@host"', "deliver.0: url holds a user, a password or a key"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_target_is_said_by_its_place_and_without_its_secret(tmp_path: Path, table: str, said: str) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(WrongValues) as caught:
        load(configured(tmp_path, table))
    assert said in str(caught.value)
    assert "S3CRET" not in str(caught.value)
    assert len(caught.value.problems) == 1, "one mistake is one line"


def test_two_targets_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongValues, match="deliver: two of them have the same name"):
        load(configured(tmp_path, TABLE, TABLE))


def test_neither_show_nor_a_change_shows_a_secret_and_addresses_stay_readable(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("tok.S3CRET-1\n")
    before = load(configured(tmp_path, TABLE + 'secret_file = "token"\nhook = "https://host/S3CRET-2"'))
    shown = CliRunner().invoke(app, ["config", "show", "--config", str(tmp_path / "config.toml"), "--json"]).output
    assert "S3CRET" not in shown
    (table,) = json.loads(shown)["values"]["deliver"]["value"]
    assert (table["url"], table["hook"], table["secret_file"]) == ("https://host/place", "https://***", str(tmp_path / "token"))
    assert before.deliver[0].secret() == "tok.S3CRET-1"
    assert "S3CRET" not in repr(before) and "S3CRET" not in before.model_dump_json()
    assert censored("a library says tok.S3CRET-1 of https://host/S3CRET-2 at https://host/place") == (
        "a library says *** of *** at https://host/place"
    )
    (tmp_path / "token").write_text("tok.S3CRET-3\n")
    assert changes(before, load(tmp_path / "config.toml")) == ("deliver.a: changed",)
    assert changes(before, load(configured(tmp_path, TABLE.replace('"a"', '"b"')))) == ("deliver.a: removed", "deliver.b: added")


def test_the_secret_comes_from_the_file_or_the_service_manager_or_the_kinds_usual_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELF_TOKEN", "of.the-environment")
    monkeypatch.setenv("SHELF_ROOM", "upstairs")
    (target,) = load(configured(tmp_path, TABLE)).deliver
    assert target.secret() == "" and target.secret_variables == {"SHELF_TOKEN": "of.the-environment", "SHELF_ROOM": "upstairs"}
    assert censored("of.the-environment upstairs") == "*** upstairs", "a variable with no secret in it may be said"
    (tmp_path / "deliver-a").write_text("of-the-manager")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    (target,) = load(tmp_path / "config.toml").deliver
    assert target.secret() == "of-the-manager" and target.secret_variables == {}
    (tmp_path / "token").write_text('{"key": "of the file",\n "other": 1}\n')
    assert load(configured(tmp_path, TABLE + 'secret_file = "token"')).deliver[0].secret() == '{"key": "of the file",\n "other": 1}'


def test_check_says_that_others_may_read_a_secret(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("S3CRET-S3CRET")
    (tmp_path / "token").chmod(0o644)
    config = configured(tmp_path, TABLE + 'secret_file = "token"\nhook = "https://host/S3CRET"')
    config.chmod(0o644)
    said = [warning for warning in examine(load(config), config).warnings if warning.startswith("deliver")]
    assert any(line.startswith(f"deliver.a.secret_file: others may read {tmp_path}/token (mode 0644)") for line in said)
    assert any(line.startswith(f"deliver: others may read {config} (mode 0644)") for line in said)
    (tmp_path / "token").chmod(0o600)
    config.chmod(0o600)
    assert not [warning for warning in examine(load(config), config).warnings if warning.startswith("deliver") and "may read" in warning]


def test_targets_can_be_given_by_a_variable_and_switched_off_by_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTD_DELIVER", json.dumps([{"name": "x", "kind": "shelf", "url": "file:///srv"}]))
    assert [target.name for target in load(configured(tmp_path, TABLE)).deliver] == ["x"]
    done = CliRunner().invoke(
        app, ["--set", "deliver=[]", "config", "show", "deliver", "--config", str(tmp_path / "config.toml"), "--json"]
    )
    assert json.loads(done.output)["values"]["deliver"]["value"] == []


def test_a_declaration_that_cannot_be_loaded_keeps_nothing_from_starting(shelf: Path, tmp_path: Path) -> None:
    (shelf / "shelf-1.dist-info" / "entry_points.txt").write_text(
        "[ckptd.deliveries]\nshelf = shelf:KIND\nb = shelf:ZBROKEN\nc = shelf:TAKEN\nd = nowhere.at:all\ne = sys:argv\nf = zshelf:BROKEN\n"
    )
    (shelf / "zshelf.py").write_text(DECLARED)
    kinds.kinds.cache_clear()
    assert load(configured(tmp_path, TABLE)).deliver[0].kind == "shelf"
    said = "\n".join(kinds.kinds().problems)
    assert "shelf:TAKEN was left out: ValueError: its key 'keep' is one of every target" in said
    assert "zshelf:BROKEN was left out: ValueError: there is another kind 'shelf'" in said
    assert "nowhere.at:all was left out: ModuleNotFoundError" in said and "sys:argv was left out: TypeError: it is a list" in said
    with pytest.raises(WrongValues, match=r"no such kind; the names are .* was left out"):
        load(configured(tmp_path, TABLE.replace("shelf", "entirely-other")))


def test_no_declaration_is_imported_without_a_target(tmp_path: Path) -> None:
    load(configured(tmp_path))
    assert kinds.kinds.cache_info().currsize == 0 and "shelf" not in sys.modules


def test_the_keys_that_no_kind_may_have_are_those_of_every_target() -> None:
    assert set(DeliverTarget.model_fields) == kinds.COMMON_KEYS
