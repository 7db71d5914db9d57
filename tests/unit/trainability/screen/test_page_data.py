"""What a page embeds, without a browser: folded data that no name can break out of, and phases."""

from __future__ import annotations

import json
import re
from typing import Any

from torch import nn

from frostline import resolve
from frostline.trainability.screen.page import PAGE_MARK

from ..conftest import encoder


def data_of(page: str) -> dict[str, Any]:
    """The JSON in the page, found as a browser finds it: up to the first end tag."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script', page, re.DOTALL | re.IGNORECASE)
    assert found
    return json.loads(found[1])


def test_a_name_cannot_leave_the_data() -> None:
    name = "</script><script>alert(1)</script><!--"
    model = nn.ModuleDict({name: nn.Linear(2, 2), "{{data}}": nn.Linear(2, 2)})
    page = resolve(model).to_html({"optimizer": "AdamW", "note": "</script> {{style}}"}, title="<b>{{script}}</b>")
    assert page.count("</script>") == 2  # the two that the page has itself
    assert "<!--" not in page
    assert page.startswith("<!doctype html>")
    assert PAGE_MARK in page[:200]
    assert "<title>&lt;b&gt;{{script}}&lt;/b&gt;: what trains</title>" in page
    data = data_of(page)
    assert data["parts"][data["root"]][2][0][0] == [name]
    assert data["notes"] == ["</script> {{style}}"]


def test_the_page_asks_for_nothing_from_elsewhere() -> None:
    page = resolve(encoder()).to_html()
    assert "default-src 'none'" in page
    assert not re.search(r"(?:src|href)=\"(?!data:)", page)
    assert re.findall(r"https?://[^\"']*", page) == ["http://www.w3.org/2000/svg"] * 2  # a name, never fetched


def test_equal_blocks_are_embedded_once() -> None:
    data = data_of(resolve(encoder()).to_html())
    assert len(data["parts"]) == 7  # linear (the embedding is equal), norm, dropout, block, list, head, root
    groups = data["parts"][data["root"]][2]
    layers = data["parts"][groups[1][1]]
    assert layers[2] == [[["0", "1", "2"], layers[2][0][1]]]


def test_what_trains_in_a_later_phase_is_kept_apart_and_said() -> None:
    config = {"freeze_modules": ["layers"], "phases": [{"at": {"step": 3}, "unfreeze_modules": [{"layers": 2}]}]}
    plan = resolve(encoder(), freeze_config=config)
    data = data_of(plan.to_html())
    layers = data["parts"][data["parts"][data["root"]][2][1][1]]
    assert [names for names, _ in layers[2]] == [["0", "1"], ["2"]]
    assert sorted({tuple(entry[11]) for entry in data["entries"]}) == [(), (1,)]
    assert any(key == "phase" and "step 3" in text for key, text in data["facts"])
    assert data["when"] == f"at the start, {plan.in_phase(1).num_trainable:,} in phase 1"
