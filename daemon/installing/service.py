"""What it takes to run ckptd as a service of a box, or of one user: the list of actions, made by looking at what is there already.

Called by `ckptd install-service`. What is as it should be gives no action, so that the same command can be given again, for example after
an upgrade. What others wrote is never replaced or removed, but by `force`, which keeps it beside.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from daemon.config.deliver.targets import CREDENTIAL as DELIVER_CREDENTIAL
from daemon.config.page import CREDENTIAL as PAGE_CREDENTIAL
from daemon.config.receivers import CREDENTIAL
from daemon.config.settings import Settings
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.installing import rights, unit_texts
from daemon.installing.accounts import Accounts
from daemon.installing.actions import Action, Record, Undo, digest, make_folders, read_record, write_file
from daemon.watching.links import followed_now

NAME = "ckptd"
STATE = Path("/var/lib/ckptd")
RECORD = "install-service.json"
_OPERATION = "install the service"
_LINK_SECONDS = 5.0
"""For each root, in which links to runs elsewhere are looked for."""
TITLE = ".TH CKPTD 1 "
"""What the manual page has in its second line, of each version."""
PAGE, LINK = Path("/usr/local/share/man/man1/ckptd.1"), Path("/usr/local/bin/ckptd")


@dataclass(frozen=True)
class Wishes:
    """What the options say."""

    run_as: str = ""
    """An existing user as whom the service runs; "" is a user of its own."""
    groups: tuple[str, ...] = ()
    """Groups that the service's own user joins."""
    acls: bool = True
    memory: str = ""
    slice: str = ""
    start: bool = True
    force: bool = False


@dataclass
class Plan:
    """What is to be done, and what is to be known."""

    actions: list[Action] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Box:
    """The file system that is installed into: `/`, or a tree of which it will be."""

    root: Path = Path("/")

    def at(self, path: Path) -> Path:
        """Where a path of that tree lies."""
        return self.root / path.relative_to("/")

    @property
    def alive(self) -> bool:
        """Whether its systemd is the one that runs."""
        return self.root == Path("/")

    def systemctl(self, *words: str, user: bool = False) -> tuple[str, ...]:
        """A command line of systemctl for this tree."""
        return ("systemctl", *(("--user",) if user else ()), *(() if self.alive else (f"--root={self.root}",)), *words)


def record_of(box: Box, *, user: bool) -> Path:
    """Where it is noted what was done."""
    return box.at(own_config_folder() if user else Path("/etc/ckptd")) / RECORD


