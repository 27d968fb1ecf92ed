"""Patterns in adapter_config.json match what PEFT matches by them, and no pattern takes the planning's time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from daemon.contract.faults.errors import Permanent
from handlers.merge import merge_adapter
from handlers.merge.adapters import patterns
from handlers.merge.adapters.patterns import bound, first_keys, named
from tests.merge import helpers
from tests.sampling import some

FOLDER = Path("/adapter")
LINEAR = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
MODULES = [f"model.layers.{layer}.{name}" for layer in range(80) for name in LINEAR]
CATASTROPHIC = r"(([a-z_.0-9]+)+)+!"

parts = st.sampled_from(["q", "proj", "q_proj", "layers", "0", "1", "10", "a-b", "mlp", "m_p", "x", ""])
paths = st.lists(parts, min_size=1, max_size=5).map(".".join)
operators = st.sampled_from(
    ["", ".", ".*", r"\.", r"\d+", "(0|1)", "[a-q]_proj", "$", "^", "?", "x?", "+", r"\w", "|", "(?!0)", r"(q)\2", "(?i:Q)"]
)
written = st.lists(st.one_of(parts, operators, st.just(".")), min_size=1, max_size=6).map("".join)
"""Plain names, names whose dots stand for letters, expressions, and what is none."""
names = st.lists(paths | paths.map(lambda one: one + "\n"), min_size=1, max_size=6, unique=True)


def pefts_first(keys: list[str], module: str) -> str | None:
    from peft.utils.other import get_pattern_key

    marked = dict.fromkeys(keys)
    found = get_pattern_key(marked.keys(), module)
    return found if found in marked else None


@settings(max_examples=40, deadline=None)
@given(st.lists(paths | written, max_size=6, unique=True), names)
@example(["q.proj", "q_proj"], ["model.q_proj", "model.q.proj", "q_proj\n"])
@example(["...._proj", "model.layers"], ["model.layers.q_proj", "a.b"])
@example(["", "x"], ["model.x", "model."])
def test_the_first_key_of_a_module_is_pefts(keys: list[str], modules: list[str]) -> None:
    import re

    # PEFT compares what it found with the keys by name: a module that is called as a key counts as found by it.
    try:
        theirs = {module: key for module in modules if (key := pefts_first(keys, module)) is not None}
    except re.error:
        with pytest.raises(Permanent, match="not a valid regular expression"):
            first_keys(keys, modules, "rank_pattern", FOLDER)
        return
    found = first_keys(keys, modules, "rank_pattern", FOLDER)
    assert found == {module: key for module, key in theirs.items() if module in found or key != module or _matches(key, module)}


def _matches(key: str, module: str) -> bool:
    import re

    return re.match(rf"(.*\.)?({key})$", module) is not None


class _Config:
    """What `check_target_module_exists` asks of a configuration."""

    def __init__(self, targets: Any) -> None:
        self.target_modules, self.exclude_modules, self.target_parameters = targets, None, None


@settings(max_examples=30, deadline=None)
@given(st.one_of(written, st.lists(paths, max_size=5)), names)
def test_the_modules_that_a_target_names_are_pefts(targets: Any, modules: list[str]) -> None:
    import re

    from peft.tuners.tuners_utils import check_target_module_exists

    try:
        theirs = {module for module in modules if check_target_module_exists(_Config(targets), module)}
    except re.error:
        with pytest.raises(Permanent, match="target_modules contains a pattern that is not a valid regular expression"):
            named(targets, modules, "target_modules", FOLDER)
        return
    assert named(targets, modules, "target_modules", FOLDER) == theirs


@pytest.mark.parametrize(
    "keys",
    [
        [f"model.layers.{number}.self_attn.q_proj" for number in range(200_000)],
        [f"layers.{number}.q.proj" for number in range(200_000)],
        [f"module{number}" for number in range(200_000)],
    ],
    ids=["whole paths", "dots for letters", "names"],
)
def test_two_hundred_thousand_names_are_compared_with_few_modules_each(keys: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing each with every module would take 112 million comparisons."""
    monkeypatch.setattr(patterns, "MOST_WORK", 10_000)
    first_keys(keys, MODULES, "rank_pattern", FOLDER)
    named(keys, MODULES, "target_modules", FOLDER)


