"""transformers 4.57 itself reads what is published as transformers 5 does: the same logits and token ids, or it is told that it can't."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from handlers.models.releases.older_families import NOT_READ, READ, READ_EAGERLY
from handlers.models.releases.older_readers import OLDEST
from tests import models
from tests.older import cases, tokenizers
from tests.older.conftest import read

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
ROUNDING = 1e-4
"""Standard deviations of the logits: two releases add the same products in another order."""
Families = dict[str, list[str]]


@dataclass
class Folders:
    """What was made, and what transformers 4.57 read."""

    models: Path
    tokenizers: Path
    made: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Folder → what making it gave."""
    kinds: Families = field(default_factory=dict)
    """Model type → the folders of its models."""
    tokens: dict[str, dict[str, Any]] = field(default_factory=dict)
    answer: dict[str, Any] = field(default_factory=dict)

    def add(self, folder: str, task: str, kind: str, name: str, config: Any) -> None:
        """A model; nothing where transformers 5 can't run it with small sizes."""
        made = cases.make(self.models / folder, task, name, config)
        if made is not None:
            self.made[folder] = made
            self.kinds.setdefault(kind, []).append(folder)

    def is_unknown(self, folder: str) -> bool:
        """Whether transformers 4.57 has no such class."""
        return "module transformers has no attribute" in self.answer["models"][folder].get("raised", "")

    def how(self, folder: str) -> str:
        """Whether transformers 4.57 computes what transformers 5 does: by itself, with its own attention alone, or not."""
        answer = self.answer["models"][folder]
        if answer.get("error", 1.0) < ROUNDING:
            return "read"
        return "read eagerly" if answer.get("eager", 1.0) < ROUNDING else "not read"


@pytest.fixture(scope="module")
def folders(older: Path, tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Every small text model that transformers 5 can make, and every form of the rotary embedding; read by transformers 4.57."""
    place = tmp_path_factory.mktemp("folders")
    made = Folders(place / "models", place / "tokenizers")
    made.tokenizers.mkdir(parents=True)
    table = cases.kinds()
    for (task, kind), name in table.items():
        if cases.is_small_text_model(kind, name):
            made.add(f"{task}.{kind}", task, kind, name, cases.config_of(kind))
    for folder, (task, kind, name, config) in cases.further().items():
        made.add(folder, task, kind, name, config)
    for kind in cases.ROTARY:
        for scaling in cases.SCALINGS:
            if (kind, scaling) not in cases.REFUSED:
                config = cases.config_of(kind, cases.rotary(kind, scaling))
                made.add(f"rope.{kind}.{scaling}", "causal", kind, table["causal", kind], config)
    for number, name in enumerate(tokenizers.NAMES):
        made.tokens[str(number)] = tokenizers.save(name, made.tokenizers / str(number))
    read(older, made.models, made.tokenizers, place / "answer.json")
    made.answer = json.loads((place / "answer.json").read_text())
    return made


def test_it_is_the_release_that_the_readme_names(folders: Folders) -> None:
    assert folders.answer["version"].startswith(f"{OLDEST}.")


def test_transformers_5_computes_what_it_computed_before(folders: Folders) -> None:
    assert len(folders.made) > 100
    assert {name: made for name, made in folders.made.items() if made["error"] or made["lost"]} == {}


def test_the_families_are_listed_as_transformers_4_reads_them(folders: Folders) -> None:
    found: dict[str, set[str]] = {"read": set(), "read eagerly": set(), "not read": set()}
    for kind, made in folders.kinds.items():
        telling = [folder for folder in made if folders.made[folder]["sayable"] or folders.is_unknown(folder)]
        if telling:
            found[max((folders.how(folder) for folder in telling), key=list(found).index)].add(kind)
    listed = {"read": READ, "read eagerly": READ_EAGERLY, "not read": NOT_READ}
    assert {name: sorted(kinds ^ listed[name]) for name, kinds in found.items()} == {"read": [], "read eagerly": [], "not read": []}


def test_what_is_told_to_need_transformers_5_is_not_read_by_transformers_4(folders: Folders) -> None:
    told = [name for name, made in folders.made.items() if made["readers"].minimum == "5"]
    assert len(told) > 20
    assert [name for name in told if folders.how(name) != "not read"] == []


@pytest.mark.parametrize("kind", cases.ROTARY)
@pytest.mark.parametrize("scaling", cases.SCALINGS)
def test_every_form_of_the_rotary_embedding_is_read_alike_or_told(folders: Folders, kind: str, scaling: str) -> None:
    if (kind, scaling) in cases.REFUSED:
        pytest.skip("transformers 5 itself refuses it")
    name = f"rope.{kind}.{scaling}"
    if folders.made[name]["readers"].minimum == "5":
        assert (kind, scaling) in cases.UNSAYABLE and folders.how(name) == "not read"
    else:
        assert folders.how(name) == ("read eagerly" if kind in READ_EAGERLY else "read"), folders.answer["models"][name]
        assert not folders.answer["models"][name]["lost"]


@pytest.mark.parametrize("number", range(len(tokenizers.NAMES)), ids=tokenizers.NAMES)
def test_every_tokenizer_reads_hard_texts_and_chats_alike(folders: Folders, number: int) -> None:
    assert folders.answer["tokenizers"][str(number)] == folders.tokens[str(number)]


def test_without_the_older_names_transformers_4_reads_something_else(older: Path, tmp_path: Path) -> None:
    """The fault that is mended here, so that the comparison is known to see it."""
    folder = tmp_path / "models" / "one"
    config = cases.config_of("llama", cases.rotary("llama", "default"))
    assert cases.make(folder, "causal", "LlamaForCausalLM", config) is not None
    written = models.read_json(folder / "config.json")
    (folder / "config.json").write_text(json.dumps({key: value for key, value in written.items() if key != "rope_theta"}))
    tokenizer = tmp_path / "tokenizers" / "one"
    tokenizers.save("generic", tokenizer)
    told = models.read_json(tokenizer / "tokenizer_config.json")
    (tokenizer / "tokenizer_config.json").write_text(json.dumps({**told, "tokenizer_class": "TokenizersBackend"}))
    read(older, tmp_path / "models", tmp_path / "tokenizers", tmp_path / "answer.json")
    answer = models.read_json(tmp_path / "answer.json")
    assert answer["models"]["one"]["error"] > 100 * ROUNDING
    assert "TokenizersBackend does not exist" in answer["tokenizers"]["one"]["raised"]
