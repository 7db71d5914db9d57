"""Raw selector values in a config: which shapes are possible at all. Parsing them is for `frostline.selectors`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, cast

from pydantic import WithJsonSchema

from frostline.config.section import Expects, Fault
from frostline.config.wording import show

_ONE = {
    "anyOf": [
        {"type": "string", "minLength": 1, "description": "A path or a tail of it; wildcards allowed."},
        {
            "type": "object",
            "minProperties": 1,
            "description": "One kind: path, glob, regex, type, layers (with of) or param; modifiers within, except, "
            "optional; frozen_mode in freeze_modules, conditional in unfreeze_modules and target_modules.",
        },
    ]
}
_PHRASE = "a selector (text, or a mapping such as {type: Linear}) or a list of selectors"

RawSelectors = Annotated[
    Any, Expects(_PHRASE), WithJsonSchema({"anyOf": [*_ONE["anyOf"], {"type": "array", "items": _ONE}]})
]
"""One selector or a list of them, exactly as written."""


def selector_faults(name: str, value: Any) -> Iterator[Fault]:
    """Faults in the shape of the raw selectors at key `name`."""
    if not isinstance(value, list | tuple):
        yield from _one_fault((name,), value)
        return
    for index, item in enumerate(cast("list[Any] | tuple[Any, ...]", value)):
        if isinstance(item, list | tuple):
            yield Fault(
                (name, index),
                f"a selector cannot be {show(item)}",
                "text or a mapping with one kind",
                "put each selector on a line of its own",
            )
        else:
            yield from _one_fault((name, index), item)


def _one_fault(keys: tuple[str | int, ...], value: Any) -> Iterator[Fault]:
    name = keys[0]
    if value is None or value is False or value == {} or (isinstance(value, str) and not value.strip()):
        shown = "empty text" if isinstance(value, str) else show(value)
        fix = f"remove the line, or write `{name}: []` to select nothing" if len(keys) == 1 else "remove the item"
        yield Fault(keys, f"a selector cannot be {shown}", _PHRASE, fix)
    elif isinstance(value, bool | int | float):
        hint = "; for a layer by its number write {layers: N}" if isinstance(value, int) and value is not True else ""
        yield Fault(keys, f"a selector cannot be {show(value)}", _PHRASE, f"name the modules{hint}")
    elif isinstance(value, Mapping):
        for key in cast("Mapping[Any, Any]", value):
            if not isinstance(key, str):
                yield Fault(keys, f"a selector has the key {show(key)}", "keys are text", "write the key as text")
