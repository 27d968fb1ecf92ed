"""`[merge]`: what is taken, what is refused, and that it decides about repeating a finished merge."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from daemon.config.settings import Settings
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
    options = MergeOptions.model_validate({"dtype": "float16", "max_shard_size": "1GiB", "base": "dequantized"})
    settings = Settings(merge=options)
    assert Work.model_validate_json(settings.work.model_dump_json()).merge == options
    assert "merge" in spec_of("merge").settings
    assert settings.work.digest != Settings().work.digest


def test_a_job_file_from_before_there_were_options_gets_the_defaults() -> None:
    old = Work(export=ExportOptions(), validation=ValidateOptions()).model_dump(mode="json")
    del old["merge"]
    assert Work.model_validate(old).merge == MergeOptions()