def own_config_folder() -> Path:
    """Folder of this user's configuration."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / NAME


def refuse_unfit(box: Box, *, user: bool, dry: bool) -> None:
    """Raise UsageError where this process may not install, or there is no systemd that would run the service."""
    if user and os.geteuid() == 0:
        raise UsageError(FaultCode.NO_PERMISSION, _OPERATION, "root does not need a user service", "leave --user out")
    if dry:
        return
    if not user and os.geteuid() != 0:
        raise UsageError(
            FaultCode.NO_PERMISSION, _OPERATION, "only root can install a system service",
            "run the command with sudo, or use --user for a user service; --dry-run shows what would be done",
        )  # fmt: skip
    if box.alive and not Path("/run/systemd/system").is_dir():
        raise UsageError(
            FaultCode.SETUP_FAILED, _OPERATION, "this system does not run systemd (most containers do not)",
            "start `ckptd run` with the tool that starts your services or containers; --dry-run shows what would be done",
        )  # fmt: skip


def for_system(box: Box, settings: Settings, config: Path, wishes: Wishes, page: str) -> Plan:
    """The list for a service of the whole box. `page`: the man page. Raises UsageError where the service could not run."""
    plan, accounts, record = Plan(), Accounts(box.root), read_record(record_of(box, user=False))
    name = wishes.run_as or NAME
    user = accounts.user(name)
    if wishes.run_as and user is None:
        raise UsageError(FaultCode.SETUP_FAILED, _OPERATION, f"there is no user {name!r}", "give a user from `getent passwd` with --run-as")
    group = accounts.group_name(user.group) if user else name
    _account(plan, box, accounts, name, wishes, exists=user is not None, outputs=_outputs(settings))
    number = user.number if user else rights.NOBODY
    groups = (user.group if user else rights.NOBODY, *accounts.groups_of(name), *accounts.numbers(wishes.groups))
    if os.geteuid() == 0:
        _runnable(box, number, groups, name)
    owner = accounts.owner(name, user)
    _readable_configuration(plan, box.at(config), owner[1], number, groups)
    outside = _outputs(settings)
    for folder in outside:
        _writable(plan, box.at(folder), owner, number)
    _readable(plan, box, settings, name, number, groups, wishes)
    _note_closed(plan, box, settings, name, number, groups)
    urls = _closed(plan, box, ("notify.urls_file", settings.notify.urls_file), name, number, groups)
    token = _closed(plan, box, ("page.token_file", settings.page.token_file), name, number, groups)
    tokens = {
        target.name: file for target in settings.deliver
        if (file := _closed(plan, box, (f"deliver.{target.name}.secret_file", target.secret_file), name, number, groups))
    }  # fmt: skip
    _note_folders(plan, settings, name)
    for folder in (PAGE.parent, LINK.parent):
        plan.actions += make_folders(box.at(folder))
    _file(plan, record, box.at(PAGE), page, wishes)
    _link(plan, box, unit_texts.command())
    units = Path("/etc/systemd/system")
    files = {units / unit_texts.SERVICE: unit_texts.service(config), units / unit_texts.SLICE: unit_texts.slice_()}
    files |= {
        units / f"{unit_texts.SERVICE}.d" / f"{name}.conf": text
        for name, text in _drop_ins(settings, wishes, outside, group, urls, token, tokens).items()
    }
    _units(plan, box, record, {box.at(path): text for path, text in files.items()}, wishes, user=False)
    return plan


def for_user(box: Box, config: Path, wishes: Wishes) -> Plan:
    """The list for a service of the user who asks."""
    plan, record = Plan(), read_record(record_of(box, user=True))
    folder = box.at(own_config_folder().parent / "systemd" / "user")
    files = {folder / unit_texts.SERVICE: unit_texts.service(config, of_user=True), folder / unit_texts.SLICE: unit_texts.slice_()}
    if wishes.memory:
        files[folder / f"{unit_texts.SERVICE}.d" / "memory.conf"] = unit_texts.drop_in("memory", MemoryMax=wishes.memory)
    name = Accounts(Path("/")).name_of(os.geteuid())
    if not box.at(Path("/var/lib/systemd/linger", name)).exists():
        plan.actions.append(
            Action(
                ("loginctl", "enable-linger", name), undo=Undo(kind="command", argv=("loginctl", "disable-linger", name)),
                may_fail="without this command, which only root can run, the service ends when you log out",
            )
        )  # fmt: skip
    _units(plan, box, record, files, wishes, user=True)
    return plan


def _outputs(settings: Settings) -> list[Path]:
    """What the service writes outside of its state directory."""
    folders = [settings.output.directory, settings.pin.directory, settings.metrics.textfile.parent if settings.metrics.textfile else None]
    folders += [folder for target in settings.notify.targets for folder in target.folders]
    return list(dict.fromkeys(folder for folder in folders if folder is not None and not folder.is_relative_to(STATE)))


def _account(plan: Plan, box: Box, accounts: Accounts, name: str, wishes: Wishes, *, exists: bool, outputs: Iterable[Path]) -> None:
    elsewhere = () if box.alive else ("--prefix", str(box.root))
    if not exists:
        owns = tuple(str(box.at(folder)) for folder in (STATE, *outputs))
        back = Undo(
            kind="user",
            user=name,
            argv=("userdel", *elsewhere, name),
            owns=owns,
            path="" if box.alive else str(box.at(Path("/etc/passwd"))),
        )
        number = () if box.alive else ("--uid", str(accounts.free_number()))
        words = (*number, "--system", "--user-group", "--home-dir", str(STATE), "--no-create-home", "--shell", "/usr/sbin/nologin")
        plan.actions.append(Action(("useradd", *elsewhere, *words, name), undo=back))
    for group in wishes.groups:
        if not accounts.numbers((group,)):
            raise UsageError(
                FaultCode.SETUP_FAILED, _OPERATION, f"there is no group {group!r}", "give a group from `getent group` with --group"
            )
        if not accounts.is_member(name, group):
            back = Undo(kind="command", argv=("gpasswd", *(() if box.alive else ("--root", str(box.root))), "--delete", name, group))
            plan.actions.append(Action(("usermod", *elsewhere, "--append", "--groups", group, name), undo=back))


def _runnable(box: Box, user: int, groups: tuple[int, ...], name: str) -> None:
    """Raise UsageError where the service could not run this installation."""
    command = Path(unit_texts.command()[0])
    own = (
        "install ckptd where every user can read it: `python3 -m venv /opt/ckptd && /opt/ckptd/bin/pip install ckptd`, and use that command"
    )
    for folder in (Path(unit_texts.__file__).parents[1], command.parent, Path(os.path.realpath(command)).parent):
        lost = rights.lacking([folder], user, groups)
        if lost:
            closed = (*lost[0].above, lost[0].below)[0]
            cause = f"the user {name} can't read {closed}, where ckptd is installed"
            raise UsageError(FaultCode.NO_PERMISSION, _OPERATION, cause, own, path=command)
        if box.alive and folder.parts[1:2] == ("tmp",):
            raise UsageError(
                FaultCode.SETUP_FAILED, _OPERATION, "ckptd is installed below /tmp, which the service can't see", own, path=command
            )


def _readable_configuration(plan: Plan, config: Path, group: str, user: int, groups: tuple[int, ...]) -> None:
    status = config.stat()
    if status.st_uid == user or status.st_mode & stat.S_IROTH or (status.st_mode & stat.S_IRGRP and status.st_gid in groups):
        return
    was = Undo(kind="command", argv=("chgrp", str(status.st_gid), str(config)))
    plan.actions.append(Action(("chgrp", group, str(config)), undo=was))
    mode = Undo(kind="command", argv=("chmod", f"{stat.S_IMODE(status.st_mode):04o}", str(config)))
    plan.actions.append(Action(("chmod", "g+r", str(config)), undo=mode))


def _writable(plan: Plan, folder: Path, names: tuple[str, str], user: int) -> None:
    name, group = names
    if not folder.exists():
        plan.actions += make_folders(folder, "-o", name, "-g", group)
        return
    status = folder.stat()
    if status.st_uid == user or status.st_mode & stat.S_IWOTH:
        return
    if any(folder.iterdir()):
        command = shlex.join(["chown", "-R", f"{name}:", str(folder)])
        owner = Accounts(Path("/")).name_of(status.st_uid)
        raise UsageError(
            FaultCode.NOT_WRITABLE, _OPERATION, f"it belongs to {owner}, but the service runs as {name}",
            f"change the owner with `{command}`, or give that user with --run-as", path=folder,
        )  # fmt: skip
    plan.actions.append(
        Action(
            ("chown", f"{name}:{group}", str(folder)),
            undo=Undo(kind="command", argv=("chown", f"{status.st_uid}:{status.st_gid}", str(folder))),
        )
    )


def _readable(
    plan: Plan, box: Box, settings: Settings, name: str, user: int, groups: tuple[int, ...], wishes: Wishes
) -> None:  # fmt: skip
    linked = followed_now(settings, _LINK_SECONDS) if box.alive else []
    folders = [box.at(folder) for folder in (*settings.watch.roots, *linked, *settings.base.search, *settings.base.map.values())]
    if os.geteuid() != 0:
        plan.notes.append(f"only root can test whether {name} can read {', '.join(map(str, folders))}")
        return
    plan.notes += [f"{folder} does not exist yet: run this command again when it exists, or make sure that {name} can read it"
                   for folder in folders if not folder.is_dir()]  # fmt: skip
    lacks = rights.lacking(folders, user, groups)
    for lack in lacks:
        if lack.private_of:
            owner = Accounts(Path("/")).name_of(int(lack.private_of))
            plan.notes.append(
                f"in {lack.folder} training writes files that only {owner} may read, whatever ACL the folder has (safetensors 0.8 does"
                f" this): {name} will not be able to read the next ones; better: --run-as {owner}"
            )
    if lacks and not wishes.acls:
        plan.notes += [f"{name} can't read {(*lack.above, lack.below)[0]}" for lack in lacks]
        return
    if lacks and shutil.which("setfacl") is None:
        plan.notes.append("setfacl is not installed: run `apt-get install acl`, or add the user to a group with --group, or use --run-as")
    plan.actions += rights.granting(lacks, name)


def _note_closed(plan: Plan, box: Box, settings: Settings, name: str, user: int, groups: tuple[int, ...]) -> None:
    """Note the files of notify.targets that the service's user may not read: systemd gives the service none of them."""
    for key, path in settings.notify.files if os.geteuid() == 0 else ():
        if not rights.may_read(box.at(path), user, groups):
            plan.notes.append(f"{name} can't read {path} (notify.{key}): give it to that user, with mode 600")


