"""Tiny models with a word tokenizer, data with unequal lengths, and runs through the real recipes.

Everything is made in code: no file of the repository, no network. One thread, so that a busy machine changes nothing.
"""

from __future__ import annotations

import io
import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from frostline.recipes.config_checks import read_config
from frostline.recipes.finished import FinishedRun
from frostline.recipes.runs import PlannedRun, plan_run, train_run
from frostline.training import TrainResult

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>", "[CLS]", "[SEP]", "\n"]
WORDS = ["system", "user", "assistant", "hello", "how", "you", "are", "fine", "thanks", "bye", "good", "bad", "film"]
WORDS += [f"w{number}" for number in range(20)]
CHATML = (
    "{% for m in messages %}{{ '<s>' + m['role'] + '\n' + m['content'] + '</s>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)
WEIGHT_FILES = ("adapter/adapter_model.safetensors", "trained/model.safetensors")

Rows = list[dict[str, Any]]
Launch = Callable[..., "Launched"]
Write = Callable[..., str]


@dataclass(frozen=True)
class Launched:
    """A run that has ended."""

    folder: Path
    planned: PlannedRun
    result: TrainResult

    @property
    def checkpoint(self) -> Path:
        """The newest checkpoint."""
        return (self.folder / "checkpoints" / "latest").resolve()

    @property
    def trained_bytes(self) -> dict[str, bytes]:
        """The files with the final trained part."""
        found = {
            name: (self.checkpoint / name).read_bytes() for name in WEIGHT_FILES if (self.checkpoint / name).exists()
        }
        assert found
        return found

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The final trained part."""
        found: dict[str, Tensor] = {}
        for name in self.trained_bytes:
            found |= load_file(self.checkpoint / name)
        return found

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """`metrics.jsonl`."""
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    @property
    def losses(self) -> list[float]:
        """Training loss of every step."""
        return [record["loss"] for record in self.metrics if "loss" in record]

    def open(self, which: str = "latest") -> FinishedRun:
        """As `evaluate` and `export` open it."""
        return FinishedRun.open(self.folder, which)

    def model(self, which: str = "latest") -> torch.nn.Module:
        """The base with the trained part of a checkpoint, in evaluation mode."""
        finished = self.open(which)
        return finished.load_model(finished.assemble(with_data=False), torch.device("cpu"))[0]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Plans and trains a config (file or mapping) with overrides, in `tmp_path / name`."""

    def start(
        config: Path | Mapping[str, Any],
        *overrides: str,
        name: str = "run",
        mode: Any = "new",
        allow_plan_change: bool = False,
    ) -> Launched:
        folder = tmp_path / name
        planned = plan_run(read_config(config, overrides))
        console = Console(file=io.StringIO())
        result = train_run(planned, folder=folder, mode=mode, allow_plan_change=allow_plan_change, console=console)
        return Launched(folder, planned, result)

    return start


@pytest.fixture
def in_peft() -> Callable[[torch.nn.Module, Path], Any]:
    """Loads an adapter folder into a bare base with Hugging Face peft, in evaluation mode."""

    def load(base: torch.nn.Module, folder: Path) -> Any:
        from peft import PeftModel

        with warnings.catch_warnings():
            # peft 0.21 asks transformers 5.24 for an attribute under its old name.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
            return PeftModel.from_pretrained(base, folder).eval()

    return load


@pytest.fixture
def resumes_bit_for_bit(launch: Launch) -> Callable[..., Launched]:
    """Takes a run back to an earlier checkpoint, as a kill right after it leaves it, and resumes: the end is equal."""

    def check(run: Launched, config: Path | Mapping[str, Any], *overrides: str, step: int) -> Launched:
        again = run.folder.with_name(f"{run.folder.name}-resumed")
        cut_back(run.folder, again, step)
        resumed = launch(config, *overrides, name=again.name, mode="resume")
        assert resumed.trained_bytes == run.trained_bytes
        timeless = [
            [{key: value for key, value in record.items() if not key.endswith("per_second")} for record in one.metrics]
            for one in (run, resumed)
        ]
        assert timeless[0] == timeless[1]
        assert resumed.result.steps == run.result.steps
        return resumed

    return check


def cut_back(folder: Path, to: Path, step: int) -> None:
    """Copies a run folder without its checkpoints after `step`."""
    shutil.copytree(folder, to, symlinks=True)
    kept = 0
    for path in (to / "checkpoints").iterdir():
        if path.is_symlink():
            path.unlink()
        elif int(path.name.removeprefix("step-")) > step:
            shutil.rmtree(path)
        else:
            kept += 1
    assert kept


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes rows as JSONL and returns the path."""

    def write_rows(rows: Rows, name: str = "train") -> str:
        file = tmp_path / f"{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(file)

    return write_rows


def sentence(number: int, length: int | None = None) -> str:
    """A text of 1 to 12 words; no two numbers below 400 give the same text."""
    count = length or 1 + number * 5 % 12
    return " ".join(f"w{(number * 7 + position * (1 + number // 20)) % 20}" for position in range(count + number // 20))


def classification_rows(num: int = 24) -> Rows:
    """Two labels, unbalanced: the label is in the first word."""
    return [
        {"text": f"{'good' if number % 3 else 'bad'} {sentence(number)}", "label": "pos" if number % 3 else "neg"}
        for number in range(num)
    ]


def chat_rows(num: int = 16) -> Rows:
    """Conversations of one or two turns with unequal lengths."""
    rows: Rows = []
    for number in range(num):
        turns = [("user", f"hello {sentence(number)}"), ("assistant", f"fine {sentence(number + 3)}")]
        if number % 3 == 0:
            turns += [("user", "bye"), ("assistant", f"thanks {sentence(number + 5, 2)}")]
        rows.append({"messages": [{"role": role, "content": content} for role, content in turns]})
    return rows


@pytest.fixture
def classify(bert_folder: Path, write: Write) -> Callable[..., dict[str, Any]]:
    """A config of `sequence_classification` on the tiny BERT: LoRA, four steps of 4, checkpoints after 2 and 4."""

    def make(rows: Rows | None = None, **sections: Any) -> dict[str, Any]:
        train = write(classification_rows() if rows is None else rows)
        config: dict[str, Any] = {
            "recipe": "sequence_classification",
            "model": str(bert_folder),
            "peft": {"rank": 2, "target_modules": ["query", "value"]},
            "data": {"train": train, "validation": 6},
            "training": {"max_steps": 4, "batch_size": 4},
            "optimizer": {"lr": 1e-2},
            "checkpoint": {"every": 2, "keep": 9},
            "evaluation": {"every": 2},
            "device": "cpu",
        }
        return merged(config, sections)

    return make


@pytest.fixture
def converse(llama_folder: Path, write: Write) -> Callable[..., dict[str, Any]]:
    """The same for `causal_lm` on the tiny Llama."""

    def make(rows: Rows | None = None, **sections: Any) -> dict[str, Any]:
        train = write(chat_rows() if rows is None else rows)
        config: dict[str, Any] = {
            "recipe": "causal_lm",
            "model": str(llama_folder),
            "peft": {"rank": 2, "target_modules": ["*_proj"]},
            "data": {"train": train, "validation": 4},
            "training": {"max_steps": 4, "batch_size": 4},
            "optimizer": {"lr": 1e-2},
            "checkpoint": {"every": 2, "keep": 9},
            "evaluation": {"every": 2},
            "device": "cpu",
        }
        return merged(config, sections)

    return make


def merged(config: dict[str, Any], sections: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with `sections` laid over it, one level deep; None removes a section."""
    result = dict(config)
    for name, section in sections.items():
        if section is None:
            result.pop(name, None)
        elif isinstance(section, Mapping) and isinstance(result.get(name), Mapping):
            result[name] = {**result[name], **section}
        else:
            result[name] = section
    return result


def make_tokenizer(chat: bool) -> PreTrainedTokenizerFast:
    """Words split at spaces; with [CLS] and [SEP], or with a chat template."""
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *WORDS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.Split("\n", "isolated")]
    )
    if not chat:
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
        )
    names = {"pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>", "cls": "[CLS]", "sep": "[SEP]"}
    inputs = ["input_ids", "attention_mask"] if chat else ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=CHATML if chat else None,
        model_input_names=inputs,
        **{f"{name}_token": token for name, token in names.items()},
    )


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT body without a head: 2 layers x 16, window 48, with dropout, so that a resume needs the generators."""
    return make_bert(tmp_path_factory.mktemp("models") / "tiny-bert")


@pytest.fixture(scope="session")
def still_bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without dropout, for losses that are known beforehand."""
    folder = tmp_path_factory.mktemp("models") / "still-bert"
    return make_bert(folder, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def make_bert(folder: Path, **changes: Any) -> Path:
    settings = {
        "vocab_size": len(SPECIAL) + len(WORDS),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 48,
        "initializer_range": 0.3,  # features that differ, so that there is something to learn
    } | changes
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertModel(BertConfig(**settings)).save_pretrained(folder)
    make_tokenizer(chat=False).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with tied embeddings and a chat template: 2 layers x 16, window 64."""
    return make_llama(tmp_path_factory.mktemp("models") / "tiny-llama")


def make_llama(folder: Path, **changes: Any) -> Path:
    settings = {
        "vocab_size": len(SPECIAL) + len(WORDS),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
    } | changes
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(LlamaConfig(**settings)).save_pretrained(folder)
    make_tokenizer(chat=True).save_pretrained(folder)
    return folder
