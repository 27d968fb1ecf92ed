"""Where settings come from besides the files: `--set`, `CKPTD_SECTION__KEY`, and the short `EXPORT_*` names."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_settings import BaseSettings, EnvSettingsSource

from daemon.config.sources import PREFIX, given_on_command_line, holds
from daemon.contract.faults.secrets import may_be_secret, shown
from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.options import ExportOptions

_SHORT = {
    ("output", "directory"): "EXPORT_OUTPUT_DIR",
    ("export", "quantization"): "EXPORT_QUANTIZATION_LEVEL",
    ("export", "variants"): "EXPORT_ENABLE_ONNX",
    ("log", "level"): "EXPORT_LOG_LEVEL",
}
_YES = ("1", "true", "yes", "on")
_NO = ("0", "false", "no", "off")


class ListFriendlyEnv(EnvSettingsSource):
    """Environment values where a list may also be written with commas: `CKPTD_EXPORT__VARIANTS=pytorch,onnx`."""

    def __call__(self) -> dict[str, Any]:
        """The nested values; a number stands as a number also where a key allows some numbers only."""
        if not self.env_vars:
            return {}
        fields = self.settings_cls.model_fields
        return {name: _typed(fields[name].annotation, value) if name in fields else value for name, value in super().__call__().items()}

    def _load_env_vars(self) -> Mapping[str, str | None]:
        """Ours alone: for each key all variables are looked through."""
        return {name: value for name, value in super()._load_env_vars().items() if name.startswith(PREFIX.lower())}

    def decode_complex_value(self, field_name: str, field: Any, value: Any) -> Any:
        """JSON where it is JSON, else the parts between commas."""
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return [part.strip() for part in value.split(",") if part.strip()]


class CommandLine(ListFriendlyEnv):
    """What `--set SECTION.KEY=VALUE` gave, read as a variable's value is."""

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return {f"{PREFIX}{key.replace('.', '__')}".lower(): value for key, value in given_on_command_line.items()}


def variable_for(key: str, settings: type[BaseSettings], environment: Mapping[str, str]) -> str | None:
    """The environment variable that gave the value of a dotted key; None where it comes from elsewhere."""
    parts = key.split(".")
    names = {name.upper(): name for name in environment}
    of_section = any(name.startswith(f"{PREFIX}{parts[0]}".upper()) for name in names)
    if not of_section or not holds(ListFriendlyEnv(settings)(), key):
        short = _SHORT.get((parts[0], parts[1]) if len(parts) > 1 else ("", ""))
        return short if short and environment.get(short) else None
    variables = ("__".join([f"{PREFIX}{parts[0]}", *parts[1:length]]).upper() for length in range(len(parts), 0, -1))
    return next((names[variable] for variable in variables if variable in names), None)


def short_names(environment: dict[str, str]) -> dict[str, Any]:
    """The nested settings that the short `EXPORT_*` variables stand for. Unset is not empty."""
    values: dict[str, Any] = {}
    if directory := environment.get("EXPORT_OUTPUT_DIR"):
        values["output"] = {"directory": str(Path(directory).absolute())}
    export: dict[str, Any] = {}
    if level := environment.get("EXPORT_QUANTIZATION_LEVEL"):
        export["quantization"] = level if may_be_secret(level) else level.lower()
    if enabled := environment.get("EXPORT_ENABLE_ONNX"):
        word = enabled.strip().lower()
        if word not in (*_YES, *_NO):
            raise ValueError(
                f"EXPORT_ENABLE_ONNX (environment): is neither yes nor no (it is {shown(enabled)}); for example 'true' or 'false'"
            )
        wants = word in _YES
        defaults = ExportOptions().variants
        known = catalog().variants
        export["variants"] = [name for name in defaults if wants or "onnx" not in known[name].traits]
    if export:
        values["export"] = export
    if level := environment.get("EXPORT_LOG_LEVEL"):
        values["log"] = {"level": level}
    return values


def _typed(annotation: Any, value: Any) -> Any:
    """`value` with its texts as the `Literal` members that they spell: pydantic reads "4" as an int, but not as `Literal[4]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and isinstance(value, dict):
        fields = annotation.model_fields
        return {key: _typed(fields[key].annotation, inner) if key in fields else inner for key, inner in value.items()}
    if isinstance(value, dict):
        return {key: _typed(get_args(annotation)[-1] if get_args(annotation) else Any, inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_typed(annotation, inner) for inner in value]
    members = _members(annotation)
    if not isinstance(value, str) or value in members:
        return value
    try:
        spelled = json.loads(value)
    except ValueError:
        return value
    return next((member for member in members if type(member) is type(spelled) and member == spelled), value)


def _members(annotation: Any) -> tuple[Any, ...]:
    """The members of every `Literal` in a type, in whatever union or list of it."""
    origin = get_origin(annotation)
    if origin is Literal:
        return get_args(annotation)
    if origin is Annotated:
        return _members(get_args(annotation)[0])
    if origin in (Union, types.UnionType, tuple, list):
        return tuple(member for part in get_args(annotation) for member in _members(part))
    return ()