def _note_folders(plan: Plan, settings: Settings, name: str) -> None:
    """Note the folders of this machine into which exports are delivered: whose they are, and what lies there, others know."""
    for target in settings.deliver:
        for folder in target.folders:
            if not folder.is_relative_to(STATE):
                plan.notes.append(
                    f"deliver.{target.name} writes into {folder}: let {name} write there, and open it for the service by ReadWritePaths= in"
                    " `systemctl edit ckptd` (docs/delivery.md)"
                )


def _closed(plan: Plan, box: Box, secret: tuple[str, Path | None], name: str, user: int, groups: tuple[int, ...]) -> Path | None:
    """The file of a key with secrets where the service's user may not read it, so that systemd has to give it to the service."""
    key, file = secret
    if file is None:
        return None
    if os.geteuid() != 0:
        plan.notes.append(f"only root can test whether {name} can read {file} ({key})")
        return None
    return None if rights.may_read(box.at(file), user, groups) else file


def _drop_ins(
    settings: Settings, wishes: Wishes, outside: list[Path], group: str, urls: Path | None, token: Path | None, tokens: Mapping[str, Path]
) -> dict[str, str]:  # fmt: skip
    """`urls`, `token`, `tokens`: files of notifications, of the page and by names of deliveries' targets that only systemd can read for the
    service."""
    texts = {}
    if outside:
        paths = unit_texts.quoted(outside)
        texts["output"] = unit_texts.drop_in("output", RequiresMountsFor=paths, ReadWritePaths=paths)
    if wishes.run_as:
        texts["trainer"] = unit_texts.drop_in("trainer", User=wishes.run_as, Group=group)
    if settings.notify.receivers or settings.notify.urls_file or settings.notify.targets:
        given = {"LoadCredential": unit_texts.credential(CREDENTIAL, urls)} if urls else {}
        texts["notifications"] = unit_texts.drop_in("notifications", **given)
    if settings.deliver:
        credentials = (unit_texts.credential(f"{DELIVER_CREDENTIAL}{name}", file) for name, file in tokens.items())
        given = {"LoadCredential": "\nLoadCredential=".join(credentials)} if tokens else {}
        texts["deliver"] = unit_texts.drop_in("deliver", **given)
    address = settings.page.address
    if address is not None and not address.path:
        given = {"LoadCredential": unit_texts.credential(PAGE_CREDENTIAL, token)} if token else {}
        open_ = {} if address.is_local and not settings.page.peers else {"IPAddressDeny": ""}
        texts["page"] = unit_texts.drop_in("page", **open_, **given)
    if settings.limits.device == "cuda":
        texts["gpu"] = unit_texts.drop_in("gpu")
    if wishes.memory:
        texts["memory"] = unit_texts.drop_in("memory", MemoryMax=wishes.memory)
    if wishes.slice:
        path = f"-/sys/fs/cgroup/{unit_texts.group_of(wishes.slice)}"
        texts["slice"] = unit_texts.drop_in("slice", Slice=wishes.slice, ReadWritePaths=path)
    return texts


