"""A start without any more file handles is said as what it is: no matter of access, and worth another try."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from daemon.config import layers
from daemon.config.places import paths
from daemon.contract.faults.errors import Retryable
from daemon.contract.faults.fault_codes import FaultCode


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_what_passes_is_retryable_and_gives_nobody_access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(**_: object) -> None:
        raise OSError(number, os.strerror(number), str(tmp_path / "state"))

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(Retryable) as caught:
        paths.prepare(tmp_path / "state", tmp_path / "out")
    assert caught.value.fault.code is FaultCode.SYSTEM_RESOURCES and "access" not in caught.value.fault.remedy


@pytest.mark.parametrize("file", ["config.toml", "conf.d"])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_a_configuration_that_can_not_be_read_for_a_moment_is_no_wrong_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, number: int
) -> None:
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "conf.d").mkdir()

    def refuse(path: object, *_: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    if file == "conf.d":
        monkeypatch.setattr(os, "scandir", refuse)
    else:
        monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(Retryable) as caught:
        layers.read(tmp_path / "config.toml")
    assert caught.value.fault.code is FaultCode.SYSTEM_RESOURCES and str(caught.value.fault.path) == str(tmp_path / file)
