"""Where settings come from besides the file: `CKPTD_SECTION__KEY`, and the short `EXPORT_*` names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic_settings import EnvSettingsSource

from daemon.contract.catalog import catalog
from daemon.contract.options import ExportOptions

_YES = ("1", "true", "yes", "on")
_NO = ("0", "false", "no", "off")


class ListFriendlyEnv(EnvSettingsSource):
    """Environment values where a list may also be written with commas: `CKPTD_EXPORT__VARIANTS=pytorch,onnx`."""

    def decode_complex_value(self, field_name: str, field: Any, value: Any) -> Any:
        """JSON where it is JSON, else the parts between commas."""
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return [part.strip() for part in value.split(",") if part.strip()]


def over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Two nested dictionaries as one; where both have a value, that of `above` counts."""
    both = dict(below)
    for key, value in above.items():
        inner = both.get(key)
        both[key] = over(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return both


def short_names(environment: dict[str, str]) -> dict[str, Any]:
    """The nested settings that the short `EXPORT_*` variables stand for. Unset is not empty."""
    values: dict[str, Any] = {}
    if directory := environment.get("EXPORT_OUTPUT_DIR"):
        values["output"] = {"directory": str(Path(directory).absolute())}
    export: dict[str, Any] = {}
    if level := environment.get("EXPORT_QUANTIZATION_LEVEL"):
        export["quantization"] = level.lower()
    if enabled := environment.get("EXPORT_ENABLE_ONNX"):
        word = enabled.strip().lower()
        if word not in (*_YES, *_NO):
            raise ValueError(f"EXPORT_ENABLE_ONNX (environment): is neither yes nor no (it is {enabled!r}); for example 'true' or 'false'")
        wants = word in _YES
        defaults = ExportOptions().variants
        known = catalog().variants
        export["variants"] = [name for name in defaults if wants or "onnx" not in known[name].traits]
    if export:
        values["export"] = export
    if level := environment.get("EXPORT_LOG_LEVEL"):
        values["log"] = {"level": level.lower()}
    return values
