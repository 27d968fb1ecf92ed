"""The Hub of the tests against the Hub's own client, so that it is no friend of ckptd's code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deliver.hub.far_end.stock import stock
from tests.deliver.hub.service import TOKEN, Service

PART = 1 << 16
LARGE = 3 * PART + 17


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "objects", PART, page=3) as service:
        yield service


def test_a_commit_of_small_files_large_ones_and_parts(service: Service, tmp_path: Path) -> None:
    said = stock(service.url, tmp_path / "home", """
import os, hashlib
api.create_repo("me/a", private=True)
large = os.urandom(given["large"])
contents = {"config.json": b'{"a": 1}', "empty.txt": b"", "small.safetensors": os.urandom(999), "deep/er/model.safetensors": large}
add = [CommitOperationAdd(path, data) for path, data in contents.items()]
made = api.create_commit("me/a", add, commit_message="title", commit_description="text")
more = [CommitOperationAdd("other/model.safetensors", large)]
again = api.create_commit("me/a", more, commit_message="again", parent_commit=made.oid)
read = {path: hashlib.sha256(open(hf_hub_download("me/a", path), "rb").read()).hexdigest() for path in contents}
assert read == {path: hashlib.sha256(data).hexdigest() for path, data in contents.items()}
folder = snapshot_download("me/a", revision=made.oid)
assert not os.path.exists(folder + "/other") and os.path.getsize(folder + "/deep/er/model.safetensors") == given["large"]
rows = list(api.list_repo_tree("me/a", recursive=True))
info = {row.path: row for row in api.get_paths_info("me/a", ["config.json", "deep/er/model.safetensors"])}
say({
    "files": sorted(api.list_repo_files("me/a")), "folders": [row.path for row in rows if not hasattr(row, "size")],
    "sha": api.model_info("me/a").sha == again.oid, "private": api.model_info("me/a").private,
    "lfs": info["deep/er/model.safetensors"].lfs.sha256 == read["deep/er/model.safetensors"], "small": info["config.json"].lfs,
    "commits": [(row.title, row.message) for row in api.list_repo_commits("me/a")],
})
""", large=LARGE)  # fmt: skip
    assert said["files"] == sorted([".gitattributes", "config.json", "deep/er/model.safetensors", "empty.txt", "other/model.safetensors",
                                    "small.safetensors"])  # fmt: skip
    assert set(said["folders"]) == {"deep", "deep/er", "other"}
    assert said["sha"] and said["private"] and said["lfs"] and said["small"] is None
    assert said["commits"] == [["again", ""], ["title", "text"], ["initial commit", ""]]
    assert service.store.received == LARGE + 999, "what lies there was uploaded again, or not in parts"


def test_branches_and_tags(service: Service, tmp_path: Path) -> None:
    said = stock(service.url, tmp_path / "home", """
from huggingface_hub.errors import HfHubHTTPError
api.create_repo("me/a")
def refused(call):
    try:
        call()
    except HfHubHTTPError as error:
        return [type(error).__name__, error.response.status_code]
first = api.create_commit("me/a", [CommitOperationAdd("a.txt", b"1")], commit_message="1").oid
api.create_branch("me/a", branch="work", revision=first)
api.create_tag("me/a", tag="v1", revision=first)
def commit(revision, *operations, **more):
    return api.create_commit("me/a", operations, commit_message="x", revision=revision, **more).oid
second = commit("work", CommitOperationAdd("a.txt", b"2"), CommitOperationAdd("b.txt", b""))
third = commit("work", CommitOperationDelete("b.txt"))
refs = api.list_repo_refs("me/a")
problems = [
    refused(lambda: api.create_branch("me/a", branch="work")), refused(lambda: api.create_tag("me/a", tag="v1")),
    refused(lambda: commit("work", CommitOperationAdd("a.txt", b"x"), parent_commit=second)),
    refused(lambda: commit("nothing", CommitOperationAdd("a.txt", b"x"))),
    refused(lambda: api.model_info("me/b")), refused(lambda: api.model_info("me/a", revision="nothing")),
    refused(lambda: api.delete_tag("me/a", tag="nothing")), refused(lambda: hf_hub_download("me/a", "nothing")),
    refused(lambda: api.create_repo("me/a")),
]
texts = [open(hf_hub_download("me/a", "a.txt", revision=name)).read() for name in ("main", "v1", "work")]
api.delete_branch("me/a", branch="work")
api.delete_tag("me/a", tag="v1")
after = api.list_repo_refs("me/a")
say({
    "branches": {row.name: row.target_commit == third for row in refs.branches},
    "tags": {row.name: row.target_commit == first for row in refs.tags},
    "refs": [row.ref for row in refs.branches + refs.tags], "problems": problems, "texts": texts,
    "after": [len(after.branches), len(after.tags)],
})
""")  # fmt: skip
    assert said["branches"] == {"main": False, "work": True} and said["tags"] == {"v1": True}
    assert said["refs"] == ["refs/heads/main", "refs/heads/work", "refs/tags/v1"]
    assert said["texts"] == ["1", "1", "2"] and said["after"] == [1, 0]
    names = ["HfHubHTTPError"] * 3 + [
        "RevisionNotFoundError", "RepositoryNotFoundError", "RevisionNotFoundError", "RevisionNotFoundError", "RemoteEntryNotFoundError",
    ]  # fmt: skip
    assert [problem[0] for problem in said["problems"][:8]] == names
    assert [problem and problem[1] for problem in said["problems"]] == [409, 409, 412, 404, 404, 404, 404, 404, 409], said["problems"]


def test_who_may_not_is_refused_as_by_the_hub(service: Service, tmp_path: Path) -> None:
    code = """
from huggingface_hub.errors import HfHubHTTPError
said = []
for call in (api.whoami, lambda: api.create_repo("me/a"), lambda: api.model_info("me/a")):
    try:
        call()
        said.append(200)
    except HfHubHTTPError as error:
        said.append(error.response.status_code)
say(said)
"""
    assert stock(service.url, tmp_path / "home", code, token=TOKEN) == [200, 200, 200]
    assert stock(service.url, tmp_path / "home", code, token="hf_" + "wrong" * 7) == [401, 401, 401]


def test_a_card_that_the_hub_refuses_is_refused(service: Service, tmp_path: Path) -> None:
    said = stock(service.url, tmp_path / "home", """
from huggingface_hub import ModelCard
api.create_repo("me/a")
good = ModelCard("---\\nlicense: mit\\ntags: [x]\\n---\\n# a\\n")
good.validate()
good.push_to_hub("me/a")
def refused(text):
    try:
        ModelCard(text).validate()
    except ValueError as error:
        return str(error)[:40]
say([refused("---\\nbase_model: /a/b/c\\n---\\n"), refused("---\\nlicense: mit\\n---\\n"), ModelCard.load("me/a").data.license])
""")  # fmt: skip
    assert said[0] and said[1] is None and said[2] == "mit"
