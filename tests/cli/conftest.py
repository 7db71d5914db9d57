"""The command line in this process: a tiny BERT, tiny data, finished runs to copy, and what a refusal looks like."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from frostline.cli import main
from frostline.config.yaml_file import dump_yaml

WORDS = ("good", "bad", "film", "great", "awful", "fine", "a", "b", "c", "d", "e", "f", "g", "h")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """What standard error says from the message on."""
        return self.err[self.err.index("error: ") :]

    def part(self, label: str) -> str:
        """The text of one of the three labelled parts of a message about one problem."""
        match = re.search(rf"^  {label}: +(.*(?:\n {{12}}.*)*)", self.error, re.MULTILINE)
        assert match, f"no {label!r} in:\n{self.err}"
        return match[1]


Tree = dict[str, tuple[str, bytes]]


def snapshot(folder: Path) -> Tree:
    """Every entry below `folder`: kind, and content or target."""
    found: Tree = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = ("link", os.readlink(path).encode())
        elif path.is_dir():
            found[name] = ("folder", b"")
        elif path.name != ".lock":  # says which process held it last
            found[name] = ("file", path.read_bytes())
    return found


def run_cli(*args: str | Path, stdin: bytes = b"") -> Outcome:
    """`frostline ARGS` in this process, through the entry point of the console script."""
    out, err = io.StringIO(), io.StringIO()
    before = sys.argv, sys.stdin
    sys.argv, sys.stdin = ["frostline", *map(str, args)], io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
                status: Any = 0
            except SystemExit as end:
                status = end.code
    finally:
        sys.argv, sys.stdin = before
    return Outcome(0 if status is None else int(status), out.getvalue(), err.getvalue())


class Bench:
    """A folder to work in, which is the current one, with configs for the tiny model and data."""

    run = staticmethod(run_cli)
    require_refusal = staticmethod(lambda *args, **options: require_refusal(*args, **options))
    texts = staticmethod(lambda *args, **options: texts(*args, **options))
    make_bert = staticmethod(lambda *args, **options: make_bert(*args, **options))
    snapshot = staticmethod(snapshot)

    def __init__(self, folder: Path, model: Path, data: Path) -> None:
        self.folder, self.model, self.data = folder, model, data

    def values(self, **sections: Any) -> dict[str, Any]:
        """A config of two steps; a mapping changes keys of its section, None removes a section."""
        values: dict[str, Any] = {
            "recipe": "sequence_classification",
            "model": str(self.model),
            "peft": {"rank": 2, "target_modules": ["query"]},
            "data": {"train": str(self.data), "validation": 4},
            "training": {"max_steps": 2, "batch_size": 8},
            "optimizer": {"lr": 1e-3},
            "device": "cpu",
            "output_dir": "run",
        }
        for name, section in sections.items():
            if isinstance(section, dict) and isinstance(values.get(name), dict):
                values[name] = {key: value for key, value in {**values[name], **section}.items() if value is not ...}
            elif section is None:
                values.pop(name, None)
            else:
                values[name] = section
        return values

    def config(self, name: str = "config.yaml", **sections: Any) -> Path:
        """Write the config file `name`."""
        return self.write(name, dump_yaml(self.values(**sections)))

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def rows(self, name: str, rows: Sequence[dict[str, Any]]) -> Path:
        """Write JSON lines."""
        return self.write(name, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))

    def refused(self, *args: str | Path, stdin: bytes = b"", num_problems: int = 1) -> Outcome:
        """Run a command that must fail as bad input does: status 2, four parts, no traceback, nothing left behind."""
        before = snapshot(self.folder)
        outcome = run_cli(*args, stdin=stdin)
        require_refusal(outcome, num_problems)
        assert snapshot(self.folder) == before, sorted(set(snapshot(self.folder)) ^ set(before))
        return outcome


def require_refusal(outcome: Outcome, num_problems: int = 1) -> None:
    """The message of bad input: what, where, possible, do; exit status 2."""
    assert outcome.status == 2, outcome.err or outcome.out
    assert "Traceback" not in outcome.err + outcome.out
    assert outcome.err.count("error: ") == 1, outcome.err
    assert outcome.error.removeprefix("error: ").split("\n")[0].strip(), outcome.err
    if num_problems > 1:
        assert outcome.error.startswith(f"error: {num_problems} problems\n1. "), outcome.err
    for label in ("where", "possible", "do"):
        found = re.findall(rf"^  {label}: +\S", outcome.error, re.MULTILINE)
        assert len(found) == num_problems, f"{label}: {len(found)} of {num_problems} in\n{outcome.err}"


def texts(count: int, start: int = 0) -> list[dict[str, str]]:
    """Distinct rows of two labels, which the words tell apart."""
    letters = WORDS[6:]
    rows: list[dict[str, str]] = []
    for index in range(start, start + count):
        first, second, third = index % 8, index // 8 % 8, index // 64 % 8
        word, label = (("good", "pos"), ("awful", "neg"))[index % 2]
        rows.append({"text": f"{letters[first]} {word} {letters[second]} film {letters[third]}", "label": label})
    return rows


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT body without a head: 2 layers x 16, window 16, with a word tokenizer."""
    return make_bert(tmp_path_factory.mktemp("assets") / "tiny-bert", seed=0)