@pytest.mark.parametrize("field", some(["rank_pattern", "target_modules", "alpha_pattern"], of=3))
def test_a_pattern_that_never_comes_to_an_end_is_given_up(
    field: str, monkeypatch: pytest.MonkeyPatch, pico_base: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr(patterns, "CPU_SECONDS", 1)
    adapter = helpers.make_adapter(pico_base, tmp_path / "adapter", target_modules=["q_proj"])
    config = json.loads((adapter / "adapter_config.json").read_text())
    value: Any = CATASTROPHIC if field == "target_modules" else {CATASTROPHIC: 4}
    (adapter / "adapter_config.json").write_text(json.dumps({**config, field: value}))
    (tmp_path / "out").mkdir()
    with pytest.raises(Permanent, match=f"matching the patterns in {field} takes more than 1 s") as caught:
        merge_adapter(adapter, pico_base, tmp_path / "out")
    assert caught.value.fault.code == "patterns-too-slow"
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("modules_to_save", [CATASTROPHIC]),
        *(
            pytest.param(field, value, marks=pytest.mark.slow)
            for field, value in (
                ("target_modules", CATASTROPHIC), ("exclude_modules", CATASTROPHIC), ("layers_pattern", [CATASTROPHIC]),
                ("rank_pattern", {CATASTROPHIC: 4}), ("alpha_pattern", {CATASTROPHIC: 4}),
            )
        ),
    ],
)  # fmt: skip
def test_nothing_that_peft_would_hang_at_reaches_it(field: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from peft import LoraConfig

    monkeypatch.setattr(patterns, "CPU_SECONDS", 1)
    options: dict[str, Any] = {"target_modules": ["q_proj"], field: value}
    if field == "layers_pattern":
        options["layers_to_transform"] = [0]
    with pytest.raises(Permanent, match=field):
        bound(LoraConfig(**options), MODULES, FOLDER)


def test_a_pattern_that_takes_all_memory_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MEMORY", 64 << 20)
    with pytest.raises(Permanent, match="matching the patterns in rank_pattern takes more than 64 MiB of memory"):
        first_keys(["(a)?" * 300_000], MODULES, "rank_pattern", FOLDER)


def test_what_peft_gets_is_short_and_makes_the_same_ranks() -> None:
    from peft import LoraConfig
    from peft.utils.other import get_pattern_key

    ranks = {f"layers.{number}.self_attn.q_proj": number % 7 + 1 for number in range(100_000)} | {r".*\.mlp\..*": 3, "k.proj": 5}
    config = LoraConfig(target_modules=[f"module{number}" for number in range(5000)] + ["q_proj"], rank_pattern=ranks)
    bound(config, MODULES, FOLDER)
    assert config.target_modules == {"q_proj"}
    assert len(config.rank_pattern) == 82
    kept = list(config.rank_pattern)
    assert kept == [key for key in ranks if key in config.rank_pattern], "in the same order"
    small = {key: rank for key, rank in ranks.items() if not key.startswith("layers.") or int(key.split(".")[1]) < 100}
    for module in MODULES:
        assert config.rank_pattern.get(get_pattern_key(kept, module)) == small.get(get_pattern_key(list(small), module))


def test_keys_that_name_parameters_reach_peft_also_where_there_are_many() -> None:
    from peft import LoraConfig

    experts = [f"model.layers.{layer}.mlp.experts.{leaf}" for layer in range(80) for leaf in ("gate_up_proj", "down_proj")]
    few = {r".*\.gate_up_proj": 8, "layers.3.mlp.experts.down_proj": 2, "nothing": 5}
    config = LoraConfig(target_modules=["q_proj"], rank_pattern=dict(few), alpha_pattern=dict(few))
    bound(config, [*MODULES, *experts], FOLDER)
    assert config.rank_pattern == few and config.alpha_pattern == few, "PEFT gets what was saved"
    many = LoraConfig(target_modules=["q_proj"], rank_pattern={**{f"module{number}": 3 for number in range(300)}, **few})
    bound(many, [*MODULES, *experts], FOLDER)
    assert list(many.rank_pattern) == list(few)[:2]


def test_names_of_layers_that_experts_once_had_reach_peft_which_targets_what_became_of_them() -> None:
    from peft import LoraConfig

    old = [f"model.layers.{layer}.mlp.experts.{number}.{part}" for layer in range(4) for number in range(64) for part in ("w1", "w2", "w3")]
    config = LoraConfig(target_modules=[*old, "q_proj"])
    bound(config, MODULES, FOLDER)
    assert {name.rpartition(".")[2] for name in config.target_modules} == {"q_proj", "w1", "w2", "w3"}
    assert len(config.target_modules) == 4
