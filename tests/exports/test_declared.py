"""What declarations say of files, where a slip would fail every check of a format."""

from __future__ import annotations

import pytest

from daemon.contract.formats.catalog import catalog


@pytest.mark.parametrize("variant", ["mlx-int4", "web", "tensorrt-llm"])
def test_a_config_json_with_keys_of_the_formats_own_is_declared_as_such(variant: str) -> None:
    assert catalog().files[variant]["config.json"] == "extended config"
