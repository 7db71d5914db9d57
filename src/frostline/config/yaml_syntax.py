"""Plain words for the YAML parser's complaints: what it means and how to write it right.

Knows the wording of ruamel.yaml's messages; knows nothing of config keys.
"""

from __future__ import annotations

import re

from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.reader import ReaderError

from frostline.config.origin import Origin
from frostline.errors import Problem

_QUOTE = "put the value in quotes"
# (part of the parser's message, what it means, what to do)
_EXPLANATIONS: tuple[tuple[str, str, str], ...] = (
    (
        "scanning an alias",
        "an unquoted `*` starts a YAML alias",
        'quote a value that starts with `*`: "*_proj"',
    ),
    (
        "scanning an anchor",
        "an unquoted `&` starts a YAML anchor",
        "quote a value that starts with `&`",
    ),
    (
        "unknown escape character",
        "in double quotes a backslash starts an escape, and {found} is not one that YAML knows",
        "use single quotes, where a backslash is just a backslash: 'model\\.layers\\.[0-7]'",
    ),
    (
        "found character '\\t'",
        "a tab cannot indent YAML",
        "indent with spaces",
    ),
    (
        "that cannot start any token",
        "a value cannot start with {found} unless it is quoted",
        _QUOTE,
    ),
    (
        "mapping values are not allowed here",
        "a `:` stands where no key can be",
        "indent keys of the same mapping by the same number of spaces, and quote a value that contains `: `",
    ),
    (
        "sequence entries are not allowed here",
        "a `- ` stands where no list item can be",
        "start the list on the next line, one `- item` a line, or write [a, b]",
    ),
    (
        "quoted scalar",
        "a quote is opened here and never closed",
        "close the quote, or double it inside single quotes: 'it''s'",
    ),
    (
        "parsing a flow sequence",
        "a `[` is opened here and never closed",
        "close the list with `]` and separate its items by commas",
    ),
    (
        "parsing a flow mapping",
        "a `{` is opened here and never closed",
        "close the mapping with `}` and separate its entries by commas",
    ),
    (
        "parsing a block mapping",
        "this line belongs to no mapping: its indentation fits none",
        "indent keys of the same mapping by the same number of spaces",
    ),
    (
        "parsing a block collection",
        "a list and a mapping are mixed at one indentation",
        "indent the list below its key, or make every entry of this block a `- item`",
    ),
    (
        "expected '<document start>'",
        "something follows the end of the mapping",
        "remove it, or check for one closing bracket too many",
    ),
    (
        "could not find expected ':'",
        "this line looks like a key without its `:`",
        "write `key: value`",
    ),
)
# The parser marks the end of the file for these; the opening quote or bracket is what the reader needs.
_BLAME_THE_OPENING = ("quoted scalar", "parsing a flow")

_CLOSING = ("'", '"', "]", "}")  # what a value on the shown line may be closed with


def explain(error: YAMLError, text: str, file: str) -> Problem:
    """The four-part problem for a parser error in `text` of `file`."""
    if isinstance(error, ReaderError):
        position = int(error.position)
        line = text.count("\n", 0, position) + 1
        return Problem(
            f"invalid character U+{ord(text[position]):04X}: YAML allows no control characters",
            str(Origin("", file, line)),
            fix="delete the character (it may be invisible in your editor)",
            possible="printable characters, line breaks and tabs",
        )
    if not isinstance(error, MarkedYAMLError):
        return Problem(f"not valid YAML: {error}", file, fix="correct the file", possible="YAML 1.2")
    said = " ".join(part for part in (error.context, error.problem) if part)
    mark = error.problem_mark or error.context_mark
    if error.context_mark is not None and any(part in said for part in _BLAME_THE_OPENING):
        mark = error.context_mark
    line = None if mark is None else mark.line + 1
    lines = text.splitlines()
    shown = "" if line is None or line > len(lines) else f": {_shorten(lines[line - 1].strip())}"
    # a stray quote char after a closed value is reported as a broken flow or block: the shown line makes it plain
    for part, meaning, fix in _EXPLANATIONS:
        if part in said:
            found = re.search(r"character ('.*?'|\".*?\")", said)
            if part == "parsing a block mapping" and any(mark in shown for mark in _CLOSING):
                meaning += ", or something follows a closed value"
                fix += ", and nothing after a closing quote or bracket"
            meaning = meaning.replace("{found}", f"`{found[1][1:-1]}`" if found else "it")
            return Problem(f"not valid YAML{shown}", str(Origin("", file, line)), meaning, fix)
    return Problem(
        f"not valid YAML{shown}", str(Origin("", file, line)), f"the parser says: {said}", "correct the line"
    )


def _shorten(line: str, limit: int = 80) -> str:
    return line if len(line) <= limit else line[: limit - 3] + "..."
