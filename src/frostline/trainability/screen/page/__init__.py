"""A plan as one page for a browser: no network, no other file, works from the disk.

The picture is drawn by `page.js` from folded data, so that a page stays small however large the model is.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING

from frostline.trainability.screen.page.data import page_data

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan
    from frostline.trainability.screen.forecast import Forecast

__all__ = ["PAGE_MARK", "render_page"]

#: Stands near the beginning of every page: by it a page is known as ours.
PAGE_MARK = '<meta name="generator" content="frostline plan">'


def render_page(
    plan: TrainabilityPlan, facts: Mapping[str, str], *, title: str, memory: Forecast, devices: Forecast | None
) -> str:
    """The whole page as text. Names and rules of the plan are data in it, never markup."""
    data = json.dumps(page_data(plan, facts, title=title, memory=memory, devices=devices), separators=(",", ":"))
    # Inside a script element only `<` can end it or begin a comment; in JSON it stands in strings alone.
    data = data.replace("<", "\\u003c")
    parts = {
        "{{mark}}": PAGE_MARK,
        "{{title}}": html.escape(title),
        "{{style}}": _file("page.css"),
        "{{script}}": _file("page.js"),
        "{{data}}": data,
    }
    page = _file("page.html")
    pieces: list[str] = []
    while "{{" in page:  # each mark once, in order: what is put in may hold such marks itself
        before, _, rest = page.partition("{{")
        name, _, page = rest.partition("}}")
        pieces += [before, parts["{{" + name + "}}"]]
    return "".join([*pieces, page])


def _file(name: str) -> str:
    return resources.files("frostline.trainability.screen.page").joinpath(name).read_text(encoding="utf-8")
