"""ARCHITECTURE.md names only paths that exist, and leaves no package out."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


PATH = re.compile(r"[\w.-]+(/[\w.-]+)*/?")
ENDING = re.compile(r"\.(py|md|toml|txt|yml|yaml)$")


def named_paths() -> list[str]:
    """What stands in backticks and looks like a path of the repository: it holds a slash or a known ending."""
    quoted = re.findall(r"`([^`\s]+)`", TEXT)
    return [text for text in quoted if PATH.fullmatch(text) and ("/" in text or ENDING.search(text))]


def test_every_named_path_exists() -> None:
    paths = named_paths()
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_package_and_module_is_named() -> None:
    source = ROOT / "src" / "frostline"
    found = {f"src/frostline/{path.parent.name}/" for path in source.glob("*/__init__.py")}
    found |= {f"src/frostline/{path.name}" for path in source.glob("*.py") if path.name != "__init__.py"}
    assert len(found) > 5
    assert sorted(found - set(named_paths())) == []


def test_local_links_of_the_root_pages_exist() -> None:
    dead: list[str] = []
    for page in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text(encoding="utf-8"))
        dead += [f"{page}: {link}" for link in links if not (ROOT / link).exists()]
    assert dead == []
