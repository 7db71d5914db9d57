"""The JSON schema of a config, for editors: completion, descriptions and red underlines while typing.

Made from the sections, so it cannot fall behind them; knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from frostline.config.models import Config
from frostline.config.section import Section, subsection


def json_schema() -> dict[str, Any]:
    """JSON schema (draft 2020-12) of a config file, with shorthands and aliases."""
    schema = Config.model_json_schema()
    definitions: dict[str, Any] = schema["$defs"]
    sections: dict[str, type[Section]] = {section.__name__: section for section in _sections(Config)}
    for section in (Config, *sections.values()):
        definition = schema if section is Config else definitions[section.__name__]
        definition.pop("title", None)
        for alias, name in section.aliases.items():
            other = dict(definition["properties"][name])
            other.pop("default", None)
            definition["properties"][alias] = other | {"description": f"Another name of `{name}`."}
        if section.shorthand is not None:
            definitions[section.__name__] = {
                "anyOf": [{"type": "string", "minLength": 1, "description": f"Its {section.shorthand}."}, definition],
                "description": definition.get("description", ""),
            }
        for name, words in section.value_aliases.items():
            values = definition["properties"][name]
            values["enum"] = [*values["enum"], *words]
    for node in _objects(schema):
        if isinstance(node.get("default"), dict):
            node.pop("default")  # a section of defaults: each of its keys has its own
        if isinstance(node.get("title"), str):
            node.pop("title")  # pydantic's titles repeat the key
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Frostline config",
        **schema,
    }


def _sections(section: type[Section]) -> Iterator[type[Section]]:
    for field in section.model_fields.values():
        below = subsection(field)
        if below is not None:
            yield below[0]
            yield from _sections(below[0])


def _objects(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for child in list(node.values()):
            yield from _objects(child)
    elif isinstance(node, list):
        for child in node:
            yield from _objects(child)
