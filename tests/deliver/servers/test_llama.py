"""llama.cpp's own server: adapters are swapped, asked and taken back, and a training's export is served by the daemon."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.delivering.orders import Receipt
from daemon.journal.file.opening import reading
from daemon.journal.shipment_rows import shipments_of
from tests.deliver.servers import llama_server
from tests.deliver.servers.conftest import Steps, lay
from tests.models import TEXTS
from tests.service import Service, making
from tests.toolchains import real

state, toolchain, libraries = real.fixtures("gguf")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
SCRIPT = """\
if [ -f {folder}/pid ]; then kill $(cat {folder}/pid); while kill -0 $(cat {folder}/pid) 2>/dev/null; do sleep 0.02; done; fi
lora=""; [ -e {shelf}/current.gguf ] && lora="--lora {shelf}/current.gguf"
more="$(cat {folder}/more 2>/dev/null)"
setsid {program} -m {base} $lora --port {port} -c 512 -t 1 -np 1 --no-warmup $more > {folder}/log 2>&1 < /dev/null &
echo $! > {folder}/pid
"""


@dataclass(frozen=True)
class Llama:
    """A server that runs, and exports for it."""

    folder: Path
    port: int
    exports: dict[int, Path]
    shelf: Path

    def deliver(self, export: Path, **order: Any) -> Any:
        options = {
            "url": f"http://127.0.0.1:{self.port}", "folder": str(self.shelf), "reload": ["sh", str(self.folder / "restart")],
            "load_seconds": 60.0,
        }  # fmt: skip
        wanted = {
            "kind": "llamacpp", "entry": "handlers.deliver.servers.llamacpp.target:LlamaServer", "name": "here", "options": options,
            "export": str(export), **order,
        }  # fmt: skip
        done = subprocess.run([sys.executable, "-m", "handlers.deliver"], input=json.dumps(wanted), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def write(self, prompt: str, tokens: int = 8) -> str:
        """What it writes behind a prompt, by the most likely token."""
        body = json.dumps({"prompt": prompt, "n_predict": tokens, "temperature": 0}).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/completion", body) as answer:
            return str(json.load(answer)["content"])

    def adapters(self) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/lora-adapters") as answer:
            return json.load(answer)


@pytest.fixture
def llama(steps: Steps, toolchain: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    """The server over the base alone."""
    program = llama_server.program(tmp_path_factory)
    from tests.deliver.servers.gguf_files import adapter_file, base_file

    python = toolchain / "bin" / "python"
    base_file(python, steps.base, tmp_path / "base.gguf")
    exports = {}
    for step, export in steps.exports.items():
        adapter_file(python, export / "pytorch-adapter", steps.base, tmp_path / f"{step}.gguf")
        files = {"adapter.gguf": tmp_path / f"{step}.gguf"}
        exports[step] = lay(tmp_path / f"export-{step}", "a run", step, "gguf-adapter", files, steps.report(step)["answers"])
    with running(tmp_path, program, tmp_path / "base.gguf", exports) as served:
        yield served


@contextmanager
def running(folder: Path, program: Path, base: Path, exports: dict[int, Path]) -> Iterator[Llama]:
    """A server over a base, restarted by a script."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    served = Llama(folder / "server", port, exports, folder / "shelf")
    served.folder.mkdir()
    served.shelf.mkdir()
    values = {"folder": served.folder, "shelf": served.shelf, "program": program, "base": base, "port": port}
    (served.folder / "restart").write_text(SCRIPT.format(**values))
    subprocess.run(["sh", served.folder / "restart"], check=True)
    try:
        yield served
    finally:
        pid = int((served.folder / "pid").read_text())
        os.kill(pid, 15)
        for _ in range(200):
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                break
            time.sleep(0.05)


def test_adapters_are_swapped_and_each_answers_as_its_own_model(llama: Llama) -> None:
    first = llama.deliver(llama.exports[2])
    assert first["receipt"] and 0.9 < first["receipt"]["figures"]["share"] < 1.1, first
    second = llama.deliver(llama.exports[4])["receipt"]
    assert second["moved"] and 0.9 < second["figures"]["share"] < 1.1
    assert os.readlink(llama.shelf / "current.gguf") == f"{second['version']}/adapter.gguf"
    late = llama.deliver(llama.exports[2])["receipt"]
    assert not late["moved"] and "step 4" in late["why_not_moved"]
    assert llama.deliver(llama.exports[2], move="force")["receipt"]["moved"]


