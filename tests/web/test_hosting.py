"""Pages take a model from where it was delivered, by address and version, whatever caches between hold."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import onnxruntime
import pytest

from handlers.folder import examples
from handlers.onnx.activations import format as activations_format
from tests import models
from tests.deliver.proxy import Answer, Fault, Request, flipped
from tests.onnx.conftest import Exported, export, qwen3, trained  # noqa: F401
from tests.onnx.test_activations import activate, everything  # noqa: F401
from tests.web import forms
from tests.web.hosting import Hosting, hosting
from tests.web.site import Visit, visited

pytestmark = pytest.mark.slow
VARIANT = "web-int8"
PROMPT = "The lighthouse"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of two models."""
    made = []
    for seed in (1, 2):
        work = tmp_path_factory.mktemp("model")
        made.append(forms.make(VARIANT, forms.onnx(models.make_base(work / "base", dtype="float32", seed=seed), work), work / "made")[0])
    return made


@pytest.fixture
def site(folders: list[Path], toolchain: Path, tmp_path: Path) -> Path:
    """A web server's folder with the pages of both."""
    (site := tmp_path / "site").mkdir()
    for number, folder in enumerate(folders):
        shutil.copytree(folder, site / f"model {number}")
    (site / "node_modules").symlink_to(toolchain / "node_modules")
    return site


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Hosting]:
    with hosting(tmp_path / "host") as made:
        yield made


@pytest.fixture
def visit(site: Path) -> Iterator[Visit]:
    with visited(site) as made:
        yield made


def opened(visit: Visit, host: Hosting, version: str = "") -> str:
    """Open the first model's page with what is delivered; what it says."""
    return visit.open(f"model%200/?from={quote(host.url, safe='')}" + (f"&version={version}" if version else ""))


def answers(visit: Visit) -> str:
    return visit.answer(text=PROMPT, tokens=12, chat=False)


@pytest.fixture
def expected(visit: Visit) -> list[str]:
    """What the pages of the two write without a hosting."""
    texts = []
    for number in range(2):
        assert visit.open(f"model%20{number}/") == "Ready."
        texts.append(answers(visit))
    assert texts[0] != texts[1]
    return texts


def about(visit: Visit) -> str:
    return str(visit.run("document.getElementById('about').textContent"))


def test_a_page_runs_the_latest_version_or_the_named_one(
    visit: Visit, host: Hosting, folders: list[Path], expected: list[str]
) -> None:  # R9
    first = host.deliver(100, {VARIANT: folders[0]})
    assert opened(visit, host) == "Ready." and first in about(visit) and answers(visit) == expected[0]
    second = host.deliver(200, {VARIANT: folders[1]})
    # Its server lets browsers keep latest.json for a year.
    assert opened(visit, host) == "Ready." and second in about(visit) and answers(visit) == expected[1]
    assert opened(visit, host, first) == "Ready." and f"{first}, step 100" in about(visit) and answers(visit) == expected[0]
    host.cdn.clear()
    assert opened(visit, host, first) == "Ready."
    assert not [request for request in host.cdn.seen if "/onnx/" in request.path], "what never changes came from the browser's cache"
    assert not visit.errors


def test_a_cdn_that_keeps_latest_json_is_passed_by(visit: Visit, host: Hosting, folders: list[Path], expected: list[str]) -> None:
    host.deliver(100, {VARIANT: folders[0]})
    old = (host.base / "latest.json").read_bytes()
    second = host.deliver(200, {VARIANT: folders[1]})
    headers = {"Access-Control-Allow-Origin": "*", "Cache-Control": "public, max-age=31536000"}
    host.cdn.plan(Fault(answer=Answer(200, headers, old)), when=lambda request: request.path.endswith("latest.json"), times=None)
    assert opened(visit, host) == "Ready." and second in about(visit) and answers(visit) == expected[1]


def kept(host: Hosting, old: str, times: int | None, name: str = "onnx/model_quantized.onnx") -> None:
    """Let the CDN answer with another version's file."""
    headers = {"Access-Control-Allow-Origin": "*", "Cache-Control": "public, max-age=31536000"}
    body = (host.base / old / VARIANT / name).read_bytes()
    host.cdn.plan(
        Fault(answer=Answer(200, headers, body)), when=lambda request: name in request.path and old not in request.path, times=times
    )


def test_another_versions_file_in_a_cache_is_fetched_again(visit: Visit, host: Hosting, folders: list[Path], expected: list[str]) -> None:
    first, second = (host.deliver(step, {VARIANT: folder}) for step, folder in zip((100, 200), folders, strict=True))
    kept(host, first, times=1)
    assert opened(visit, host) == "Ready." and second in about(visit) and answers(visit) == expected[1]
    asked = [request for request in host.cdn.seen if "model_quantized.onnx" in request.path]
    assert len(asked) == 2, "another version's file was run, or asked for more often than once again"


def test_what_is_wrong_past_all_caches_is_said(visit: Visit, host: Hosting, folders: list[Path]) -> None:
    first, second = (host.deliver(step, {VARIANT: folder}) for step, folder in zip((100, 200), folders, strict=True))
    kept(host, first, times=None)
    said = opened(visit, host)
    assert f"{VARIANT}/onnx/model_quantized.onnx is not the file of version {second}" in said and "\n" not in said


