"""Saved with indices and loaded by them: adapters, freeze-only runs, checkpoints, resume."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import frostline as fl
from frostline.adapters import rows_of
from frostline.checkpoint import BaseIdentity, RunFolder, load_checkpoint, save_checkpoint
from frostline.errors import AdapterError, CheckpointError

from .conftest import TOKENS, VOCABULARY, Table, loss_of, rows_config, scatter, table, trained

ROWS = "embed_tokens.trained_rows"
EMBED = {"param": "embed_tokens.weight", "rows": [3, 17]}
BOTH = {"unfreeze_modules": [EMBED, {"param": "lm_head.weight", "rows": ":2"}]}


def with_lora(**options: Any) -> tuple[nn.Module, fl.TrainabilityPlan]:
    """Untied, without bias: peft can express it."""
    model, plan = fl.prepare(
        table(tied=False), freeze_config={"unfreeze_modules": [EMBED]}, peft=fl.LoRA(rank=2, target_modules=["mix"])
    )
    scatter(model)
    return model, plan


def rows_only(rows: Any = (3, 17), tied: bool = True) -> tuple[Table, fl.TrainabilityPlan]:
    model, plan = fl.prepare(table(tied=tied), freeze_config=rows_config(rows, head=tied))
    scatter(model)
    return model, plan


def test_an_adapter_with_rows_round_trips(tmp_path: Path) -> None:
    model, plan = with_lora()
    fl.save_adapter(model, tmp_path / "a")
    config = json.loads((tmp_path / "a/adapter_config.json").read_text())
    assert config["trainable_token_indices"] == {"embed_tokens": [3, 17]}
    stored = load_file(tmp_path / "a/adapter_model.safetensors")
    key = "base_model.model.embed_tokens.token_adapter.trainable_tokens_delta"
    assert torch.equal(stored[key], model.get_parameter(ROWS))
    again, loaded = fl.load_adapter(table(tied=False), tmp_path / "a")
    assert torch.equal(again(TOKENS), model(TOKENS))
    assert loaded.digest == plan.digest
    assert not trained(again)
    loaded.apply(again)
    loaded.verify(again)
    filled, _ = with_lora()
    scatter(filled, seed=3)
    fl.load_adapter(filled, tmp_path / "a")
    assert torch.equal(filled(TOKENS), model(TOKENS))
    fl.merge(again)
    assert torch.allclose(again(TOKENS), model(TOKENS), atol=1e-6)


def test_a_model_without_rows_gets_no_key_for_them(tmp_path: Path) -> None:
    model, _ = fl.prepare(table(), peft=fl.LoRA(rank=2, target_modules=["mix"]))
    fl.save_adapter(model, tmp_path / "a")
    assert "trainable_token_indices" not in json.loads((tmp_path / "a/adapter_config.json").read_text())


def test_other_rows_of_the_same_number_are_refused_by_name(tmp_path: Path) -> None:
    model, _ = with_lora()
    fl.save_adapter(model, tmp_path / "a")
    other, _ = fl.prepare(
        table(tied=False),
        freeze_config={"unfreeze_modules": [{**EMBED, "rows": [3, 18]}]},
        peft=fl.LoRA(rank=2, target_modules=["mix"]),
    )
    before = other(TOKENS)
    with pytest.raises(CheckpointError, match=f"{ROWS}: only in the file: 17; only in the model: 18"):
        fl.load_adapter(other, tmp_path / "a")
    assert torch.equal(other(TOKENS), before)


def damaged(folder: Path, to: Path, **changes: Any) -> Path:
    shutil.copytree(folder, to)
    file = to / "adapter_config.json"
    config = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return to


@pytest.mark.parametrize(
    "indices", [None, [3], [3, 3], [3, -1], {"other": [3, 17]}, {"embed_tokens": [1, 2, 3]}, "3", [3, True]], ids=str
)
def test_a_file_whose_indices_do_not_fit_is_refused(indices: Any, tmp_path: Path) -> None:
    fl.save_adapter(with_lora()[0], tmp_path / "a")
    folder = damaged(tmp_path / "a", tmp_path / "b", trainable_token_indices=indices)
    with pytest.raises(CheckpointError, match=r"trainable_token_indices names|does not say which rows"):
        fl.load_adapter(table(tied=False), folder)


def test_a_file_that_does_not_fit_takes_no_rows_away_that_were_there(tmp_path: Path) -> None:
    fl.save_adapter(with_lora()[0], tmp_path / "a")
    other = table(tied=False)
    with torch.no_grad():
        other.norm.bias += 1
    fl.prepare(other, freeze_config=rows_config([3, 17]))
    before = other(TOKENS)
    with pytest.raises(CheckpointError, match="another base"):
        fl.load_adapter(other, tmp_path / "a")
    assert list(rows_of(other)) == [ROWS]
    assert torch.equal(other(TOKENS), before)


def test_a_row_that_the_table_does_not_have_is_refused(tmp_path: Path) -> None:
    fl.save_adapter(with_lora()[0], tmp_path / "a")
    folder = damaged(tmp_path / "a", tmp_path / "b", trainable_token_indices=[3, VOCABULARY])
    model = table(tied=False)
    with pytest.raises(fl.SelectorError, match="index 20 is outside the table"):
        fl.load_adapter(model, folder)
    assert type(model.embed_tokens) is nn.Embedding
    assert list(model.state_dict()) == list(table(tied=False).state_dict())


def test_the_order_of_a_foreign_file_is_respected(tmp_path: Path) -> None:
    model, _ = with_lora()
    fl.save_adapter(model, tmp_path / "a")
    folder = damaged(tmp_path / "a", tmp_path / "b", trainable_token_indices=[17, 3])
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    key = next(key for key in tensors if "token_adapter" in key)
    save_file({**tensors, key: tensors[key].flip(0).contiguous()}, file)
    again, _ = fl.load_adapter(table(tied=False), folder)
    assert torch.equal(again(TOKENS), model(TOKENS))


INEXPRESSIBLE: dict[str, tuple[dict[str, Any], list[Any], str]] = {
    "tied, without a config that says so": (
        {"tied": True},
        [EMBED],
        "peft ties nothing to embed_tokens, which is not the model's input embedding",
    ),
    "a head with a bias": (
        {"tied": False, "bias": True},
        [{"param": "lm_head.weight", "rows": [3]}],
        "peft leaves out the bias of the linear lm_head",
    ),
}


@pytest.mark.parametrize("name", INEXPRESSIBLE)
def test_row_70_what_peft_cannot_express_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    """Row 70: the embedding and the head are honoured, or rejected by name."""
    options, unfreeze, reason = INEXPRESSIBLE[name]
    model, _ = fl.prepare(
        table(**options), freeze_config={"unfreeze_modules": unfreeze}, peft=fl.LoRA(rank=2, target_modules=["mix"])
    )
    with pytest.raises(AdapterError, match=rf"trained_rows among them(.|\n)*{reason}"):
        fl.save_adapter(model, tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("tied", [True, False])
def test_rows_without_adapters_round_trip(tied: bool, tmp_path: Path) -> None:
    model, _ = rows_only(tied=tied)
    expected = model(TOKENS)
    fl.save_trained(model, tmp_path / "t")
    record = json.loads((tmp_path / "t/trained.json").read_text())
    assert record["rows"] == {ROWS: [3, 17]}
    assert list(load_file(tmp_path / "t/model.safetensors")) == [ROWS]
    again, _ = rows_only(tied=tied)
    scatter(again, seed=7)
    fl.load_trained(again, tmp_path / "t")
    assert torch.equal(again(TOKENS), expected)


def test_in_a_bare_model_rows_go_into_the_table(tmp_path: Path) -> None:
    model, _ = rows_only()
    fl.save_trained(model, tmp_path / "t")
    bare = fl.load_trained(table(), tmp_path / "t")
    assert type(bare.embed_tokens) is nn.Embedding
    assert bare.lm_head.weight is bare.embed_tokens.weight
    assert torch.equal(bare.embed_tokens.weight, fl.merge(model).get_parameter("embed_tokens.weight"))


def test_a_bare_model_without_that_table_is_refused(tmp_path: Path) -> None:
    model, _ = rows_only()
    fl.save_trained(model, tmp_path / "t")
    for other, possible in (
        (nn.ModuleDict({"embed_tokens": nn.Embedding(10, 6)}), r"has shape \[10, 6\]"),
        (nn.ModuleDict({"other": nn.Embedding(20, 6)}), "the model has no embed_tokens.weight"),
    ):
        with pytest.raises(CheckpointError, match=rf"holds rows 3, 17 of embed_tokens.weight(.|\n)*{possible}"):
            fl.load_trained(other, tmp_path / "t")


def test_trained_rows_of_other_indices_are_refused(tmp_path: Path) -> None:
    fl.save_trained(rows_only()[0], tmp_path / "t")
    with pytest.raises(CheckpointError, match=f"{ROWS}: only in the file: 3; only in the model: 4"):
        fl.load_trained(rows_only([4, 17])[0], tmp_path / "t")
    with pytest.raises(CheckpointError, match="does not fit the plan"):
        fl.load_trained(fl.prepare(table(), freeze_config={"freeze_modules": ["mix"]})[0], tmp_path / "t")


def test_another_base_is_refused_and_one_with_the_rows_merged_in(tmp_path: Path) -> None:
    model, _ = rows_only()
    fl.save_trained(model, tmp_path / "t")
    merged = fl.merge(model)
    with pytest.raises(CheckpointError, match="another base"):
        fl.load_trained(merged, tmp_path / "t")


def train_from(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> list[float]:
    losses: list[float] = []
    for step in range(first, last):
        tokens = (TOKENS * (step + 1)) % VOCABULARY
        optimizer.zero_grad()
        loss = loss_of(model, tokens)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(trained(model), lr=0.05, weight_decay=0.3)


@pytest.mark.parametrize("adapters", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_a_checkpoint_resumes_bit_for_bit(adapters: bool, tied: bool, tmp_path: Path) -> None:
    """With adapters and a table that is tied in a plain model, peft cannot have the rows: they lie in `trained/`."""

    def built() -> tuple[nn.Module, fl.TrainabilityPlan]:
        if not adapters:
            return fl.prepare(table(tied=tied), freeze_config=rows_config([3, 17], head=tied))
        return fl.prepare(table(tied=tied), freeze_config={"unfreeze_modules": [EMBED]}, peft=fl.LoRA(rank=2))

    model, plan = built()
    optimizer = adamw(model)
    base: Any = BaseIdentity("somewhere")
    train_from(model, optimizer, 0, 3)
    with RunFolder.open(tmp_path / "run", "new") as run:
        saved = save_checkpoint(
            run, model=model, plan=plan, optimizer=optimizer, scheduler_state={}, progress={"step": 3}, base=base
        )
    assert (saved / "trained").is_dir() == (tied or not adapters)
    whole = train_from(model, optimizer, 3, 6)
    again, plan = built()
    resumed = adamw(again)
    load_checkpoint(saved, model=again, plan=plan, optimizer=resumed, base=base)
    assert train_from(again, resumed, 3, 6) == whole
    assert torch.equal(again.get_parameter(ROWS), model.get_parameter(ROWS))
    other, plan = (
        fl.prepare(table(tied=tied), freeze_config=rows_config([3, 18], head=tied))
        if not adapters
        else fl.prepare(
            table(tied=tied), freeze_config={"unfreeze_modules": [{**EMBED, "rows": [3, 18]}]}, peft=fl.LoRA(rank=2)
        )
    )
    with pytest.raises(CheckpointError, match=rf"{ROWS}: rows 3, 17 in the checkpoint, 3, 18 now"):
        load_checkpoint(saved, model=other, plan=plan, base=base)
    with pytest.raises(CheckpointError, match="only in the file: 17; only in the model: 18"):
        load_checkpoint(saved, model=other, plan=plan, base=base, allow_plan_change=True)


def test_row_106_a_table_larger_than_the_vocabulary_keeps_its_size(tmp_path: Path) -> None:
    """Row 106: rows are laid over; nothing is resized, saved or merged smaller."""
    model, _ = rows_only([3, VOCABULARY - 1])
    fl.save_trained(model, tmp_path / "t")
    assert fl.load_trained(table(), tmp_path / "t").embed_tokens.weight.shape[0] == VOCABULARY
    assert fl.merge(model).get_parameter("embed_tokens.weight").shape[0] == VOCABULARY


def test_row_105_what_is_saved_follows_the_plan_and_no_pattern(tmp_path: Path) -> None:
    """Row 105: rows chosen through a wildcard are saved like any other."""
    model, _ = fl.prepare(
        table(tied=False),
        freeze_config={"unfreeze_modules": [{"param": "*bed_tok*.weight", "rows": "3:5"}]},
        peft=fl.LoRA(rank=2, target_modules=["mix"]),
    )
    scatter(model)
    fl.save_adapter(model, tmp_path / "a")
    again, _ = fl.load_adapter(table(tied=False), tmp_path / "a")
    assert torch.equal(again(TOKENS), model(TOKENS))
    assert rows_of(again)[ROWS].rows == (3, 4)


def test_rows_of_embedding_and_untied_head_at_once(tmp_path: Path) -> None:
    model, _ = fl.prepare(table(tied=False), freeze_config=BOTH, peft=fl.LoRA(rank=2, target_modules=["mix"]))
    scatter(model)
    fl.save_adapter(model, tmp_path / "a")
    config = json.loads((tmp_path / "a/adapter_config.json").read_text())
    assert config["trainable_token_indices"] == {"embed_tokens": [3, 17], "lm_head": [0, 1]}
    again, _ = fl.load_adapter(table(tied=False), tmp_path / "a")
    assert torch.equal(again(TOKENS), model(TOKENS))
