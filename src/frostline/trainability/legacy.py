"""The legacy booleans (`freeze_vision_tower` and its kin), read as selectors that compare words of a path.

Deprecated: whoever uses one is told the selectors that freeze the same in their model. No plan depends on which of the
two spellings made it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from frostline.config.origin import Origins
from frostline.config.wording import flow
from frostline.errors import FrostlineDeprecationWarning, Problem
from frostline.selectors import Selection, Selector, parse_selector
from frostline.tree import ModuleTree

_VISION = "freeze_vision_tower"
_LANGUAGE = "freeze_language_model"
# Each alternative is a path of components, and each component a run of words: `image_encoder` is two words of one.
_WORDS: Mapping[str, tuple[tuple[tuple[str, ...], ...], ...]] = {
    _VISION: ((("vision",),), (("visual",),), (("image", "encoder"),)),
    "freeze_audio_tower": ((("audio",),), (("speech",),), (("sound",),)),
    _LANGUAGE: ((("language",),), (("text",),), (("llm",),)),
    "freeze_video_embedder": ((("patch", "generator"), ("video", "embedder")),),
}
LEGACY_KEYS = tuple(_WORDS)
_NUMBER = re.compile(r"(?<=\.)[0-9]+(?=\.|$)")


@dataclass(frozen=True)
class LegacyKind:
    """Modules with a component of their path in which the words of a legacy key stand.

    Attributes:
        value: the legacy key.
        implicit: nobody wrote it; a legacy block has it when it is omitted.
    """

    key: ClassVar[str] = "legacy"
    selects: ClassVar[str] = "modules"
    options: ClassVar[tuple[str, ...]] = ()
    value: str
    implicit: bool = False

    @classmethod
    def parse(cls, value: Any, options: Mapping[str, Any]) -> Self:
        """From one of the legacy keys; nothing else makes one, as it is not writable as a selector."""
        del options
        return cls(str(value))

    @property
    def pattern(self) -> str:
        """The words as text."""
        return "|".join(".".join("_".join(words) for words in parts) for parts in _WORDS[self.value])

    def find(self, tree: ModuleTree, scope: bytearray | None) -> list[int]:
        """Outermost modules whose last components hold the words."""
        del scope
        alternatives = _WORDS[self.value]
        found: list[int] = []
        index = 0
        while index < len(tree.modules):
            ref = tree.modules[index]
            if not ref.is_adapter and ref.path and any(_ends_with(ref.path, parts) for parts in alternatives):
                found.append(index)
                index = ref.end
            else:
                index += 1
        return found

    def __str__(self) -> str:
        return f"{self.value}: true" + (" (implied by a block of nothing else)" if self.implicit else "")


def _ends_with(path: str, parts: tuple[tuple[str, ...], ...]) -> bool:
    components = path.lower().rsplit(".", len(parts))[-len(parts) :]
    return len(components) == len(parts) and all(
        _holds(component.split("_"), words) for component, words in zip(components, parts, strict=True)
    )


def _holds(component: list[str], words: tuple[str, ...]) -> bool:
    count = len(words)
    return any(tuple(component[start : start + count]) == words for start in range(len(component) - count + 1))


@dataclass(frozen=True)
class LegacyBlock:
    """What a `freeze_config` block says in legacy keys.

    Attributes:
        written: its legacy keys with their values, in the order written.
        is_alone: it has no other keys; then `freeze_vision_tower` is true where it is omitted.
        listed: its entries of `freeze_modules`, as written.
    """

    written: tuple[tuple[str, bool], ...] = ()
    is_alone: bool = False
    listed: tuple[Any, ...] = field(default=(), compare=False)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> LegacyBlock:
        """From a raw block; values that are no booleans are for others to refuse."""
        written = tuple((str(key), value is True) for key, value in config.items() if key in LEGACY_KEYS)
        listed: Any = config.get("freeze_modules", ())
        return cls(
            written, len(written) == len(config), tuple(listed) if isinstance(listed, list | tuple) else (listed,)
        )

    def selectors(self, origins: Origins) -> tuple[Selector, ...]:
        """What it freezes. That a part is not there is for `legacy_problems` and `legacy_notes` to judge."""
        kinds = [LegacyKind(key) for key, value in self.written if value]
        if self.is_alone and _VISION not in dict(self.written):
            kinds.insert(0, LegacyKind(_VISION, implicit=True))
        return tuple(
            Selector(kind, optional=True, origin=origins.at() if kind.implicit else origins.at(kind.value))
            for kind in kinds
        )


def is_legacy(selector: Selector) -> bool:
    """Whether `selector` stands for a legacy key."""
    return isinstance(selector.kind, LegacyKind)


def legacy_problems(freezing: Iterable[Selector], tree: ModuleTree) -> list[Problem]:
    """`freeze_language_model: true` where no module is called so: which part is the language model must be said."""
    return [
        Problem(
            f"{selector} freezes nothing: no module of this model has the word language, text or llm in its name",
            str(selector.origin),
            f"the language model here is most likely {_offered(tree)}",
            f"write freeze_modules: {flow([{'path': _offered(tree)}])} instead",
        )
        for selector in freezing
        if selector.kind == LegacyKind(_LANGUAGE) and not selector.kind.find(tree, None)
    ]


def _offered(tree: ModuleTree) -> str:
    """The child of the root that holds the largest stack of blocks, or else the most parameters."""
    top = tree.children(0)

    def size(index: int) -> tuple[int, int]:
        ref = tree.modules[index]
        stacks = [len(tree.children(block)) for block in tree.block_lists if index <= block < ref.end]
        return max(stacks, default=0), ref.param_end - ref.param_start

    return tree.modules[max(top, key=size)].path if top else "the model itself"


def legacy_notes(block: LegacyBlock, freezing: Iterable[tuple[Selector, Selection]], tree: ModuleTree) -> list[str]:
    """Remarks on explicit keys that match nothing, and the deprecation where a key is written or has an effect.

    The deprecation, which is also a warning, holds what to write instead for this model, ready to paste.
    """
    notes: list[str] = []
    paths: list[str] = []
    used = [f"{key}: false" for key, value in block.written if not value]
    for selector, selection in freezing:
        kind = selector.kind
        if not isinstance(kind, LegacyKind):
            continue
        if selection.matches or not kind.implicit:
            used.append(str(kind))
        paths.extend(tree.modules[index].path for index in selection.matches)
        if not selection.matches and not kind.implicit:
            notes.append(f"{kind} ({selector.origin.short}) matches nothing here: no module is named {kind.pattern}")
    if not used:
        return notes
    entries = flow([*equivalent_selectors(paths, tree), *block.listed])
    those = "this key" if len(used) == 1 else "these keys"
    if block.is_alone:
        instead = f"freeze_config: {{freeze_modules: {entries}}}"
    elif paths:
        instead = f"freeze_modules: {entries} in place of {those}"
        instead += " and of the freeze_modules there" if block.listed else ""
    else:
        instead = f"the block without {those}"
    deprecation = f"deprecated: {', '.join(used)}; the same with selectors: {instead}"
    warnings.warn(deprecation, FrostlineDeprecationWarning, stacklevel=2)
    return [*notes, deprecation]


def equivalent_selectors(paths: Iterable[str], tree: ModuleTree) -> list[dict[str, str]]:
    """Selectors of just the modules `paths` with their subtrees: one glob for what repeats by number, else paths."""
    groups: dict[str, list[str]] = {}
    for path in dict.fromkeys(paths):
        groups.setdefault(_NUMBER.sub("*", path), []).append(path)
    entries: list[dict[str, str]] = []
    for pattern, members in groups.items():
        if len(members) > 1 and _selects_just(pattern, members, tree):
            entries.append({"glob": pattern})
        else:
            entries.extend({"path": path} for path in members)
    return entries


def _selects_just(pattern: str, members: Iterable[str], tree: ModuleTree) -> bool:
    """Whether `pattern` matches all of `members` and else only modules inside them."""
    found = {tree.modules[index].path for index in parse_selector({"glob": pattern}).select(tree).matches}
    return found.issuperset(members) and all(
        any(path == root or path.startswith(f"{root}.") for root in members) for path in found
    )