@pytest.mark.parametrize("name", ["MANIFEST.json", "config.json", "tokenizer.json", "onnx/model_quantized.onnx"])
def test_no_changed_file_is_run(name: str, visit: Visit, host: Hosting, folders: list[Path]) -> None:
    version = host.deliver(100, {VARIANT: folders[0]})

    def falsified(request: Request) -> bool:
        return request.path.split("?")[0].endswith(name)

    host.cdn.plan(Fault(corrupt=flipped), when=falsified, times=None)
    for wanted in ("", version):
        said = opened(visit, host, wanted)
        assert f"{name} is not the file of version {version}" in said, said


def test_what_is_not_there_is_said_in_a_sentence(visit: Visit, host: Hosting, folders: list[Path]) -> None:
    assert "latest.json can't be read: the server answers 404. Was a version delivered there?" in opened(visit, host)
    version = host.deliver(100, {VARIANT: folders[0]})
    assert f"{version[:-1]}x" in opened(visit, host, f"{version[:-1]}x") and "is no version" in opened(visit, host, "../100")
    assert "MANIFEST.json can't be read: the server answers 404" in opened(visit, host, f"run-a-7-{'0' * 8}")
    host.server.allowed = ""
    said = opened(visit, host)
    assert "can't be fetched" in said and "Access-Control-Allow-Origin" in said
    host.server.allowed = "*"
    host.deliver(200, {"web-int4": folders[0]})
    assert f"has no {VARIANT}" in opened(visit, host)


def test_a_version_that_is_taken_away_meanwhile_gives_way_to_the_next(
    visit: Visit, host: Hosting, folders: list[Path], expected: list[str]
) -> None:  # fmt: skip
    host.deliver(100, {VARIANT: folders[0]})
    moved: list[str] = []

    def meanwhile(request: Request) -> None:
        moved.append(host.deliver(200, {VARIANT: folders[1]}, keep=1))

    host.cdn.plan(Fault(after=meanwhile), when=lambda request: "latest.json" in request.path, times=1)
    assert opened(visit, host) == "Ready." and moved[0] in about(visit) and answers(visit) == expected[1]


PAGE = """<!doctype html><body><p id="status"></p><script type="module">
const status = document.getElementById("status");
try {
  CODE
  const ids = [3, 5, 8, 13];
  const row = (numbers) => new ort.Tensor("int64", BigInt64Array.from(numbers, BigInt), [1, numbers.length]);
  const feeds = { input_ids: row(ids), attention_mask: row(ids.map(() => 1)), position_ids: row(ids.map((_, at) => at)) };
  for (const port of session.inputMetadata) {
    if (port.name.startsWith("past")) feeds[port.name] = new ort.Tensor(port.type, [], [1, port.shape[1], 0, port.shape[3]]);
  }
  const made = await session.run(feeds, names);
  globalThis.values = Object.fromEntries(names.map((name) => [name, [made[name].dims, Array.from(made[name].data)]]));
  status.textContent = "Ready.";
} catch (error) {
  status.textContent = String(error.message);
}
document.body.dataset.ready = "yes";
</script>"""


def test_a_page_shows_the_activations_of_a_delivered_version(  # R9
    visit: Visit, host: Hosting, site: Path, everything: Exported  # noqa: F811
) -> None:  # fmt: skip
    version = host.deliver(100, {"onnx-activations": everything.folder})
    (code,) = re.findall(r"```javascript\n(.*?)```", activations_format.USAGE.read_text(), re.DOTALL)
    code = code.replace("https://models.example/my-run/", host.url).replace("{{ variant }}", "onnx-activations")
    imports = "\n".join(line for line in code.splitlines() if line.startswith("import "))
    page = PAGE.replace("CODE", "\n".join(line for line in code.splitlines() if line not in imports)).replace(
        "const status", f"{imports}\nconst status", 1
    )
    (site / "activations.html").write_text(page)
    shutil.copyfile(everything.folder / examples.HOSTING, site / examples.HOSTING)
    assert visit.open("activations.html") == "Ready."
    values: dict[str, Any] = visit.run("values")
    session = onnxruntime.InferenceSession(host.base / version / "onnx-activations/model.onnx", providers=["CPUExecutionProvider"])
    ids = np.array([[3, 5, 8, 13]])
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(4)[None]}
    feeds |= {
        port.name: np.zeros((1, port.shape[1], 0, port.shape[3]), np.float32)
        for port in session.get_inputs() if port.name.startswith("past")
    }  # fmt: skip
    names = [output["name"] for output in json.loads((everything.folder / "activations.json").read_text())["outputs"]]
    assert set(values) == set(names) and len(names) == 7
    for name, wanted in zip(names, session.run(names, feeds), strict=True):
        dims, numbers = values[name]
        assert tuple(dims) == wanted.shape and np.abs(np.array(numbers).reshape(dims) - wanted).max() < 1e-3, name
