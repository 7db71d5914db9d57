"""Turn the English part of the package chatterbot-corpus (BSD) into JSONL for the recipe `causal_lm`.

    pip install --no-deps chatterbot-corpus==1.3.3
    python examples/data/prepare_chat_pairs.py [FILE]

FILE is `chat_pairs.jsonl` beside this script unless given: `examples/smollm2_chat_lora.yaml` reads it there.

Each line is {"messages": [{"role": "user", ...}, {"role": "assistant", ...}, ...]}. Of conversations that begin with
the same prompt only the first is kept: otherwise one prompt would stand in training and in validation.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML


def corpus_folder() -> Path:
    """Folder of the English YAML files inside the installed package, which is not imported."""
    spec = importlib.util.find_spec("chatterbot_corpus")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("chatterbot-corpus is not installed: pip install --no-deps chatterbot-corpus==1.3.3")
    return Path(spec.submodule_search_locations[0]) / "data" / "english"


def conversations(folder: Path) -> Iterator[list[str]]:
    """Every conversation as its turns, in order of file name."""
    yaml = YAML(typ="safe", pure=False)
    for path in sorted(folder.glob("*.yml")):
        document: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"))
        for turns in document["conversations"]:
            yield [str(turn).strip() for turn in turns]


def to_messages(turns: list[str]) -> list[dict[str, str]]:
    """User and assistant in turn; a last turn of the user has no answer to learn and goes."""
    messages = [{"role": "assistant" if number % 2 else "user", "content": turn} for number, turn in enumerate(turns)]
    return messages[: len(messages) // 2 * 2]


def main(output: Path) -> None:
    folder = corpus_folder()
    prompts: set[str] = set()
    num_read = 0
    with output.open("w", encoding="utf-8") as file:
        for turns in conversations(folder):
            num_read += 1
            messages = to_messages(turns)
            if not messages or turns[0] in prompts:
                continue
            prompts.add(turns[0])
            file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
    print(f"{num_read:,} conversations read, {len(prompts):,} with different prompts written to {output}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("chat_pairs.jsonl"))
