"""Users and groups of the box, or of a tree that will be one: by the system's own databases, or by the files of that tree."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class User:
    """A user and its own group, by their numbers."""

    number: int
    group: int


@dataclass(frozen=True)
class Accounts:
    """`root`: `/`, or the tree."""

    root: Path

    def _rows(self, file: str) -> list[list[str]]:
        try:
            return [row.split(":") for row in (self.root / "etc" / file).read_text("utf-8").splitlines() if row.count(":") >= 3]
        except OSError:
            return []

    @property
    def _here(self) -> bool:
        return self.root == Path("/")

    def user(self, name: str) -> User | None:
        """The user of that name; None where there is none."""
        if self._here:
            with contextlib.suppress(KeyError):
                entry = pwd.getpwnam(name)
                return User(entry.pw_uid, entry.pw_gid)
            return None
        return next((User(int(row[2]), int(row[3])) for row in self._rows("passwd") if row[0] == name), None)

    def name_of(self, number: int) -> str:
        """The user's name; the number where it has none."""
        try:
            return pwd.getpwuid(number).pw_name
        except KeyError:
            return str(number)

    def group_name(self, number: int) -> str:
        """The group's name; the number where it has none."""
        return next((name for name, other, _ in self._groups() if other == number), str(number))

    def _groups(self) -> list[tuple[str, int, list[str]]]:
        if self._here:
            return [(group.gr_name, group.gr_gid, group.gr_mem) for group in grp.getgrall()]
        return [(row[0], int(row[2]), row[3].split(",")) for row in self._rows("group")]

    def owner(self, name: str, user: User | None) -> tuple[str, str]:
        """User and group as a command gives a file to them: of a tree by their numbers, since this box knows them by no name."""
        if self._here:
            return name, self.group_name(user.group) if user else name
        number = self.free_number()
        return (str(user.number), str(user.group)) if user else (str(number), str(number))

    def free_number(self) -> int:
        """A number of system accounts that neither a user nor a group of the tree has."""
        taken = {int(row[2]) for file in ("passwd", "group") for row in self._rows(file)}
        return next(number for number in range(999, 99, -1) if number not in taken)

    def groups_of(self, name: str) -> list[int]:
        """Numbers of the groups that the user belongs to beside its own."""
        user = self.user(name)
        if self._here and user is not None:
            return os.getgrouplist(name, user.group)
        return [number for _, number, members in self._groups() if name in members]

    def numbers(self, names: Iterable[str]) -> list[int]:
        """Numbers of those of the groups that are there."""
        return [number for name, number, _ in self._groups() if name in set(names)]

    def is_member(self, user: str, group: str) -> bool:
        """Whether the user belongs to the group."""
        return self.user(user) is not None and bool(set(self.numbers((group,))) & set(self.groups_of(user)))
