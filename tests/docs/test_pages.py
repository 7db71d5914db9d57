"""Runs what README.md and the guides show: every fenced block, page by page, and counts what it found.

A page is run from top to bottom in one empty folder:

- a `yaml` (or other text) block whose first line is `# file: NAME` is written to NAME;
- `python` blocks are executed in one namespace per page;
- of `console` and `bash` blocks, each `$ frostline ...` line is run; `$ make TARGET` must be a target of the Makefile.

An HTML comment right above a block changes what is expected of it: `<!-- test: exit=2 -->` the exit status,
`<!-- test: output -->` that the printed lines appear as shown (`...` stands for anything),
`<!-- test: skip=REASON -->` that it is only counted.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Expected:
    """What a page must hold: how many blocks of each language, and the commands run from it.

    `train_overrides` shorten `frostline train` (which the page shows at full length).
    """

    blocks: dict[str, int]
    num_commands: int
    train_overrides: tuple[str, ...] = ()


# Every page that is run. A guide that is missing here, or whose numbers moved, fails.
PAGES: dict[str, Expected] = {
    "README.md": Expected(
        blocks={"console": 6, "yaml": 2, "python": 2},
        num_commands=6,
        train_overrides=("data.max_examples=64", "data.validation=32"),
    ),
}

# Commands that a page may show and that are not run from it.
SHOWN_ONLY = {"git", "pip", "python", "cd", "tensorboard"}


@dataclass(frozen=True)
class Block:
    """One fenced block: `line` is that of its opening fence, counted from 1."""

    language: str
    text: str
    line: int
    directives: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """One `$` line of a console block and the output that is shown below it."""

    arguments: tuple[str, ...]
    output: str


_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<language>[\w+-]*)[^`]*$")
_DIRECTIVE = re.compile(r"^\s*<!-- test: (?P<body>.+?) -->\s*$")


def fenced_blocks(markdown: str) -> list[Block]:
    """All fenced code blocks of a page, in order."""
    blocks: list[Block] = []
    lines = markdown.splitlines()
    position = 0
    while position < len(lines):
        opening = _FENCE.match(lines[position])
        if opening is None:
            position += 1
            continue
        indent, fence = len(opening["indent"]), opening["fence"]
        end = position + 1
        while end < len(lines) and lines[end].strip() != fence:
            end += 1
        if end == len(lines):
            raise ValueError(f"line {position + 1}: the block is never closed")
        text = "".join(line[min(indent, len(line) - len(line.lstrip())) :] + "\n" for line in lines[position + 1 : end])
        directives: dict[str, str] = {}
        if position and (above := _DIRECTIVE.match(lines[position - 1])):
            for part in above["body"].split("; "):
                key, _, value = part.partition("=")
                directives[key] = value
        if unknown := directives.keys() - {"exit", "output", "skip"}:
            raise ValueError(f"line {position}: unknown directive {sorted(unknown)}")
        blocks.append(Block(opening["language"], text, position + 1, directives))
        position = end + 1
    return blocks


def console_commands(text: str) -> list[Command]:
    """The `$` lines of a console block; a trailing backslash continues a command."""
    commands: list[tuple[str, list[str]]] = []
    continues = False
    for line in text.splitlines():
        if continues:
            commands[-1] = (commands[-1][0] + line.strip().removesuffix("\\"), commands[-1][1])
            continues = line.endswith("\\")
        elif line.startswith("$ "):
            commands.append((line[2:].removesuffix("\\"), []))
            continues = line.endswith("\\")
        elif not commands:
            raise ValueError(f"a console block begins with output: {line!r}")
        else:
            commands[-1][1].append(line)
    return [Command(tuple(shlex.split(command, comments=True)), "\n".join(output)) for command, output in commands]


def run_frostline(arguments: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, as a user runs it."""
    program = "import sys; from frostline.cli import main; sys.exit(main())"
    environment = os.environ | {"COLUMNS": "140", "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def check_command(page: str, block: Block, command: Command, folder: Path, expected: Expected) -> bool:
    """Runs or checks one command; True when it was run."""
    place = f"{page}, block at line {block.line}: {shlex.join(command.arguments)}"
    name, *arguments = command.arguments
    if name == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        assert set(arguments) <= set(targets), f"{place}: no such target"
        return False
    if name in SHOWN_ONLY:
        return False
    assert name == "frostline", f"{place}: pages show frostline, make and {sorted(SHOWN_ONLY)} only"
    if arguments[:1] == ["train"]:
        arguments += expected.train_overrides
    done = run_frostline(tuple(arguments), folder)
    printed = done.stdout + done.stderr
    assert done.returncode == int(block.directives.get("exit", "0")), f"{place}: exit {done.returncode}\n{printed}"
    assert "Traceback" not in printed, f"{place}\n{printed}"
    if "output" in block.directives:
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        same = doctest.OutputChecker().check_output(command.output + "\n", printed, flags)
        assert same, f"{place} printed\n{printed}\ninstead of\n{command.output}"
    return True


def run_page(page: str, markdown: str, folder: Path, expected: Expected) -> int:
    """Runs a page in `folder`; returns the number of commands run."""
    namespace: dict[str, object] = {"__name__": "__page__"}
    num_commands = 0
    for block in fenced_blocks(markdown):
        if "skip" in block.directives:
            assert block.directives["skip"], f"{page}, block at line {block.line}: a skip needs a reason"
            continue
        named = re.match(r"# file: (\S+)\n", block.text)
        if named:
            target = folder / named[1]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            # Blank lines in front: a traceback shows the line of the page.
            code = compile("\n" * block.line + block.text, str(ROOT / page), "exec")
            exec(code, namespace)
        elif block.language in {"console", "bash"}:
            for command in console_commands(block.text):
                num_commands += check_command(page, block, command, folder, expected)
    return num_commands


def test_every_guide_is_in_the_table() -> None:
    guides = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "guides").glob("*.md")}
    assert set(PAGES) == guides | {"README.md"}


