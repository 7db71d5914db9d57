"""The example script that makes chat pairs, on the real corpus."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from frostline.data import deduplicate, load_source, to_messages


@pytest.mark.skipif(importlib.util.find_spec("chatterbot_corpus") is None, reason="chatterbot-corpus is not there")
def test_chat_pairs(tmp_path: Path, repository: Path) -> None:
    script, output = repository / "examples" / "data" / "prepare_chat_pairs.py", tmp_path / "pairs.jsonl"
    done = subprocess.run([sys.executable, str(script), str(output)], capture_output=True, text=True, check=True)
    assert "2,026 conversations read, 749 with different prompts" in done.stdout
    rows = load_source(str(output))
    conversations = to_messages(rows, "messages")
    assert len(conversations) == 749
    assert all(turns[-1]["role"] == "assistant" for turns in conversations)
    assert deduplicate(rows, ["messages"])[1] == 0
