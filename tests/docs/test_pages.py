"""Runs what README.md and the guides show: every fenced block, page by page, and counts what it found.

A page is run from top to bottom in one empty folder:

- a `yaml` (or other text) block whose first line is `# file: NAME` is written to NAME, and so is a block below
  `<!-- test: file=NAME -->`, for formats without comments;
- `python` blocks are executed in one namespace per page; a `text` block after one shows what it printed;
- of `console` and `bash` blocks, each `$ frostline ...` line is run; `$ make TARGET` must be a target of the Makefile.

An HTML comment right above a block changes what is expected of it: `<!-- test: exit=2 -->` the exit status,
`<!-- test: output -->` that exactly the shown lines are printed (`...` stands for anything), `<!-- test: lines -->`
that every shown line is printed, in that order and perhaps among others, whatever its numbers are (they depend on the
machine and on how much a test shortens training), `<!-- test: skip=REASON -->` that it is only counted.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from frostline.config import recipe_names

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Expected:
    """What a page must hold: how many blocks of each language, and the commands run from it.

    `train_overrides` shorten `frostline train` (which the page shows at full length).
    """

    blocks: dict[str, int]
    num_commands: int
    train_overrides: tuple[str, ...] = ()


# Few examples of the BBC news, short enough for a test; what a page shows is the whole run.
BBC_SHORT = ("data.max_examples=32", "data.validation=32", "training.batch_size=8", "data.max_length=32")

# Every page that is run. A guide that is missing here, or whose numbers moved, fails.
PAGES: dict[str, Expected] = {
    "README.md": Expected({"console": 6, "yaml": 3, "python": 2, "text": 1}, 8, BBC_SHORT),
    "docs/guides/classification.md": Expected({"yaml": 2, "console": 5, "python": 1, "text": 1}, 5, BBC_SHORT),
    "docs/guides/chat.md": Expected({"json": 2, "yaml": 1, "console": 3, "python": 2}, 3, ("training.max_steps=2",)),
    "docs/guides/reading-a-plan.md": Expected({"yaml": 3, "console": 9, "python": 1, "text": 1}, 9),
    "docs/guides/selecting.md": Expected({"python": 3, "yaml": 2, "text": 3}, 0),
    "docs/guides/phases.md": Expected({"yaml": 1, "console": 2, "python": 1, "text": 1}, 2, BBC_SHORT),
    "docs/guides/rows.md": Expected({"yaml": 1, "console": 1, "python": 3, "text": 3}, 1),
    "docs/guides/runs.md": Expected({"yaml": 1, "console": 10, "json": 1, "python": 2}, 10, BBC_SHORT),
    "docs/guides/wrappers.md": Expected({"python": 8, "text": 4}, 0),
    "docs/guides/proof.md": Expected({"python": 3, "text": 2}, 0),
    "docs/guides/library.md": Expected({"python": 10, "text": 5}, 0),
    "docs/guides/coming-from.md": Expected({"yaml": 2, "console": 1, "python": 2}, 1),
    "docs/guides/extending.md": Expected({"python": 7, "text": 3, "toml": 1, "yaml": 1, "json": 1, "console": 1}, 1),
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
        if unknown := directives.keys() - {"exit", "file", "lines", "output", "skip"}:
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


def run_frostline(arguments: list[str], folder: Path) -> tuple[int, str]:
    """Exit status and everything printed, in the order of a terminal.

    In this process: thirty new ones would import torch thirty times. `tests/cli` starts processes.
    """
    from frostline.cli.app import app

    printed = io.StringIO()
    variables = {"COLUMNS": "140", "NO_COLOR": "1"}
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder):
        for name, value in variables.items():
            patch.setenv(name, value)
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                app(args=arguments, prog_name="frostline")
            except SystemExit as end:
                return int(end.code or 0), printed.getvalue()
    return 0, printed.getvalue()


def without_numbers(text: str) -> list[str]:
    """The lines of `text` with `#` for each number, single blanks and no empty lines."""
    lines = [" ".join(re.sub(r"\d[\d,.:]*(e[+-]?\d+)?", "#", line).split()) for line in text.splitlines()]
    return [line for line in lines if line]


def first_missing_line(shown: str, printed: str) -> str | None:
    """The first shown line that does not come in its turn in what was printed; `...` is no line."""
    rest = iter(without_numbers(printed))
    for line in without_numbers(shown):
        if line != "..." and line not in rest:
            return line
    return None


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
    status, printed = run_frostline(arguments, folder)
    assert status == int(block.directives.get("exit", "0")), f"{place}: exit {status}\n{printed}"
    assert "Traceback" not in printed, f"{place}\n{printed}"
    check_output(place, block, command.output, printed)
    return True


def check_output(place: str, block: Block, shown: str, printed: str) -> None:
    """Compares what a page shows with what was printed, as the directive of its block says."""
    if "output" in block.directives:
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        same = doctest.OutputChecker().check_output(shown + "\n", printed, flags)
        assert same, f"{place} printed\n{printed}\ninstead of\n{shown}"
    if "lines" in block.directives:
        missing = first_missing_line(shown, printed)
        assert missing is None, f"{place} printed\n{printed}\nwhich lacks in its turn the line\n{missing}"


def run_page(page: str, markdown: str, folder: Path, expected: Expected) -> int:
    """Runs a page in `folder`; returns the number of commands run."""
    namespace: dict[str, object] = {"__name__": "__page__"}
    num_commands = 0
    printed = ""
    for block in fenced_blocks(markdown):
        if "skip" in block.directives:
            assert block.directives["skip"], f"{page}, block at line {block.line}: a skip needs a reason"
            continue
        named = re.match(r"# file: (\S+)\n", block.text)
        if named or "file" in block.directives:
            target = folder / (named[1] if named else block.directives["file"])
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            # Blank lines in front: a traceback shows the line of the page.
            code = compile("\n" * block.line + block.text, str(ROOT / page), "exec", dont_inherit=True)
            with contextlib.redirect_stdout(io.StringIO()) as stream:
                exec(code, namespace)
            printed = stream.getvalue()
        elif block.language == "text":
            check_output(f"{page}, the python block before line {block.line}", block, block.text, printed)
        elif block.language in {"console", "bash"}:
            for command in console_commands(block.text):
                num_commands += check_command(page, block, command, folder, expected)
    return num_commands


@pytest.fixture
def restored_registries() -> Iterator[None]:
    """Selector kinds, methods and recipes that a page defines are forgotten afterwards."""
    yield
    for module, table in (
        ("frostline.selectors.selector", "_KINDS"),
        ("frostline.adapters.base", "_METHODS"),
        ("frostline.recipes.registry", "_registered"),
    ):
        if module in sys.modules:
            registered = getattr(sys.modules[module], table)
            for name in [name for name, value in registered.items() if value.__module__ == "__page__"]:
                del registered[name]
                if name in recipe_names._registered:
                    recipe_names._registered.remove(name)


def test_every_guide_is_in_the_table() -> None:
    guides = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "guides").glob("*.md")}
    assert set(PAGES) == guides | {"README.md"}


@pytest.mark.parametrize("page", PAGES)
def test_page_holds_the_blocks_of_the_table(page: str) -> None:
    found = Counter(block.language for block in fenced_blocks((ROOT / page).read_text(encoding="utf-8")))
    assert dict(found) == PAGES[page].blocks


# peft reads the old name, which transformers 5.24 warns about; goes when peft reads `is_activation_checkpointing`.
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.usefixtures("restored_registries")
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

    def test_shown_lines_are_compared_in_order_without_their_numbers(self) -> None:
        printed = "step 1/4  loss 1.5  0:05 left\nstep 2/4  loss 1.4  0:03 left\n\n4 steps in 5 s\nsaved  a (9 bytes)\n"
        assert first_missing_line("step 1/25  loss 1.6e-03 2:59 left\n...\nsaved   a (306,140 bytes)", printed) is None
        assert first_missing_line("saved a (1 bytes)\n4 steps in 5 s", printed) == "# steps in # s"
        assert first_missing_line("saved b (9 bytes)", printed) == "saved b (# bytes)"

    def test_what_python_prints_is_compared_with_the_text_block_below(self, tmp_path: Path) -> None:
        page = "```python\nprint('a')\nprint(1)\n```\n\n<!-- test: {} -->\n```text\n{}\n```\n"
        run_page("page.md", page.format("output", "a\n1"), tmp_path, Expected({}, 0))
        run_page("page.md", page.format("lines", "2"), tmp_path, Expected({}, 0))
        for directive, shown in (("output", "a\n2"), ("lines", "b")):
            with pytest.raises(AssertionError, match="python block before"):
                run_page("page.md", page.format(directive, shown), tmp_path, Expected({}, 0))

    def test_a_file_without_comments_is_named_above_its_block(self, tmp_path: Path) -> None:
        run_page("page.md", '<!-- test: file=a.jsonl -->\n```json\n{"x": 1}\n```\n', tmp_path, Expected({}, 0))
        assert (tmp_path / "a.jsonl").read_text() == '{"x": 1}\n'

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