def _file(plan: Plan, record: Record, path: Path, content: str, wishes: Wishes) -> bool:
    """Have a file hold a text; gives whether it must be written."""
    action = write_file(path, content)
    if action.undo is None or digest(path) in action.undo.was:
        return False
    if os.path.lexists(path) and not record.wrote(path) and not _is_page(path):
        before = path.with_name(f"{path.name}.before-ckptd")
        if not wishes.force:
            raise UsageError(
                FaultCode.SETUP_FAILED, _OPERATION, "there is a file that this command did not write, or that was changed since",
                "put your changes into a drop-in (`systemctl edit ckptd`) and remove the file; or use --force, which keeps it as"
                f" {before.name}", path=path,
            )  # fmt: skip
        plan.actions.append(Action(("mv", str(path), str(before)), undo=Undo(kind="command", argv=("mv", str(before), str(path)))))
    plan.actions.append(action)
    return True


def _is_page(path: Path) -> bool:
    """Whether a file is the manual page of some version: it is made of the help, and nobody changes it by hand."""
    try:
        return path.name == PAGE.name and TITLE in path.read_text("utf-8", "replace")
    except OSError:
        return False


def _link(plan: Plan, box: Box, command: tuple[str, ...]) -> None:
    """A name on everybody's path for this installation, where none is there."""
    target, usual = command[0], "/usr/local/bin:/usr/bin:/bin"
    installed = shutil.which(NAME, path=":".join(str(box.at(Path(folder))) for folder in usual.split(":")))
    if installed is None and len(command) == 1:
        link = str(box.at(LINK))
        plan.actions.append(Action(("ln", "-s", target, link), undo=Undo(kind="link", path=link, was=(target,))))


