"""The formats `mlx…` as the daemon reads them."""

from __future__ import annotations

from daemon.contract.formats.catalog import catalog


def test_its_forms_become_smaller_and_fall_back_to_the_next_larger_one() -> None:  # R10
    variants = catalog().variants
    chain = ["mlx-int4", "mlx-int8", "mlx"]
    assert [variants[one].fallback for one in chain] == [*chain[1:], None]
    assert all(variants[one].form_of == "mlx" for one in chain[:2]) and variants["mlx-int4"].level == "int4"
    for one in chain:
        assert variants[one].toolchain == variants[one].limits.toolchain == "mlx"
        assert variants[one].library == "mlx" and "laptop" in variants[one].also_for and "Apple GPU" in variants[one].elsewhere


def test_only_language_models_have_an_engine() -> None:
    assert set(catalog().engines["mlx"]) == {"causal"}
