"""Adds the verbs that put ckptd onto a box to the command line."""

from __future__ import annotations

import typer

from daemon.cli.parser.groups import place
from daemon.cli.setup.init import init
from daemon.cli.setup.install_service import install_service


def register(app: typer.Typer) -> None:
    """Add `init` and `install-service` to the command line."""
    app.command(**place("init", "ckptd init --root ~/runs --base ~/models"))(init)
    app.command("install-service", **place("install-service", "sudo ckptd install-service --dry-run"))(install_service)
