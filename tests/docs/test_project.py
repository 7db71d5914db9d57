"""The project's own files agree with each other: exact versions, ranges, extras and what the Makefile runs."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pins(name: str) -> dict[str, str]:
    lines = [line.split("#")[0].strip() for line in (ROOT / name).read_text(encoding="utf-8").splitlines()]
    found = [re.fullmatch(r"([\w.-]+)==(\S+)", line) for line in lines if line and not line.startswith("-r")]
    assert all(found), f"{name}: every line is NAME==VERSION"
    return {canonicalize_name(match[1]): match[2] for match in found if match}


def test_constraints_are_exact_portable_and_inside_the_ranges() -> None:
    constraints = pins("constraints.txt")
    assert not [version for version in constraints.values() if "+" in version], "no local builds such as +cpu"
    extras = PROJECT["optional-dependencies"]
    tested = PROJECT["dependencies"] + [
        line for extra in ("gguf", "peft", "tensorboard", "test", "docs") for line in extras[extra]
    ]
    requirements = [Requirement(line) for line in tested if not line.startswith("frostline")]
    assert len(requirements) > 15
    for requirement in requirements:
        name = canonicalize_name(requirement.name)
        assert name in constraints, f"{name} has no exact version"
        assert requirement.specifier.contains(constraints[name]), (
            f"{name}=={constraints[name]} is outside {requirement}"
        )


def test_the_version_is_written_the_same_twice() -> None:
    source = (ROOT / "src/frostline/__init__.py").read_text(encoding="utf-8")
    assert f'__version__ = "{PROJECT["version"]}"' in source


def test_assets_are_exact_and_the_tests_have_those_of_the_demo() -> None:
    assert len(pins("requirements/demo-assets.txt")) == 2
    assert len(pins("requirements/test-assets.txt")) == 3
    assert "-r demo-assets.txt" in (ROOT / "requirements/test-assets.txt").read_text(encoding="utf-8")


def test_scripts_that_the_makefile_runs_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    scripts = re.findall(r"\S+/[\w.]+\.py", makefile)
    assert len(scripts) == 3
    assert [script for script in scripts if not (ROOT / script).exists()] == []


def test_continuous_integration_runs_make_test() -> None:
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    assert script.read_text(encoding="utf-8").splitlines()[-1] == "exec make --no-print-directory test"
