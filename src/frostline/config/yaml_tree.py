"""YAML text -> plain data plus the line of every key and list item; all duplicate keys and dead aliases at once.

Composes ruamel.yaml's parse events itself, because its loaders drop the lines of aliases, merge keys and scalars.
Knows nothing of files on disk or of config keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from frostline.config.origin import Key, Origin, join_keys
from frostline.config.yaml_scalars import resolve_plain, resolve_tagged, short_tag
from frostline.config.yaml_syntax import explain
from frostline.errors import ConfigError, Problem

_MAX_DEPTH = 50  # far above any config; keeps `[[[[...` from exhausting the stack
_MAX_VALUES = 100_000  # aliases of aliases can multiply without bound
_COLLECTION_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq", "!")


@dataclass
class _Entry:
    line: int
    node: Any  # _Mapping, _Sequence, or a plain scalar


@dataclass
class _Mapping:
    entries: dict[str, _Entry] = field(default_factory=dict)


@dataclass
class _Sequence:
    entries: list[_Entry] = field(default_factory=list)


def parse_yaml(text: str, file: str) -> tuple[Any, dict[tuple[Key, ...], int]]:
    """Plain data of `text`, and the line (from 1) of each mapping key and list item. Mapping keys are always text.

    Args:
        text: YAML 1.2, one document. Empty text gives None.
        file: name for messages.

    Raises:
        ConfigError: syntax error, duplicate keys, aliases without anchor, unknown tags: with their lines.
    """
    composer = _Composer(file)
    try:
        root = composer.document(iter(YAML(typ="safe", pure=True).parse(text)))
    except YAMLError as error:
        raise ConfigError.from_problems([*composer.problems, explain(error, text, file)]) from None
    if composer.problems:
        raise ConfigError.from_problems(composer.problems)
    lines: dict[tuple[Key, ...], int] = {}
    return _plain(root, (), lines, file), lines


class _Composer:
    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._anchors: dict[str, Any] = {}
        self._open: list[str] = []  # anchors of the nodes being read

    def document(self, events: Iterator[Event]) -> Any:
        root: Any = None
        num_documents = 0
        for event in events:
            if isinstance(event, DocumentStartEvent):
                num_documents += 1
                if num_documents == 2:
                    self._problem(
                        event,
                        (),
                        "a second document starts here",
                        "a config is one YAML document",
                        "remove the `---` line, or move the rest to a file of its own",
                    )
                if event.version is not None and tuple(event.version) != (1, 2):
                    version = ".".join(map(str, event.version))
                    self._problem(
                        event,
                        (),
                        f"the file declares YAML {version}",
                        "configs are read as YAML 1.2",
                        "remove the `%YAML` line",
                    )
            elif isinstance(event, ScalarEvent | MappingStartEvent | SequenceStartEvent | AliasEvent):
                node = self._node(event, events, ())
                root = node if num_documents == 1 else root
        return root

    def _problem(self, event: Event, keys: tuple[Key, ...], what: str, possible: str, fix: str) -> None:
        assert event.start_mark is not None
        origin = Origin(join_keys(keys), self.file, event.start_mark.line + 1)
        self.problems.append(Problem(what, str(origin), possible, fix))

    def _node(self, event: Event, events: Iterator[Event], keys: tuple[Key, ...]) -> Any:
        if isinstance(event, AliasEvent):
            return self._alias(event, keys)
        anchor: str | None = getattr(event, "anchor", None)
        if isinstance(event, ScalarEvent):
            node = self._scalar(event, keys)
        else:
            if len(keys) > _MAX_DEPTH:
                self._problem(
                    event,
                    (),
                    f"values are nested more than {_MAX_DEPTH} deep",
                    f"at most {_MAX_DEPTH} levels",
                    "flatten them",
                )
                raise ConfigError.from_problems(self.problems)
            tag = getattr(event, "tag", None)
            if tag is not None and tag not in _COLLECTION_TAGS:
                self._unknown_tag(event, keys, tag)
            if anchor is not None:
                self._open.append(anchor)
            is_mapping = isinstance(event, MappingStartEvent)
            node = self._mapping(events, keys) if is_mapping else self._sequence(events, keys)
            if anchor is not None:
                self._open.pop()
        if anchor is not None:
            self._anchors[anchor] = node
        return node

    def _alias(self, event: AliasEvent, keys: tuple[Key, ...]) -> Any:
        name = str(event.anchor)
        if name in self._open:
            self._problem(
                event,
                keys,
                f"`*{name}` refers to the value that it is part of",
                "anchors of values that have ended",
                "refer to a value that ends before this line",
            )
            return None
        if name not in self._anchors:
            known = ", ".join(f"`&{anchor}`" for anchor in self._anchors)
            self._problem(
                event,
                keys,
                f"`*{name}` is not quoted, so YAML reads it as an alias of an anchor `&{name}`",
                f"the only anchors above are {known}" if known else "there are no anchors",
                f'for a wildcard, quote it: "*{name}"',
            )
            return None
        return self._anchors[name]

    def _unknown_tag(self, event: Event, keys: tuple[Key, ...], tag: str) -> None:
        self._problem(
            event,
            keys,
            f"the tag `{short_tag(tag)}` is not known",
            "values are plain text, numbers, true, false, null, lists and mappings",
            "remove the tag, or quote a value that starts with `!`",
        )

    def _scalar(self, event: ScalarEvent, keys: tuple[Key, ...]) -> Any:
        try:
            if event.tag is not None:
                return resolve_tagged(event.value, str(event.tag))
            return resolve_plain(event.value) if event.implicit[0] else event.value
        except ValueError as error:
            self._problem(
                event,
                keys,
                f"not a valid value: {error}",
                "text, numbers of at most a few thousand digits, true, false, null, lists and mappings",
                "remove the tag or shorten the number; quote it if it is text",
            )
            return None

    def _sequence(self, events: Iterator[Event], keys: tuple[Key, ...]) -> _Sequence:
        node = _Sequence()
        for event in events:
            if isinstance(event, SequenceEndEvent):
                break
            assert event.start_mark is not None
            line = event.start_mark.line + 1
            node.entries.append(_Entry(line, self._node(event, events, (*keys, len(node.entries)))))
        return node

    def _mapping(self, events: Iterator[Event], keys: tuple[Key, ...]) -> _Mapping:
        node = _Mapping()
        merged: list[_Mapping] = []
        for event in events:
            if isinstance(event, MappingEndEvent):
                break
            assert event.start_mark is not None
            line = event.start_mark.line + 1
            if not isinstance(event, ScalarEvent):
                # Read both nodes to keep the events in step, then report.
                self._node(event, events, keys)
                self._node(next(events), events, keys)
                self._problem(
                    event,
                    keys,
                    "a key is a list, a mapping or an alias",
                    "keys are plain text",
                    "write the key as text",
                )
                continue
            key = str(event.value)
            child = self._node(next(events), events, (*keys, key))
            if key == "<<" and event.implicit[0]:
                merged += self._merge_sources(event, child, keys)
            elif key in node.entries:
                self._problem(
                    event,
                    (*keys, key),
                    f"`{join_keys((*keys, key))}` is given twice",
                    f"it is already on line {node.entries[key].line}",
                    "keep one of the two",
                )
            else:
                node.entries[key] = _Entry(line, child)
        for source in merged:  # own keys win over merged ones, earlier sources over later ones
            for key, entry in source.entries.items():
                node.entries.setdefault(key, entry)
        return node

    def _merge_sources(self, event: Event, child: Any, keys: tuple[Key, ...]) -> list[_Mapping]:
        sources = [entry.node for entry in child.entries] if isinstance(child, _Sequence) else [child]
        if all(isinstance(source, _Mapping) for source in sources):
            return sources
        self._problem(
            event,
            keys,
            "`<<` merges something that is not a mapping",
            "`<<: *name` where `&name` marks a mapping, or a list of such",
            "correct or remove the `<<` line",
        )
        return []


def _plain(node: Any, keys: tuple[Key, ...], lines: dict[tuple[Key, ...], int], file: str) -> Any:
    if isinstance(node, _Mapping):
        items: list[tuple[Key, _Entry]] = list(node.entries.items())
    elif isinstance(node, _Sequence):
        items = list(enumerate(node.entries))
    else:
        return node
    for key, entry in items:
        lines[(*keys, key)] = entry.line
    if len(lines) > _MAX_VALUES or len(keys) > _MAX_DEPTH:
        raise ConfigError(
            "the aliases of the file multiply to an enormous config",
            where=file,
            possible=f"at most {_MAX_VALUES:,} values, nested {_MAX_DEPTH} deep",
            fix="write fewer aliases",
        )
    values = [(key, _plain(entry.node, (*keys, key), lines, file)) for key, entry in items]
    return dict(values) if isinstance(node, _Mapping) else [value for _, value in values]
