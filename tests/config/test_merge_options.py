"""`[merge]`: what is taken, what is refused, and that it decides about repeating a finished merge."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from daemon.config.loading import load
from daemon.config.settings import Settings
from daemon.contract.faults.errors import UsageError
from daemon.contract.jobs.options import ExportOptions, MergeOptions, ValidateOptions, Work
from daemon.contract.jobs.plan import spec_of


def test_a_shard_size_is_written_with_a_unit_or_left_empty() -> None:
    assert Settings.model_validate({"merge": {"max_shard_size": "2GiB"}}).merge.max_shard_size == 2 << 30
    assert Settings.model_validate({"merge": {"max_shard_size": ""}}).merge.max_shard_size is None


@pytest.mark.parametrize("values", [{"dtype": "int8"}, {"base": "nf4"}, {"max_shard_size": "1KiB"}, {"max_shard_size": "big"}])
def test_a_value_that_cannot_be_used_is_refused(values: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        MergeOptions.model_validate(values)


def test_the_options_travel_in_the_job_file_and_are_part_of_what_the_merge_depends_on() -> None:
    values = {"dtype": "float16", "max_shard_size": "1GiB", "base": "dequantized"}
    settings = Settings.model_validate({"merge": values})
    assert Work.model_validate_json(settings.work.model_dump_json()).merge == MergeOptions.model_validate(values)
    assert "merge" in spec_of("merge").settings
    assert settings.work.digest != Settings().work.digest


def test_a_job_file_from_before_there_were_options_gets_the_defaults() -> None:
    old = Work(export=ExportOptions(), validation=ValidateOptions()).model_dump(mode="json")
    del old["merge"]
    assert Work.model_validate(old).merge == MergeOptions()


def test_what_is_merged_beside_a_checkpoint_is_no_part_of_what_an_open_job_follows() -> None:
    values = {"weight": 0.5, "add": [{"path": "/adapters/style"}, {"path": "/adapters/facts", "weight": -0.25}]}
    settings = Settings.model_validate({"merge": values})
    assert [(str(one.path), one.weight) for one in settings.merge.add] == [("/adapters/style", 1.0), ("/adapters/facts", -0.25)]
    assert settings.work == Settings().work


def test_a_relative_addition_is_relative_to_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('[[merge.add]]\npath = "adapters/style"\nweight = 0.5\n')
    assert load(tmp_path / "c.toml").merge.add[0].path == tmp_path / "adapters/style"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[merge.add]]\nweight = 0.5\n", "merge.add.0.path: is not given"),
        ('[[merge.add]]\npath = "a"\nweight = 0\n', "merge.add.0.weight: is a factor and can't be 0"),
        ('[[merge.add]]\npath = "a"\nweight = nan\n', "merge.add.0.weight: must be a finite number"),
        ('[[merge.add]]\npath = "a"\nwieght = 1\n', "merge.add.0.wieght: is not a known key"),
        ("[merge]\nweight = 0\n", "merge.weight: is a factor and can't be 0"),
        ("[merge]\nweight = 1e-30\n", "merge.weight: is a factor and can't be 1e-30, with which the adapter would not be merged"),
        ("[merge]\nweight = -1000\n", "merge.weight: is a factor and can't be -1000: beyond 100 nothing is left of the base"),
        ('[[merge.add]]\npath = "a"\nweight = 1e30\n', "merge.add.0.weight: is a factor and can't be 1e+30: beyond 100"),
    ],
)
def test_a_wrong_addition_is_refused_with_its_place(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(UsageError) as raised:
        load(tmp_path / "c.toml")
    assert said in str(raised.value)