@pytest.mark.parametrize("page", PAGES)
def test_page_holds_the_blocks_of_the_table(page: str) -> None:
    found = Counter(block.language for block in fenced_blocks((ROOT / page).read_text(encoding="utf-8")))
    assert dict(found) == PAGES[page].blocks


@pytest.mark.parametrize("page", PAGES)
def test_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    num_commands = run_page(page, (ROOT / page).read_text(encoding="utf-8"), tmp_path, PAGES[page])
    assert num_commands == PAGES[page].num_commands


class TestHarness:
    """The harness itself: it finds blocks, and what is wrong on a page does fail."""

    PAGE = """- item

  ```yaml
  # file: a/b.yaml
  x: 1
  ```

```python
from pathlib import Path
```

```python
assert Path("a/b.yaml").read_text() == "# file: a/b.yaml\\nx: 1\\n"
```
"""

    def test_blocks_are_found_with_language_line_and_directive(self) -> None:
        blocks = fenced_blocks("<!-- test: exit=2; output -->\n```console\n$ frostline\n```\n\n~~~\n```\n~~~\n")
        assert [(block.language, block.line) for block in blocks] == [("console", 2), ("", 6)]
        assert blocks[0].directives == {"exit": "2", "output": ""}

    def test_commands_are_split_from_their_output(self) -> None:
        commands = console_commands("$ frostline plan a.yaml \\\n    'x=[1]'   # why\nfirst\n\nsecond\n$ make demo\n")
        assert commands[0] == Command(("frostline", "plan", "a.yaml", "x=[1]"), "first\n\nsecond")
        assert commands[1].arguments == ("make", "demo")

    def test_python_blocks_share_a_namespace_and_see_the_files(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        run_page("page.md", self.PAGE, tmp_path, Expected({}, 0))
        with pytest.raises(AssertionError):
            run_page("page.md", self.PAGE.replace("x: 1\n  ", "x: 2\n  "), tmp_path, Expected({}, 0))

    @pytest.mark.parametrize(
        ("block", "message"),
        [
            ("```console\n$ make nothing\n```\n", "no such target"),
            ("```bash\n$ rm -r x\n```\n", "pages show frostline"),
            ("<!-- test: skip= -->\n```console\n$ rm\n```\n", "needs a reason"),
        ],
    )
    def test_what_is_not_run_is_not_passed_over_in_silence(self, block: str, message: str, tmp_path: Path) -> None:
        with pytest.raises(AssertionError, match=message):
            run_page("page.md", block, tmp_path, Expected({}, 0))

    @pytest.mark.parametrize(
        ("block", "message"),
        [("```yaml\nx: 1\n", "never closed"), ("<!-- test: exti=2 -->\n```yaml\n```\n", "unknown directive")],
    )
    def test_malformed_pages_are_refused(self, block: str, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            fenced_blocks(block)