def _units(plan: Plan, box: Box, record: Record, files: dict[Path, str], wishes: Wishes, *, user: bool) -> None:
    """Write the units, take away drop-ins that are not wanted any more, and start the service."""
    made = plan.actions
    for folder in dict.fromkeys(path.parent for path in files):
        there = {action.undo.path for action in made if action.undo and action.undo.kind == "directory"}
        made += [action for action in make_folders(folder) if action.undo and action.undo.path not in there]
    changed = [path for path, content in files.items() if _file(plan, record, path, content, wishes)]
    folders = {path.parent for path in files} | {path.with_name(f"{path.name}.d") for path in files}
    stale = [
        path for undo in record.undo if undo.kind == "file" and (path := Path(undo.path)).suffix == ".conf"
        and path.parent in folders and path not in files and record.wrote(path)
    ]  # fmt: skip
    made += [Action(("rm", str(path))) for path in stale]
    enabled, active = _is(box, "is-enabled", user), box.alive and _is(box, "is-active", user)
    if box.alive and (changed or stale):
        made.append(Action(box.systemctl("daemon-reload", user=user)))
    if not enabled:
        made.append(
            Action(
                box.systemctl("enable", unit_texts.SERVICE, user=user),
                undo=Undo(kind="command", argv=box.systemctl("disable", unit_texts.SERVICE, user=user)),
            )
        )
    if box.alive and wishes.start and (not active or changed or stale):
        verb = "restart" if active else "start"
        back = None if active else Undo(kind="command", argv=box.systemctl("stop", unit_texts.SERVICE, user=user))
        made.append(Action(box.systemctl(verb, unit_texts.SERVICE, user=user), undo=back))


def _is(box: Box, question: str, user: bool) -> bool:
    if shutil.which("systemctl") is None:
        return False
    done = subprocess.run(box.systemctl(question, unit_texts.SERVICE, user=user), capture_output=True, check=False)
    return done.returncode == 0


def after_undo(box: Box, *, user: bool) -> list[Action]:
    """What systemd must be told when the units are gone."""
    return [Action(box.systemctl("daemon-reload", user=user))] if box.alive else []
