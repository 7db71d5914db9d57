"""`param`: single parameters, by fnmatch over the full path; the only kind that reaches adapter internals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from frostline.config.wording import flow
from frostline.selectors.kinds._positions import Positions
from frostline.selectors.kinds._text import matcher, require_text
from frostline.selectors.selector import OptionError, register_kind
from frostline.tree import ModuleTree


def _one_entry_each(pattern: str, rows: Any) -> str:
    """The entries that say what a list of indices and slices means; empty where `rows` is something else."""
    items: list[Any] = list(rows) if isinstance(rows, list | tuple) else []
    try:
        for item in items:
            Positions.parse(item, "rows", "")
    except ValueError:
        return ""
    return ", ".join(flow({"param": pattern, "rows": item}) for item in items)


@register_kind
@dataclass(frozen=True)
class ParamKind:
    """Every parameter whose full path matches the fnmatch pattern (case-sensitive, `*` crosses dots).

    Attributes:
        value: the pattern.
        rows: only these rows (indices along dim 0) of what matches; None is the whole parameter. Only for freezing.
    """

    key: ClassVar[str] = "param"
    selects: ClassVar[str] = "params"
    options: ClassVar[tuple[str, ...]] = ("rows",)
    value: str
    rows: Positions | None = None

    @classmethod
    def parse(cls, value: Any, options: Mapping[str, Any]) -> Self:
        """Any non-empty string; `rows` as `Positions` reads them."""
        text = require_text(value, "param")
        if "rows" not in options:
            return cls(text)
        try:
            return cls(text, Positions.parse(options["rows"], "rows", "32000:"))
        except ValueError as error:
            what, possible, fix = error.args
            if entries := _one_entry_each(text, options["rows"]):
                fix = f"write one entry for each: {entries}"
            raise OptionError("rows", what, possible, fix) from None

    @property
    def pattern(self) -> str:
        """The pattern as written."""
        return self.value

    def find(self, tree: ModuleTree, scope: bytearray | None) -> list[int]:
        """Parameters whose full path matches."""
        matches = matcher(self.value)
        return [index for index, ref in enumerate(tree.params) if matches(ref.path)]

    def rows_of(self, path: str, shape: tuple[int, ...]) -> list[int]:
        """The chosen rows of one match, sorted.

        Raises:
            LookupError: it has no such rows.
        """
        assert self.rows is not None
        if not shape:
            raise LookupError(f"{path} is a single number, which has no rows", "parameters with rows", "remove `rows`")
        return self.rows.among(shape[0], container=path, items="rows", thing="table")

    def __str__(self) -> str:
        return f'param "{self.value}"' + (f" rows {self.rows}" if self.rows is not None else "")