def make_bert(folder: Path, seed: int) -> Path:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *WORDS))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = BertConfig(
            vocab_size=len(vocabulary),
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
        )
        BertModel(config).save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def data_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in texts(24)), encoding="utf-8")
    return path


@pytest.fixture
def bench(tmp_path: Path, model_folder: Path, data_file: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    folder = tmp_path / "bench"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "110")
    return Bench(folder, model_folder, data_file)


@pytest.fixture(scope="session")
def trained_runs(
    tmp_path_factory: pytest.TempPathFactory, model_folder: Path, data_file: Path
) -> Callable[[str], Path]:
    """Finished runs by kind, each trained once: `lora` (checkpoints at steps 1 and 2) and `freeze` (no adapter)."""
    folder = tmp_path_factory.mktemp("runs")
    kinds: dict[str, dict[str, Any]] = {
        "lora": {"checkpoint": {"every": 1, "keep": 5}},
        "freeze": {"peft": None, "freeze_config": {"freeze_modules": ["bert.embeddings", {"layers": "0"}]}},
    }

    def run_of(kind: str) -> Path:
        path = folder / kind
        if not path.exists():
            bench = Bench(folder, model_folder, data_file)
            config = bench.config(f"{kind}.yaml", output_dir=str(path), **kinds[kind])
            outcome = run_cli("train", config)
            assert outcome.status == 0, outcome.err
        return path

    return run_of


@pytest.fixture
def finished(bench: Bench, trained_runs: Callable[[str], Path]) -> Path:
    """A copy of the LoRA run, named `run` in the current folder; its config is `config.yaml` beside it."""
    return _copy(bench, trained_runs("lora"))


@pytest.fixture
def finished_freeze(bench: Bench, trained_runs: Callable[[str], Path]) -> Path:
    """The same of the run without an adapter."""
    return _copy(bench, trained_runs("freeze"))


def _copy(bench: Bench, run: Path) -> Path:
    shutil.copytree(run, bench.folder / "run", symlinks=True)
    text = (run / "config.yaml").read_text(encoding="utf-8").replace(str(run), "run")
    bench.write("config.yaml", text)
    bench.write("run/config.yaml", text)
    return Path("run")


@pytest.fixture(autouse=True)
def nondeterministic_again() -> Iterator[None]:
    """Runs choose deterministic kernels and disable what torch warns of, process-wide; give both back."""
    yield
    if "torch" in sys.modules:
        import torch

        torch.use_deterministic_algorithms(False)
