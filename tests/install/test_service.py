"""`ckptd install-service` into a tree: what it does, does again, takes back, and refuses."""

from __future__ import annotations

import configparser
import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.config.loading import load
from daemon.installing import rights, unit_texts
from daemon.installing.actions import Record, Undo, read_record, taking_back
from daemon.operating.diagnosis.doctor import examine
from tests.cli.test_bad_input import ckptd, one_sentence
from tests.systemd.test_unit import complaints

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may install for a whole box")
ACCOUNTS = {
    "passwd": "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\nanna:x:1500:1600::/home/anna:/bin/sh\n",
    "group": "root:x:0:\nnogroup:x:65534:\nresearch:x:1600:\ngpu:x:1700:\n", "shadow": "", "gshadow": "",
    "login.defs": "USERGROUPS_ENAB yes\nSYS_UID_MIN 100\nSYS_UID_MAX 999\n",
}  # fmt: skip
UNITS = "etc/systemd/system"
Tree = dict[str, tuple[int, int, int, str]]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may pass; pytest's own lie in one that is closed."""
    with tempfile.TemporaryDirectory(prefix="ckptd-install-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture
def box(folder: Path) -> Path:
    """A tree with accounts, a configuration and a directory of runs that everybody may read."""
    root = folder / "box"
    for name in ("etc/ckptd", "data/runs/run", "models", "usr/local/bin", "var/lib"):
        (root / name).mkdir(parents=True)
    for name, text in ACCOUNTS.items():
        (root / "etc" / name).write_text(text)
    configure(root)
    return root


def configure(root: Path, more: str = "", roots: str = '["/data/runs"]') -> None:
    (root / "etc/ckptd/config.toml").write_text(
        f'[watch]\nroots = {roots}\n[base]\nsearch = ["/models"]\n[output]\ndirectory = "/srv/ckptd/exports"\n{more}'
    )


def install(root: Path, *words: str | Path, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """The verb for that tree."""
    given = () if "--config" in words or "--undo" in words else ("--config", root / "etc/ckptd/config.toml")
    return ckptd(root.parent, "install-service", "--root", root, *given, *words, prefix=prefix, HOME=str(root.parent))


def tree(root: Path) -> Tree:
    """Every path with its mode, owner, group and content; without what useradd keeps of before."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else ""
        if not path.name.endswith("-") and path.name != "install-service.json":
            found[str(path.relative_to(root))] = (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, content)
    return found


@needs_root
def test_it_makes_user_folders_units_and_drop_ins_and_again_does_nothing_and_undoes_all_of_it(box: Path) -> None:
    configure(box, '[limits]\ndevice = "cuda"\n')
    before = tree(box)
    done = install(box, "--memory", "16G")
    assert done.returncode == 0, done.stderr
    made = tree(box)
    row = next(row.split(":") for row in made["etc/passwd"][3].splitlines() if row.startswith("ckptd:"))
    assert row[5:] == ["/var/lib/ckptd", "/usr/sbin/nologin"] and 100 <= int(row[2]) < 1000
    assert made["srv/ckptd/exports"][:3] == (0o755, int(row[2]), int(row[3]))
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.read_string(made[f"{UNITS}/ckptd.service"][3])
    assert unit["Service"]["ExecStart"].split() == [*unit_texts.command(), "run", "--config", "/etc/ckptd/config.toml"]
    assert unit["Service"]["ExecReload"].split() == [*unit_texts.command(), "reload", "--config", "/etc/ckptd/config.toml"]
    drop_ins = {name: content for name, (_, _, _, content) in made.items() if name.startswith(f"{UNITS}/ckptd.service.d/")}
    assert {Path(name).stem for name in drop_ins} == {"output", "gpu", "memory"}
    assert "ReadWritePaths=/srv/ckptd/exports\n" in drop_ins[f"{UNITS}/ckptd.service.d/output.conf"]
    assert "MemoryMax=16G\n" in drop_ins[f"{UNITS}/ckptd.service.d/memory.conf"]
    assert f"{UNITS}/multi-user.target.wants/ckptd.service" in made and f"{UNITS}/ckptd.slice" in made
    assert "ckptd install" in made["usr/local/share/man/man1/ckptd.1"][3].replace("\\-", "-")
    again = install(box, "--memory", "16G")
    assert again.stdout.startswith("Nothing to do") and tree(box) == made
    # A drop-in that is not asked for any more goes.
    assert install(box).stdout.startswith(f"rm {box}/{UNITS}/ckptd.service.d/memory.conf\n")
    assert install(box, "--undo").returncode == 0
    assert tree(box) == before and not (box / "etc/ckptd/install-service.json").exists()
    assert "has installed nothing here" in install(box, "--undo").stdout


@pytest.mark.slow
@needs_root
def test_the_dry_run_is_the_script_of_what_is_done(box: Path) -> None:
    before = tree(box)
    script = install(box, "--dry-run", "--group", "gpu", "--slice", "ml-train.slice")
    assert script.returncode == 0 and tree(box) == before
    kept = box.with_name("kept")
    shutil.copytree(box, kept, symlinks=True)
    subprocess.run(["sh", "-e"], input=script.stdout, text=True, check=True, capture_output=True)
    by_script = tree(box)
    shutil.rmtree(box)
    shutil.copytree(kept, box, symlinks=True)
    assert install(box, "--group", "gpu", "--slice", "ml-train.slice").returncode == 0
    assert tree(box) == by_script != before
    assert "gpu:x:1700:ckptd" in by_script["etc/group"][3]
    assert "/sys/fs/cgroup/ml.slice/ml-train.slice/ckptd.service\n" in by_script[f"{UNITS}/ckptd.service.d/slice.conf"][3]
    undo = install(box, "--undo", "--dry-run")
    assert tree(box) == by_script
    subprocess.run(["sh", "-e"], input=undo.stdout.replace(f"gpasswd --root {box}", "true"), text=True, check=True, capture_output=True)
    left = tree(box)
    assert {name: row for name, row in left.items() if name != "etc/group"} == {n: row for n, row in before.items() if n != "etc/group"}


@pytest.mark.slow
@needs_root
def test_what_others_wrote_is_neither_replaced_nor_removed(box: Path) -> None:
    (box / UNITS).mkdir(parents=True)
    unit = box / UNITS / "ckptd.service"
    unit.write_text("[Service]\nExecStart=/mine\n")
    before = tree(box)
    done = install(box)
    assert done.returncode == 2 and "there is a file that this command did not write" in one_sentence(done) and tree(box) == before
    assert install(box, "--force").returncode == 0
    assert unit.with_name("ckptd.service.before-ckptd").read_text() == "[Service]\nExecStart=/mine\n"
    # What was changed since is left, with the reason, and a folder that is not empty stays.
    drop_in, exports = box / UNITS / "ckptd.service.d" / "output.conf", box / "srv/ckptd/exports"
    drop_in.write_text("changed")
    (exports / "run").mkdir()
    undone = install(box, "--undo")
    assert f"# {drop_in} has been changed since and is kept" in undone.stdout and drop_in.read_text() == "changed"
    assert unit.read_text() == "[Service]\nExecStart=/mine\n" and (exports / "run").is_dir()


@needs_root
def test_the_manual_page_of_another_version_is_replaced_and_a_foreign_file_is_not(box: Path) -> None:
    page = box / "usr/local/share/man/man1/ckptd.1"
    page.parent.mkdir(parents=True)
    page.write_text("something of mine\n")
    refused = install(box)
    assert refused.returncode == 2 and str(page) in one_sentence(refused) and "did not write" in one_sentence(refused)
    page.write_text('.\\" Made of the help\n.TH CKPTD 1 "" "ckptd 0.0.9" "User commands"\n')
    done = install(box)
    assert done.returncode == 0, done.stderr
    assert "0.0.9" not in page.read_text() and ".SH SYNOPSIS" in page.read_text()


@pytest.mark.slow
@needs_root
def test_a_user_whose_files_are_left_is_left_too(box: Path) -> None:
    assert install(box).returncode == 0
    number = (box / "srv/ckptd/exports").stat().st_uid
    (box / "var/lib/ckptd").mkdir()
    os.chown(box / "var/lib/ckptd", number, number)
    undone = install(box, "--undo")
    assert undone.returncode == 0 and f"# the user ckptd is kept, because it has files in {box}/var/lib/ckptd" in undone.stdout
    assert "ckptd:" in (box / "etc/passwd").read_text()


@pytest.mark.slow
@needs_root
def test_as_the_user_who_trains(box: Path) -> None:
    done = install(box, "--run-as", "anna")
    assert done.returncode == 0, done.stderr
    made = tree(box)
    assert "User=anna\nGroup=research\n" in made[f"{UNITS}/ckptd.service.d/trainer.conf"][3]
    assert "ckptd:" not in made["etc/passwd"][3] and made["srv/ckptd/exports"][1:3] == (1500, 1600)
    assert "there is no user 'bob'" in one_sentence(install(box, "--run-as", "bob"))
    # What belongs to another user's service is not given over silently.
    (box / "srv/ckptd/exports/run").mkdir()
    assert "it belongs to 1500, but the service runs as" in one_sentence(install(box))


@pytest.mark.slow
@needs_root
def test_the_configuration_is_readable_for_the_service_and_for_nobody_else(box: Path) -> None:
    configure(box, '[notify]\nurls = ["json://localhost/key"]\n')
    config = box / "etc/ckptd/config.toml"
    config.chmod(0o600)
    assert install(box).returncode == 0
    number = (box / "srv/ckptd/exports").stat().st_gid
    assert (stat.S_IMODE(config.stat().st_mode), config.stat().st_uid, config.stat().st_gid) == (0o640, 0, number)
    assert (box / UNITS / "ckptd.service.d/notifications.conf").is_file()
    state = box / "state"
    state.mkdir(mode=0o700)
    os.chown(state, number, number)
    loaded = load(config)
    settings = loaded.model_copy(update={"state": loaded.state.model_copy(update={"directory": state})})
    assert not [one for one in examine(settings, config).warnings if "such URLs contain keys" in one]
    config.chmod(0o644)
    assert [one for one in examine(settings, config).warnings if "such URLs contain keys" in one]
    config.chmod(0o640)
    assert install(box, "--undo").returncode == 0
    assert (stat.S_IMODE(config.stat().st_mode), config.stat().st_gid) == (0o600, 0)


@needs_root
def test_deliveries_get_a_network_and_each_token_that_the_service_may_not_read(box: Path, folder: Path) -> None:
    tables = ""
    for name in ("hub", "mirror", "open"):
        for path in (folder / name, box / (folder / name).relative_to("/")):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("hf_S3CRET\n")
            path.chmod(0o644 if name == "open" else 0o600)
        tables += f'[[deliver]]\nname = "{name}"\nkind = "hub"\nrepo = "me/{{run}}"\nsecret_file = "{folder / name}"\n'
    models = '[[deliver]]\nname = "triton"\nkind = "repository"\nfolder = "/srv/models"\nlayout = "triton"\n'
    configure(box, tables + models)
    done = install(box)
    assert done.returncode == 0 and "S3CRET" not in done.stdout, done.stderr
    assert "deliver.triton writes into /srv/models" in done.stderr
    lines = (box / UNITS / "ckptd.service.d/deliver.conf").read_text().splitlines()
    assert "PrivateNetwork=no" in lines and "IPAddressDeny=" in lines
    given = [line for line in lines if line.startswith("LoadCredential=")]
    assert given == [f"LoadCredential=deliver-{name}:{folder / name}" for name in ("hub", "mirror")]


@needs_root
def test_a_file_of_urls_that_the_service_may_not_read_stays_its_owners_and_systemd_gives_it(box: Path, folder: Path) -> None:
    urls = folder / "100% own" / "urls"  # read on this box, and asked about in the tree
    theirs = box / urls.relative_to("/")
    for path in (urls, theirs):
        path.parent.mkdir(parents=True)
        path.write_text("json://localhost/S3CRET\n")
    configure(box, f'[notify]\nurls_file = "{urls}"\n')
    drop_in = box / UNITS / "ckptd.service.d/notifications.conf"
    theirs.chmod(0o600)
    before = tree(box)
    done = install(box)
    assert done.returncode == 0, done.stderr
    asked = f"LoadCredential=notify-urls:{urls}".replace("%", "%%")
    assert [line for line in drop_in.read_text().splitlines() if "LoadCredential=" in line] == [asked]
    assert theirs.stat().st_mode & 0o777 == 0o600 and theirs.stat().st_uid == 0 and "S3CRET" not in done.stdout + done.stderr
    assert install(box).stdout.startswith("Nothing to do")
    theirs.chmod(0o644)
    assert install(box).returncode == 0 and f"#{asked}" not in drop_in.read_text() and f"\n{asked}" not in drop_in.read_text()
    theirs.chmod(0o600)
    assert install(box, "--undo").returncode == 0 and tree(box) == before


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs another user than root")
def test_what_systemd_gives_is_used_where_the_configurations_file_is_closed(box: Path, folder: Path) -> None:
    (folder / "urls").write_text("slack://of/root/S3CRET\n")
    (folder / "urls").chmod(0o600)
    (folder / "given").mkdir()
    (folder / "given" / "notify-urls").write_text("json://localhost\n")
    configure(box, f'[notify]\nurls_file = "{folder}/urls"\n')
    words = ("config", "show", "notify", "--config", box / "etc/ckptd/config.toml")
    prefix = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    refused = ckptd(box.parent, *words, prefix=prefix, HOME=str(folder))
    assert refused.returncode == 2 and "the file can't be read (Permission denied)" in refused.stderr
    shown = ckptd(box.parent, *words, prefix=prefix, HOME=str(folder), CREDENTIALS_DIRECTORY=str(folder / "given"))
    assert shown.returncode == 0, shown.stderr
    (folder / "given").chmod(0o700)  # as systemd closes it to a reload command
    shown = ckptd(box.parent, *words, prefix=prefix, HOME=str(folder), CREDENTIALS_DIRECTORY=str(folder / "given"))
    assert shown.returncode == 0, shown.stderr
    shown = ckptd(box.parent, *words, prefix=prefix, HOME=str(folder), CREDENTIALS_DIRECTORY=str(folder))
    assert shown.returncode == 2, "credentials without the URLs"


@pytest.mark.slow
@needs_root
def test_closed_directories_are_opened_by_acls_that_the_undo_takes_away(box: Path) -> None:
    if shutil.which("setfacl") is None:
        pytest.skip("setfacl is not installed")
    home, runs = box / "home/anna", box / "home/anna/runs"
    (runs / "run/checkpoint-1").mkdir(parents=True)
    (runs / "run/checkpoint-1/adapter_model.safetensors").write_text("x")
    for path in (home, *home.rglob("*")):
        os.chown(path, 1500, 1600)
        path.chmod(0o700 if path.is_dir() else 0o600)
    configure(box, roots='["/home/anna/runs"]')
    before, nobody = tree(box), (65534, (65534,))
    told = install(box, "--run-as", "nobody")
    assert told.returncode == 0, told.stderr
    assert "training writes files that only 1500 may read" in told.stderr and "better: --run-as 1500" in told.stderr
    assert f"setfacl -m u:nobody:x {home}\n" in told.stdout and f"setfacl -R -d -m u:nobody:rX {runs}\n" in told.stdout
    assert rights.lacking([runs], *nobody) == []
    assert not os.access(home / "other", os.R_OK) and "setfacl" not in install(box, "--run-as", "nobody").stdout
    assert install(box, "--undo").returncode == 0
    assert tree(box) == before and len(rights.lacking([runs], *nobody)) == 1


@needs_root
def test_what_a_user_lacks_is_found_above_and_below(folder: Path) -> None:
    runs = folder / "anna" / "deep" / "runs"
    (runs / "run").mkdir(parents=True)
    file = runs / "run" / "model.safetensors"
    file.write_text("x")
    compiled = runs / "run" / "__pycache__" / "model.cpython-311.pyc"
    compiled.parent.mkdir()
    compiled.touch(0o600)
    assert rights.lacking([runs, folder / "nowhere"], 65534, (65534,)) == [], "what Python makes again is not needed"
    for closed in (folder / "anna", folder / "anna" / "deep"):
        closed.chmod(0o700)
    file.chmod(0o600)
    (lack,) = rights.lacking([runs], 65534, (65534,))
    assert lack.above == (str(folder / "anna"), str(folder / "anna" / "deep"))
    assert (lack.below, lack.private_of) == (str(file), "0")
    # By a group, none of it is lacking.
    for path in (folder / "anna", folder / "anna" / "deep", file):
        os.chown(path, 0, 1600)
        path.chmod(0o750 if path.is_dir() else 0o640)
    assert rights.lacking([runs], 65534, (65534, 1600)) == []
    runs.chmod(0o700)
    (lack,) = rights.lacking([runs], 65534, (65534, 1600))
    assert (lack.above, lack.below) == ((), str(runs))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--memory", "much"), "--memory can't be 'much'"),
        (("--slice", "x.slice\nUser=root"), "--slice can't be"),
        (("--group", "nosuch"), "there is no group 'nosuch'"),
        (("--config", "missing.toml"), "there is no such file"),
    ],
)
def test_odd_options_are_refused_before_anything_is_done(box: Path, words: tuple[str, ...], said: str) -> None:
    before = tree(box)
    done = install(box, *words, "--dry-run")
    assert done.returncode == 2 and said in one_sentence(done) and tree(box) == before


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="needs another user than root")
def test_without_root_it_says_so_and_shows_what_it_would_do(box: Path) -> None:
    prefix = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups") if os.geteuid() == 0 else ()
    before = tree(box)
    done = install(box, prefix=prefix)
    assert done.returncode == 2 and "only root can install a system service. Fix: run the command with sudo" in one_sentence(done)
    shown = install(box, "--dry-run", prefix=prefix)
    assert shown.returncode == 0 and "useradd --prefix" in shown.stdout and "only root can test whether" in shown.stdout
    assert tree(box) == before


def test_without_a_configuration_it_says_how_to_make_one(box: Path, folder: Path) -> None:
    if Path("/etc/ckptd/config.toml").exists():
        pytest.skip("this box has one")
    done = ckptd(folder, "install-service", "--root", box, "--dry-run", HOME=str(folder), XDG_CONFIG_HOME=str(folder))
    assert done.returncode == 2 and "create one with `ckptd init`" in one_sentence(done)


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="needs another user than root")
def test_a_service_of_ones_own_is_written_into_ones_own_folders(box: Path, folder: Path) -> None:
    prefix = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups") if os.geteuid() == 0 else ()
    (folder / "xdg-config").mkdir(mode=0o777)
    (folder / "xdg-config").chmod(0o777)
    shown = ckptd(
        folder, "install-service", "--user", "--dry-run", "--config", box / "etc/ckptd/config.toml", prefix=prefix,
        HOME=str(folder), XDG_CONFIG_HOME=str(folder / "xdg-config"),
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    files = shown.stdout.replace("loginctl", "true").replace("systemctl", "true")
    subprocess.run([*prefix, "sh", "-e"], input=files, text=True, check=True, capture_output=True)
    unit = (folder / "xdg-config/systemd/user/ckptd.service").read_text()
    assert f"run --config {box}/etc/ckptd/config.toml\n" in unit and "User=" not in unit and "WantedBy=default.target" in unit
    assert "systemctl --user enable ckptd.service" in shown.stdout and "loginctl enable-linger" in shown.stdout


def test_a_record_that_others_could_have_written_is_not_run(tmp_path: Path) -> None:
    record = tmp_path / "etc/ckptd/install-service.json"
    record.parent.mkdir(parents=True)
    record.write_text(Record(undo=[Undo(kind="command", argv=("touch", str(tmp_path / "run")))]).model_dump_json())
    record.chmod(0o666)
    before = install(tmp_path, "--undo", "--dry-run")
    assert before.returncode == 2 and "not only its owner may write to it" in one_sentence(before)
    record.chmod(0o600)
    assert list(taking_back(read_record(record))) == [(("touch", str(tmp_path / "run")), "")]
    record.write_text(json.dumps({"version": 2}))
    assert "it is damaged" in one_sentence(install(tmp_path, "--undo", "--dry-run"))


def test_values_are_written_so_that_systemd_reads_them_as_they_are(tmp_path: Path) -> None:
    assert unit_texts.quoted(["/a b", "/100%", "/c$d", '/q"', "/plain"]) == '"/a b" /100%% /c$d "/q\\"" /plain'
    assert unit_texts.quoted(["/c$d"], of_command=True) == "/c$$d"
    assert unit_texts.group_of("training.slice") == "training.slice/ckptd.service"
    text = unit_texts.service(Path("/etc/my box/config.toml"))
    assert '--config "/etc/my box/config.toml"\n' in text and "/opt/ckptd" not in text
    if tool := shutil.which("systemd-analyze"):
        for of_user in (False, True):
            (tmp_path / "ckptd.service").write_text(
                unit_texts.service(tmp_path / "config.toml", of_user=of_user).replace("=ckptd\nGroup=ckptd", "=root\nGroup=root")
            )
            (tmp_path / "ckptd.slice").write_text(unit_texts.slice_())
            done = subprocess.run(
                [tool, "--man=no", "verify", str(tmp_path / "ckptd.service")], capture_output=True, text=True, check=False
            )
            assert not complaints(done.stderr), done.stderr


def test_a_target_gives_the_service_the_network_and_a_closed_file_of_its_secret_is_said(box: Path, folder: Path) -> None:
    secret = folder / "own" / "secret"  # read on this box, and asked about in the tree
    theirs = box / secret.relative_to("/")
    for path in (secret, theirs):
        path.parent.mkdir(parents=True)
        path.write_text("whsec_" + "UzNDUkVU" * 5)
    theirs.chmod(0o600)
    configure(box, f'[[notify.targets]]\nname = "hook"\nwebhook = "https://host/S3CRET"\nsecret_file = "{secret}"\n')
    done = install(box)
    assert done.returncode == 0, done.stderr
    assert (box / UNITS / "ckptd.service.d/notifications.conf").exists()
    assert f"ckptd can't read {secret} (notify.targets.hook.secret_file)" in done.stdout + done.stderr
    assert "S3CRET" not in done.stdout + done.stderr and "UzND" not in done.stdout + done.stderr


def test_the_service_may_write_where_a_tracker_keeps_its_files(box: Path) -> None:
    events, files = '[[notify.targets]]\nname = "tb"\ntensorboard = "/srv/events"\n', '[[notify.targets]]\nname = "wb"\nwandb = "p"\n'
    configure(box, f'{events}{files}offline = true\nfolder = "/srv/wandb"\n')
    done = install(box)
    assert done.returncode == 0, done.stderr
    paths = "ReadWritePaths=/srv/ckptd/exports /srv/events /srv/wandb\n"
    assert paths in (box / UNITS / "ckptd.service.d/output.conf").read_text()
    assert (box / "srv/events").stat().st_uid == (box / "srv/ckptd/exports").stat().st_uid
