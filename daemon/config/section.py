"""What every section of the configuration is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, LiteralString, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ByteSize, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """A section of the file: frozen, closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True)

    @field_validator("*", mode="before")
    @classmethod
    def _a_number_is_no_truth(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false for a number, which would be taken for 1 and 0."""
        kind = _NUMBERS.get(cls.model_fields[info.field_name or ""].annotation)
        if isinstance(value, bool) and kind:
            raise PydanticCustomError(f"{kind}_type", "is no number")
        return value


WITHOUT_SECRETS = "without_secrets"
"""Type of an error whose sentence has nothing of a value, so that it can be said of a secret too."""


def refusal(sentence: LiteralString) -> PydanticCustomError:
    """Return what a validator raises to say just this."""
    return PydanticCustomError(WITHOUT_SECRETS, sentence)


def form(pattern: str, sentence: LiteralString) -> AfterValidator:
    """A text of a form; another one is refused with a sentence that does not show it."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise refusal(sentence)
        return text

    return AfterValidator(check)


Tables = TypeVar("Tables", bound=tuple[Any, ...])


def distinct(tables: Tables) -> Tables:
    """Tables of a list as they are; refuses two of one name."""
    if len({table.name for table in tables}) < len(tables):
        raise refusal("two of them have the same name; each needs a name of its own")
    return tables


_NUMBERS: dict[Any, LiteralString] = {int: "int", float: "float", ByteSize: "byte_size"}
"""Types of settings that are numbers → what pydantic's errors about them begin with."""

OptionalPath = Annotated[Path | None, BeforeValidator(lambda value: None if value == "" else value)]
"""A path, or "" for none: TOML has no null."""
