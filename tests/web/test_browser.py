"""The browser of a check: what its page can see, and that nothing of it is left, whatever ends it."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.toolchains import use
from handlers.web.browser import chromium
from handlers.web.browser.chromium import BrowserError, Chromium
from handlers.web.browser.files import HOST, Files
from handlers.web.browser.page import PIECE, Page

PLAIN = Path(__file__).parents[2]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """A folder with a file, beside a secret that a link in it leads to."""
    (tmp_path / "secret.txt").write_text("secret")
    folder = tmp_path / "model"
    (folder / "onnx").mkdir(parents=True)
    (folder / "onnx" / "model.onnx").write_bytes(b"0123456789")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    return Files({"model": folder}, {"1": b"abcdef"})


def test_a_page_sees_the_folder_and_what_is_sent_whole_or_in_parts(files: Files) -> None:
    assert files.fetch(f"{HOST}/model/onnx/model.onnx") == (b"0123456789", "application/octet-stream")
    assert files.fetch(f"{HOST}/model/onnx/model.onnx?from=2&to=5") == (b"234", "application/octet-stream")
    assert files.fetch(f"{HOST}/model/onnx/model.onnx?size") == (b"10", "text/plain")
    assert files.fetch(f"{HOST}/inbox/1?from=1&to=3") == (b"bc", "application/octet-stream")


@pytest.mark.parametrize(
    "path",
    [
        "/model/../secret.txt", "/model/%2e%2e/secret.txt", "/model/..%2fsecret.txt", "/model/onnx/../../secret.txt", "/model/link.txt",
        "/model/onnx", "/model/", "/secret.txt", "//etc/passwd", "/model//etc/passwd", "/model/%00", "/inbox/2", "/other/model.onnx", "/",
    ],
)  # fmt: skip
def test_a_page_never_sees_anything_outside(path: str, files: Files) -> None:
    assert files.fetch(f"{HOST}{path}") is None


@pytest.mark.parametrize("address", ["https://example.org/model/onnx/model.onnx", "http://check.invalid/model/onnx/model.onnx", "data:,a"])
def test_other_addresses_are_answered_by_nobody(address: str, files: Files) -> None:
    assert files.fetch(address) is None


def test_a_box_without_a_browser_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Permanent, match="has no Chromium") as refused:
        chromium.find()
    assert refused.value.fault.code == FaultCode.ENGINE_MISSING and "apt-get install chromium" in refused.value.fault.remedy


@pytest.mark.slow
def test_a_page_computes_and_reaches_neither_files_nor_hosts(packages: Path, tmp_path: Path) -> None:
    folder = doubling(tmp_path / "model")
    page = Page(folder, packages)
    try:
        page.ask("open", kind="AutoModel")
        large = np.arange(2 * (PIECE // 8 + 5), dtype=np.int64).reshape(-1, 2) % 1000
        made = page.run("model", {"input_ids": large}, ["last_hidden_state"], kept=["last_hidden_state"])["last_hidden_state"]
        assert np.array_equal(made.numpy(), large * 2.0), "in more than one piece there and back"
        for address in ("https://example.org/", "file:///etc/passwd", "/model/../../etc/passwd", "http://127.0.0.1:1/"):
            code = f"fetch({address!r}).then((one) => one.status, (error) => error.name)"
            assert page._evaluate(code) in (404, "TypeError"), address
        assert page._evaluate("fetch('/model/config.json').then((one) => one.status)") == 200
        number = made.number
        del made
        page.ask("tokens") if (folder / "tokenizer.json").exists() else page._evaluate("1")
        with pytest.raises(BrowserError, match="the page says"):
            page.ask("open", kind="AutoModelForCausalLM")
        with pytest.raises(BrowserError):
            page.ask("read", number=number, start=0, end=8)  # dropped in the page too
        assert page.peak_bytes() > 50 << 20
    finally:
        page.close()
    assert not psutil.pid_exists(page.browser.process.pid)


def doubling(folder: Path) -> Path:
    """A folder with the graph of the probe."""
    import base64

    from handlers.web import probe

    (folder / "onnx").mkdir(parents=True)
    (folder / "onnx" / "model.onnx").write_bytes(base64.b64decode(probe.GRAPH))
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "transformers.js_config": {"dtype": "fp32"}}))
    return folder


def of(folder: Path) -> list[psutil.Process]:
    """The processes whose profile lies in a folder."""
    found = []
    for one in psutil.process_iter(["cmdline", "status"]):
        if any(str(folder) in part for part in one.info["cmdline"] or ()) and one.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(one)
    return found


HOLDS = """
import sys, time
from handlers.web.browser.chromium import Chromium
browser = Chromium(lambda event, facts: None)
print(browser.version, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_browser_outlives_its_engine_however_that_ends(how: signal.Signals, toolchain: Path, tmp_path: Path) -> None:
    deep = tmp_path / ("long" * 30)  # a socket's path has a greatest length, and a job's folder lies deep
    deep.mkdir()
    environment = {**os.environ, "TMPDIR": str(deep), "PYTHONPATH": str(PLAIN)}
    command = [toolchain / "bin" / "python", "-c", HOLDS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as holder:
        try:
            assert holder.stdout is not None and "Chrome" in holder.stdout.readline()
            assert len(of(deep)) > 1
            nice = {one.nice() for one in of(deep)}
            assert min(nice) >= os.nice(0), "it does not raise its own priority, root's neither"
        finally:
            holder.send_signal(how)
    limit = time.monotonic() + 10
    while of(deep) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not of(deep)


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of the calls are those of x86-64")
def test_the_check_needs_neither_sockets_of_the_network_nor_namespaces(toolchain: Path, tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    python = str(toolchain / "bin" / "python")
    inside = [*use.command(toolchain, "handlers.web.probe"), "--answer", str(answer)]
    done = subprocess.run([python, str(Path(__file__).with_name("no_network.py")), *inside], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(answer.read_text())["answer"]["versions"]["transformers.js"]


@pytest.mark.slow
@pytest.mark.usefixtures("toolchain")
def test_a_browser_that_ends_by_itself_is_told_with_what_it_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    browser = Chromium(lambda event, facts: None)
    browser.process.send_signal(signal.SIGKILL)
    with pytest.raises(BrowserError, match="ended with code -9"):
        browser.ask("Browser.getVersion")
    browser.close()
    monkeypatch.setattr(chromium, "find", lambda: sys.executable)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(BrowserError, match="ended with code 2; it last said: Try `python -h'"):
        Chromium(lambda event, facts: None)
    assert not list(tmp_path.iterdir()), "no profile is left"
