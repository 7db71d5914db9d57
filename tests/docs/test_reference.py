"""The generated pages are as the code is now, and the hand-written tables beside them name everything that there is."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from frostline.config.foreign_keys import FOREIGN_KEYS
from frostline.selectors.grammar import _PLACES
from frostline.selectors.selector import known_kinds

ROOT = Path(__file__).resolve().parents[2]


@cache
def script() -> ModuleType:
    """`scripts/render_reference.py` as a module."""
    spec = importlib.util.spec_from_file_location("render_reference", ROOT / "scripts" / "render_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["docs/reference/config.md", "docs/guides/coming-from.md"])
def test_generated_parts_are_up_to_date(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text == script().rendered(page), "run: python scripts/render_reference.py"


def test_the_reference_names_every_key_of_the_config() -> None:
    from frostline.config.models import Config
    from frostline.config.section import subsection

    text = script().config_reference()
    found: list[str] = []
    pending = [Config]
    while pending:
        for key, field in pending.pop().model_fields.items():
            assert f"| `{key}` |" in text
            found.append(key)
            below = subsection(field)
            if below is not None:
                pending.append(below[0])
    assert len(found) > 70


def test_every_foreign_key_stands_beside_ours_below_each_of_its_tools() -> None:
    sections = dict(
        re.findall(r"^### (.+?)\n(.*?)(?=^### |\Z)", script().foreign_keys() + "\n", re.DOTALL | re.MULTILINE)
    )
    for key, entry in FOREIGN_KEYS.items():
        for tool in entry.tools.split(", "):
            name = "Other tools" if tool == "other tools" else tool.removeprefix("the ")
            assert f"| `{key}` | {f'`{entry.ours}`' if entry.ours else 'none'} |" in sections[name]
    assert {"peft", "axolotl", "nemo-automodel", "LLaMA-Factory", "Hugging Face Trainer"} <= set(sections)


def test_a_page_without_its_marks_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(script().PAGES, "README.md", lambda: "")
    with pytest.raises(ValueError, match="0 generated parts"):
        script().rendered("README.md")


def test_the_table_of_selectors_names_every_kind_and_modifier() -> None:
    text = (ROOT / "docs/reference/config.md").read_text(encoding="utf-8").partition("<!-- generated")[0]
    own = [key for key, kind in known_kinds().items() if kind.__module__.startswith("frostline.")]
    assert len(own) == 7
    assert [key for key in own if key != "name" and f"`{{{key}: " not in text] == []
    options = [(key, option) for key, kind in known_kinds().items() if key in own for option in kind.options]
    assert len(options) >= 2
    assert [f"{key}, {option}" for key, option in options if not re.search(rf"\| `{{{key}: .*, {option}: ", text)] == []
    assert [word for word in ("within", "except", "optional", *_PLACES) if f"| `{word}: " not in text] == []


def test_the_first_page_leads_to_every_guide() -> None:
    text = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    guides = sorted(path.name for path in (ROOT / "docs/guides").glob("*.md"))
    assert len(guides) >= 10
    assert [name for name in guides if f"](guides/{name})" not in text] == []