def test_an_adapter_that_is_not_what_the_report_says_is_taken_back(llama: Llama, tmp_path: Path) -> None:
    served = llama.deliver(llama.exports[2])["receipt"]
    answers = json.loads((llama.exports[4] / "report.json").read_text())["answers"]
    wrong = lay(
        tmp_path / "wrong", "a run", 5, "gguf-adapter", {"adapter.gguf": llama.exports[2] / "gguf-adapter" / "adapter.gguf"}, answers
    )
    end = llama.deliver(wrong)
    assert end["fault"]["code"] == "delivery-answers", end
    assert os.readlink(llama.shelf / "current.gguf") == f"{served['version']}/adapter.gguf"
    assert [row["path"] for row in llama.adapters()] == [str(llama.shelf / "current.gguf")]
    assert not [path.name for path in llama.shelf.iterdir() if path.name.startswith("a-run-5")]


def test_what_nobody_was_served_leaves_the_server_as_it_was(llama: Llama, tmp_path: Path) -> None:
    """The first candidate is wrong: the server goes on with the base alone."""
    answers = json.loads((llama.exports[4] / "report.json").read_text())["answers"]
    wrong = lay(
        tmp_path / "wrong", "a run", 5, "gguf-adapter", {"adapter.gguf": llama.exports[2] / "gguf-adapter" / "adapter.gguf"}, answers
    )
    assert llama.deliver(wrong)["fault"]["code"] == "delivery-answers"
    assert not (llama.shelf / "current.gguf").is_symlink()
    wait_for(lambda: llama.adapters() == [])


def test_a_chat_template_of_another_model_is_found_out(llama: Llama) -> None:
    assert llama.deliver(llama.exports[2])["receipt"]["figures"]["conversations"] == 3
    (llama.folder / "template").write_text("{% for m in messages %}[{{ m.role|upper }}] {{ m.content }} [/{{ m.role|upper }}]{% endfor %}")
    (llama.folder / "more").write_text(f"--jinja --chat-template-file {llama.folder / 'template'}")
    before = os.readlink(llama.shelf / "current.gguf")
    end = llama.deliver(llama.exports[4])
    assert end["fault"]["code"] == "delivery-answers" and "chat template" in end["fault"]["cause"], end
    assert os.readlink(llama.shelf / "current.gguf") == before


def wait_for(what: Callable[[], bool]) -> None:
    """Until it holds; a server that starts is no news."""
    for _ in range(600):
        with suppress(OSError):
            if what():
                return
        time.sleep(0.1)
    raise AssertionError("it did not come about")


@pytest.fixture
def make_service(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Makes daemons and ends whatever is left of them."""
    yield from making(Service, tmp_path)


def test_the_daemon_serves_a_trainings_checkpoint(
    make_service: Callable[..., Service], toolchain: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """From a trainer's checkpoint to a server that answers as the fine-tuned model."""
    from tests.deliver.servers.gguf_files import base_file

    program, run = llama_server.program(tmp_path_factory), real.trained(tmp_path_factory)
    base_file(toolchain / "bin" / "python", run.parent / "base", tmp_path / "base.gguf")
    with running(tmp_path, program, tmp_path / "base.gguf", {}) as llama:
        table = {
            "name": "here", "kind": "llamacpp", "url": f"http://127.0.0.1:{llama.port}", "folder": str(llama.shelf),
            "reload": ["sh", str(llama.folder / "restart")], "variants": ["gguf-adapter"],
        }  # fmt: skip
        keys = "\n".join(f"{name} = {json.dumps(value)}" for name, value in table.items())
        service = make_service(variants=("gguf-adapter",), extra=f"\n[[deliver]]\n{keys}\n")
        (service.state / "toolchains").mkdir(parents=True)
        (service.state / "toolchains" / toolchain.name).symlink_to(toolchain)
        checkpoint = service.add(run / "checkpoint-4")
        service.start()
        service.wait_ended(seconds=900)
        receipt = delivered(service, 4)
        assert receipt.moved and os.readlink(llama.shelf / "current.gguf") == f"{receipt.version}/adapter.gguf"
        assert receipt.figures["share"] > 0.9 and receipt.figures["conversations"] == 3
        for prompt in TEXTS[:2]:
            asked = prompt[: len(prompt) // 2]
            assert llama.write(asked) == real.live_text(checkpoint, asked, tokens=8)
        assert service.stop() == 0


def delivered(service: Service, step: int) -> Receipt:
    """The receipt of a step's delivery, once it is there."""
    for _ in range(1200):
        with reading(service.state / "journal.sqlite3") as connection:
            jobs = [str(row[0]) for row in connection.execute("SELECT id FROM job")]
            rows = [row for job in jobs for row in shipments_of(connection, job) if row.step == step]
        if rows and rows[0].state == "delivered" and rows[0].receipt is not None:
            return rows[0].receipt
        assert not rows or rows[0].state != "failed", f"{rows}\n{service.log()[-3000:]}"
        time.sleep(0.1)
    raise AssertionError(service.log()[-3000:])
