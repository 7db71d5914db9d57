"""`package:PKG/sub/folder`: files and folders inside an installed Python package, found without importing it.

Knows nothing of what is in them: data sources and models are both found here.
"""

from __future__ import annotations

import difflib
import importlib.util
from importlib.metadata import packages_distributions
from pathlib import Path

from frostline.errors import DataError, ModelError

PREFIX = "package:"


def find_in_package(text: str, where: str, error: type[DataError] | type[ModelError]) -> tuple[str, Path]:
    """`package:PKG/sub/folder` -> (PKG, path). A namespace package is looked through in all of its folders.

    Args:
        text: with the prefix.
        where: place of the text in the config, for messages.
        error: what is raised.

    Raises:
        error: PKG is no name or not installed, has no such file or folder, or the path leaves it.
    """
    package, _, inside = text.removeprefix(PREFIX).partition("/")
    if not package.isidentifier():
        raise error(
            f"{text!r} names no Python package",
            where=where,
            possible="package:PKG/sub/folder, PKG being the name to import",
            fix="write the import name of an installed top-level package, then the path inside it",
        )
    spec = importlib.util.find_spec(package)  # a top-level name: finds, does not import
    if spec is None or not spec.submodule_search_locations:
        raise error(
            f"the Python package {package!r} is not installed",
            where=where,
            possible=_near_packages(package),
            fix="correct the name, or install the distribution that brings it (often: pip install "
            f"{package.replace('_', '-')})",
        )
    if ".." in inside.split("/"):
        raise error(
            f"{text!r} leaves the package",
            where=where,
            possible="a path inside the package",
            fix="remove `..`, or name the file or folder by its own path",
        )
    roots = [Path(location) for location in spec.submodule_search_locations]
    for root in roots:
        if (root / inside).exists():
            return package, root / inside
    raise error(
        f"the Python package {package!r} has no {inside!r}",
        where=where,
        possible=_near_entries(roots[0] / inside),
        fix=f"correct the path inside {roots[0]}",
    )


def _near_packages(name: str) -> str:
    near = difflib.get_close_matches(name, sorted(packages_distributions()), n=3)
    return f"nearest installed: {', '.join(near)}" if near else "the import name of an installed package"


def _near_entries(path: Path) -> str:
    parent, wanted = path.parent, path.name
    while not parent.is_dir():
        parent, wanted = parent.parent, parent.name
    names = sorted(entry.name for entry in parent.iterdir() if not entry.name.startswith((".", "__")))
    near = difflib.get_close_matches(wanted, names, n=3) or names[:5]
    return f"in {parent}: {', '.join(near) or 'nothing'}"
