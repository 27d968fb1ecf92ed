"""Children get what they need of the daemon's environment and nothing that could open anything to anybody."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from daemon.running.attempts.executor import Bounds, Order
from daemon.running.workers.worker import Worker
from daemon.system.processes.environment import NAMES, PREFIXES, for_children
from tests.workers.helpers import BOUNDS, make_context, wait

SECRETS = {
    "CKPTD_NOTIFY__URLS": "slack://token@channel", "AWS_SECRET_ACCESS_KEY": "x", "HF_TOKEN": "x", "HUGGING_FACE_HUB_TOKEN": "x",
    "HF_HUB_TOKEN": "x", "WANDB_API_KEY": "x", "OPENAI_API_KEY": "x", "MYSQL_PASSWORD": "x", "GOOGLE_APPLICATION_CREDENTIALS": "x",
    "HTTPS_PROXY": "http://user:password@proxy", "PIP_INDEX_URL": "https://user:password@index", "PYTHON_KEYRING_PASSWORD": "x",
    "NVIDIA_API_KEY": "x", "TORCH_HUB_TOKEN": "x", "NOTIFY_SOCKET": "/run/systemd/notify", "SSH_AUTH_SOCK": "/tmp/agent",
    "DATABASE_URL": "x", "PYTHONWARNINGS": "x", "PYTHONINSPECT": "x",
}  # fmt: skip
NEEDED = {
    "PATH": os.environ["PATH"], "HOME": "/home/somebody", "LC_ALL": "C.UTF-8", "HF_HOME": "/cache", "HF_HUB_CACHE": "/cache/hub",
    "CUDA_HOME": "/usr/local/cuda", "OMP_NUM_THREADS": "3", "TOKENIZERS_PARALLELISM": "false", "SSL_CERT_FILE": "/etc/ssl/cert.pem",
    "LD_LIBRARY_PATH": "/opt/lib", "VIRTUAL_ENV": "/opt/venv", "XDG_CACHE_HOME": "/cache", "MY_COMPANYS_SETTING": "1",
}  # fmt: skip


def test_a_child_sees_neither_keys_nor_notification_urls(adopting: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**SECRETS, **NEEDED}.items():
        monkeypatch.setenv(name, value)
    seen = tmp_path / "seen.json"
    script = f"import json, os; json.dump(dict(os.environ), open({str(seen)!r}, 'w'))"
    (tmp_path / "attempt").mkdir()
    bounds = Bounds(**{**vars(BOUNDS), "pass_environment": ("MY_COMPANYS_SETTING",)})
    wait(Worker(Order(make_context(tmp_path), tmp_path / "attempt", bounds), [sys.executable, "-c", script]))
    found = json.loads(seen.read_text())
    assert found.items() >= NEEDED.items()
    assert not SECRETS.keys() & found.keys()
    assert not any(value in found.values() for value in SECRETS.values() if value != "x")


def test_what_the_configuration_names_is_passed_whatever_it_is() -> None:
    assert for_children(SECRETS, ["HF_TOKEN"]) == {"HF_TOKEN": "x"}


def test_a_child_reads_and_prints_utf_8_whatever_the_locale_is(adopting: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}.items():
        monkeypatch.setenv(name, value)
    seen = tmp_path / "seen.json"
    script = f"import json, locale, sys; json.dump([locale.getpreferredencoding(), sys.stdout.encoding], open({str(seen)!r}, 'w'))"
    (tmp_path / "attempt").mkdir()
    wait(Worker(Order(make_context(tmp_path), tmp_path / "attempt", BOUNDS), [sys.executable, "-c", script]))
    assert [one.lower() for one in json.loads(seen.read_text())] == ["utf-8", "utf-8"]


ASKED = """
import importlib.metadata, json, sys
asked = []
importlib.metadata.distributions = lambda: asked.append(1) or []
from pydantic import BaseModel
class Model(BaseModel):
    number: int
json.dump([Model(number=1).number, len(asked)], open(sys.argv[1], "w"))
"""


def test_a_child_looks_through_no_packages_for_plugins_of_pydantic(adopting: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYDANTIC_DISABLE_PLUGINS", raising=False)
    (tmp_path / "attempt").mkdir()
    wait(Worker(Order(make_context(tmp_path), tmp_path / "attempt", BOUNDS), [sys.executable, "-c", ASKED, str(tmp_path / "seen")]))
    assert json.loads((tmp_path / "seen").read_text()) == [1, 0]


PAGES = """
import json, os, resource, sys
from daemon.contract.jobs.messages import ChildLimits
from handlers.child import process
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
memory = bytearray(128 << 20)
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
process.set_environment(ChildLimits(), "/tmp")
json.dump({"faults": faults, "rest": os.environ.get("GLIBC_TUNABLES")}, open(sys.argv[1], "w"))
"""


@pytest.mark.parametrize(
    ("owner", "large"),
    [
        (None, True), ("glibc.malloc.arena_max=4", True), ("glibc.malloc.hugetlb=0", False),
        ("glibc.malloc.hugetlb=0:glibc.malloc.perturb=1", False),
    ],
)  # fmt: skip
def test_a_stage_has_its_memory_in_large_pages_and_what_it_starts_as_the_owner_says(
    owner: str | None, large: bool, adopting: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if owner is not None:
        monkeypatch.setenv("GLIBC_TUNABLES", owner)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    (tmp_path / "attempt").mkdir()
    seen = tmp_path / "seen.json"
    command = [sys.executable, "-c", PAGES, str(seen)]
    wait(Worker(Order(make_context(tmp_path), tmp_path / "attempt", BOUNDS), command))
    found = json.loads(seen.read_text())
    assert found["rest"] == owner
    if _has_large_pages():
        assert (found["faults"] < 16_000) is large


def _has_large_pages() -> bool:
    """Whether glibc has the variable, and the kernel gives large pages to those that ask for them and to no others."""
    state = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    name, _, release = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    version = tuple(int(part) for part in release.split(".") if part.isdigit())
    return name == "glibc" and version >= (2, 35) and state.exists() and "[madvise]" in state.read_text()


WORDS = st.sampled_from(["TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIALS", "AUTH", "HOME", "URL", "API", "ID", "X", "key", "Token"])


@given(st.sampled_from([*PREFIXES, "", "AWS_", "CKPTD_", "MY"]), st.lists(WORDS, min_size=1, max_size=4), st.sampled_from(["_", "", "__"]))
@example("CKPTD_", ["URL"], "")
def test_no_name_with_a_secrets_word_in_it_passes_by_itself(prefix: str, words: list[str], joint: str) -> None:
    name = prefix + joint.join(words)
    passed = bool(for_children({name: "x"}))
    if any(word in name.upper() for word in ("TOKEN", "KEY", "SECRET", "PASSW", "CREDENTIAL", "AUTH")) and name not in NAMES:
        assert not passed
    if not name.startswith(PREFIXES) and name not in NAMES:
        assert not passed
