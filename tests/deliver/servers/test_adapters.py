"""vLLM and SGLang by their real requests: what is served is asked, and only the fine-tuned model's answers let the alias move."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import models
from tests.deliver.servers.conftest import Steps, lay
from tests.deliver.servers.stub import Stub, serving

KINDS = {"vllm": "handlers.deliver.servers.vllm.target:Vllm", "sglang": "handlers.deliver.servers.sglang.target:SGLang"}


def deliver(stub: Stub, folder: Path, export: Path, kind: str = "vllm", **order: Any) -> Any:
    """The last line that the real process says."""
    options = {"url": stub.url, "folder": str(folder), "alias": "newest", "timeout": 30.0}
    wanted = {"kind": kind, "entry": KINDS[kind], "name": "gpu", "options": options, "export": str(export), **order}
    done = subprocess.run([sys.executable, "-m", "handlers.deliver"], input=json.dumps(wanted), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_an_adapter_is_served_under_its_own_name_and_by_the_alias(steps: Steps, tmp_path: Path, kind: str) -> None:
    with serving(Stub(steps.base)) as stub:
        first = deliver(stub, tmp_path / "shelf", steps.exports[2], kind)["receipt"]
        second = deliver(stub, tmp_path / "shelf", steps.exports[4], kind)["receipt"]
        again = deliver(stub, tmp_path / "shelf", steps.exports[4], kind)["receipt"]
        assert second["version"].startswith("a-run-7666f050-4-") and again["version"] == second["version"]
        assert first["moved"] and second["moved"] and 0.99 < second["figures"]["share"] < 1.01
        assert set(stub.names) == {first["version"], second["version"], "newest"}
        assert stub.names["newest"] == stub.names[second["version"]] == str(tmp_path / "shelf" / second["version"])
        late = deliver(stub, tmp_path / "shelf", steps.exports[2], kind)["receipt"]
        assert not late["moved"] and "step 4" in late["why_not_moved"]
        assert stub.names["newest"].endswith(second["version"])
        removed = deliver(stub, tmp_path / "shelf", steps.exports[2], kind, action="remove", remove=[first["version"]])
        assert removed["fault"] is None
        assert set(stub.names) == {second["version"], "newest"} and not (tmp_path / "shelf" / first["version"]).exists()


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        ("silent", "delivery-answers", "answers as the base does"), ("twice", "delivery-answers", "applied more than once"),
        ("foreign", "delivery-answers", "neither the fine-tuned model nor its base"),
        ("template", "delivery-answers", "another chat template"),
        ("off", "delivery-refused", "does not load adapters while it runs"),
    ],
)  # fmt: skip
def test_a_server_that_misbehaves_is_found_out_and_left_as_it_was(
    steps: Steps, tmp_path: Path, kind: str, fault: str, code: str, said: str
) -> None:
    with serving(Stub(steps.base, fault)) as stub:
        end = deliver(stub, tmp_path / "shelf", steps.exports[4], kind)
        assert end["fault"]["code"] == code and said in end["fault"]["cause"], end
        assert end["permanent"] and not stub.names
        assert not [path for path in (tmp_path / "shelf").iterdir() if path.name.startswith("a-run")] or fault == "off"


def test_a_served_version_stays_when_another_or_itself_is_refused(steps: Steps, tmp_path: Path, kind: str) -> None:
    with serving(Stub(steps.base)) as stub:
        served = deliver(stub, tmp_path / "shelf", steps.exports[2], kind)["receipt"]
        assert served["figures"]["conversations"] == 3
        names = dict(stub.names)
        stub.key = "another"
        assert deliver(stub, tmp_path / "shelf", steps.exports[2], kind, secret="old")["fault"]["code"] == "delivery-refused"
        stub.key, stub.fault = "", "template"
        assert deliver(stub, tmp_path / "shelf", steps.exports[2], kind)["fault"]["code"] == "delivery-answers"
        assert deliver(stub, tmp_path / "shelf", steps.exports[4], kind)["fault"]["code"] == "delivery-answers"
        stub.fault = "full alias"
        assert deliver(stub, tmp_path / "shelf", steps.exports[4], kind)["fault"]["code"] == "delivery-refused"
        assert {name: stub.names.get(name) for name in names} == names
        stub.fault = "plain"
        assert deliver(stub, tmp_path / "shelf", steps.exports[4], kind)["receipt"]["figures"]["conversations"] == 0


def test_an_alias_that_ckptd_did_not_load_stays_but_by_force(steps: Steps, tmp_path: Path, kind: str) -> None:
    with serving(Stub(steps.base)) as stub:
        stub.load("newest", str(steps.exports[2] / "pytorch-adapter"))
        receipt = deliver(stub, tmp_path / "shelf", steps.exports[4], kind)["receipt"]
        assert not receipt["moved"] and "did not bring" in receipt["why_not_moved"]
        assert deliver(stub, tmp_path / "shelf", steps.exports[4], kind, move="force")["receipt"]["moved"]


def test_another_base_behind_the_server_is_found_out(steps: Steps, tmp_path: Path, kind: str) -> None:
    with serving(Stub(models.make_base(tmp_path / "other", dtype="float32", seed=7))) as stub:
        end = deliver(stub, tmp_path / "shelf", steps.exports[4], kind)
        assert end["fault"]["code"] == "delivery-answers" and not stub.names, end


def test_an_adapter_of_another_step_is_found_out(steps: Steps, tmp_path: Path, kind: str) -> None:
    files = {name: steps.exports[2] / "pytorch-adapter" / name for name in ("adapter_config.json", "adapter_model.safetensors")}
    wrong = lay(tmp_path / "wrong", "a run", 5, "pytorch-adapter", files, steps.report(4)["answers"])
    with serving(Stub(steps.base)) as stub:
        end = deliver(stub, tmp_path / "shelf", wrong, kind)
        assert end["fault"]["code"] == "delivery-answers" and "fine-tuning" in end["fault"]["cause"] and not stub.names, end


def test_a_stale_alias_is_found_out_and_the_version_before_is_served_again(steps: Steps, tmp_path: Path, kind: str) -> None:
    with serving(Stub(steps.base, "stale")) as stub:
        first = deliver(stub, tmp_path / "shelf", steps.exports[2], kind)["receipt"]
        end = deliver(stub, tmp_path / "shelf", steps.exports[4], kind)
        assert end["fault"]["code"] == "delivery-answers" and "older version" in end["fault"]["cause"], end
        assert stub.names["newest"].endswith(first["version"])


def test_a_full_server_and_a_crash_while_it_loads_are_said(steps: Steps, tmp_path: Path, kind: str) -> None:
    with serving(Stub(steps.base, "broken")) as stub:
        end = deliver(stub, tmp_path / "shelf", steps.exports[2], kind)
        assert end["fault"]["code"] == "delivery-far-end" and not end["permanent"]
        stub.fault = ""
        assert deliver(stub, tmp_path / "shelf", steps.exports[2], kind)["receipt"]["moved"]
        stub.fault = "full"
        end = deliver(stub, tmp_path / "shelf", steps.exports[4], kind)
        assert end["fault"]["code"] == "delivery-refused" and "No space" in end["fault"]["cause"]


def test_a_key_of_the_server_is_sent_and_never_said(steps: Steps, tmp_path: Path) -> None:
    with serving(Stub(steps.base, "off")) as stub:
        end = deliver(stub, tmp_path / "shelf", steps.exports[2], secret="sk-very-secret")
        assert "sk-very-secret" not in json.dumps(end)
