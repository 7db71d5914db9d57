"""`fully_shard`: what stands in for parameters while a module computes, ties, dtypes, and the order of the steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor

import frostline as fl
from frostline.adapters import disabled
from frostline.trainability.proof.frozen_part import FrozenPart
from frostline.tree import ModuleTree, canonical_named_parameters, local_parts, set_trainable, tensor_checksum

from .models import Encoder, Tied, inputs, seeded

FREEZE: dict[str, Any] = {"freeze_modules": ["embed", {"layers": ":2"}]}
LORA = {"method": "lora", "rank": 2, "target_modules": "all-linear"}


def shard(model: Encoder) -> None:
    for block in model.layers:
        fully_shard(block)
    fully_shard(model)


def flags(model: nn.Module) -> set[str]:
    return {path for path, param in canonical_named_parameters(model) if param.requires_grad}


def with_gradient(model: nn.Module) -> set[str]:
    return {path for path, param in canonical_named_parameters(model) if param.grad is not None}


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        [param for _, param in canonical_named_parameters(model, unique=True) if param.requires_grad], lr=0.1
    )


def _gathered_stand_ins_are_seen_through() -> None:
    """Row 137: flags set after a validation pass are not lost, and the optimizer still holds the parameters."""
    model, plan = fl.prepare(seeded(Encoder), freeze_config=FREEZE)
    shard(model)
    plan = plan.bind(model, step="fully_shard")
    optimizer = sgd(model)
    model(inputs()).mean().backward()
    with torch.no_grad():
        model(inputs())
    assert not isinstance(model.head.weight, DTensor)  # the root keeps gathered stand-ins after such a pass
    assert all(isinstance(param, DTensor) for _, param in canonical_named_parameters(model))
    assert all(isinstance(ref.param, DTensor) for ref in ModuleTree.from_model(model).params)
    plan.verify(model, optimizer)
    assert plan.bind(model) == plan

    other = fl.resolve(seeded(Encoder), freeze_config={"freeze_modules": ["*"], "unfreeze_modules": [{"layers": "1:"}]})
    other.apply(model)  # while they stand in
    other.verify(model)
    optimizer.zero_grad()
    model(inputs()).mean().backward()
    assert with_gradient(model) == set(other.trainable)
    other.verify(model)
    with torch.no_grad():
        model(inputs())
    set_trainable(dict(canonical_named_parameters(model))["head.weight"], True)
    with pytest.raises(fl.PlanMismatchError, match=r"head\.weight: planned frozen, but is trained"):
        other.verify(model)


def _shards_are_hashed_where_they_are(process_rank: int) -> tuple[str, str]:
    """No collective: the other process does not take part."""
    model, plan = fl.prepare(seeded(Encoder), freeze_config=FREEZE)
    shard(model)
    digest = ""
    if process_rank == 0:
        plan.verify(model)
        part = FrozenPart(model, plan)
        assert part.changed() == []
        with torch.no_grad():
            local_parts(model.embed.weight)[0].add_(1)
        assert part.changed() == ["embed.weight"]
        digest = part.digest
    dist.barrier()
    return digest, int(tensor_checksum(model.head.weight))


def _lora_in_a_sharded_model(process_rank: int) -> None:
    """Row 84, row 139, row 155: float32 adapters beside a frozen bfloat16 base; switched off and on again."""
    model, plan = fl.prepare(seeded(Encoder).bfloat16(), peft=LORA)
    before = {path: (param.dtype, param.requires_grad) for path, param in canonical_named_parameters(model)}
    shard(model)
    plan = plan.bind(model, step="fully_shard", group=dist.group.WORLD)
    after = {path: (param.dtype, param.requires_grad) for path, param in canonical_named_parameters(model)}
    assert after == before
    optimizer = sgd(model)
    plan.verify(model, optimizer, group=dist.group.WORLD)
    x = inputs(process_rank).bfloat16()
    with disabled(model), torch.no_grad():
        torch.testing.assert_close(model(x), seeded(Encoder).bfloat16()(x))
    assert flags(model) == set(plan.trainable)
    model(x).float().square().mean().backward()
    assert with_gradient(model) == set(plan.trainable)
    optimizer.step()
    plan.verify(model, optimizer)
    with pytest.raises(fl.AdapterError, match="no process has the weights to merge"):
        fl.merge(model)

    thaw = {"unfreeze_modules": [{"type": "LayerNorm"}]}
    model, plan = fl.prepare(seeded(Encoder).bfloat16(), peft=LORA, freeze_config=thaw)
    shard(model)
    with pytest.raises(fl.PlanMismatchError, match=r"trained parameters of 2 dtypes: float32, bfloat16"):
        plan.bind(model, step="fully_shard")
    with pytest.raises(fl.PlanMismatchError, match=r"one dtype for all that trains in a call; what is frozen may"):
        plan.verify(model)


def _the_wrong_order_is_named() -> None:
    """Row 20's kind: what comes after `fully_shard` comes too late."""
    model = seeded(Encoder)
    shard(model)
    with pytest.raises(fl.PlanMismatchError, match=r"prepare comes too late: fully_shard[\s\S]*then fully_shard"):
        fl.prepare(model, freeze_config=FREEZE)
    with pytest.raises(fl.PlanMismatchError, match="prepare comes too late"):
        fl.prepare(model, peft=LORA)
    with pytest.raises(fl.AdapterError, match=r"inject comes too late: fully_shard[\s\S]*prepare on the bare model"):
        fl.LoRA(rank=2)(model)
    assert flags(model) == {path for path, _ in canonical_named_parameters(model)}  # nothing was changed
    assert fl.resolve(model, freeze_config=FREEZE).digest == fl.resolve(seeded(Encoder), freeze_config=FREEZE).digest

    model, plan = fl.prepare(seeded(Encoder), freeze_config=FREEZE)
    early = sgd(model)  # before the step that replaces parameters
    shard(model)
    plan = plan.bind(model, step="fully_shard")
    with pytest.raises(
        fl.PlanMismatchError,
        match=r"10 tensors that are not parameters of the model: build it[\s\S]*linear\.weight: trains, but is not",
    ):
        plan.verify(model, early)
    flat = FullyShardedDataParallel(seeded(Encoder), device_id=torch.device("cpu"), use_orig_params=True)
    for look in (plan.bind, plan.verify):
        with pytest.raises(fl.PlanMismatchError, match=r"flat parameters have no paths[\s\S]*use .*fully_shard"):
            look(flat)


def _ties_are_kept_or_refused() -> None:
    """Row 47's kind: what one tensor was stays one, or `bind` says so."""
    model, plan = fl.prepare(seeded(Tied), freeze_config={"freeze_modules": ["body"]})
    fully_shard([model.embed, model.head])
    fully_shard(model)
    bound = plan.bind(model, step="fully_shard")
    assert bound == plan
    assert bound.decisions["head.weight"].path == "embed.weight"
    assert bound.num_trainable == 24  # counted once
    tokens = torch.tensor([[1, 2]])
    with torch.no_grad():
        model(tokens)
    bound.verify(model, sgd(model))
    model(tokens).mean().backward()
    assert with_gradient(model) == {"embed.weight", "head.weight"}

    for frozen, error in ((["body"], True), (["embed"], False)):
        model, plan = fl.prepare(seeded(Tied), freeze_config={"freeze_modules": frozen})
        fully_shard(model.embed)
        fully_shard(model.head)
        fully_shard(model)
        with pytest.raises(fl.PlanMismatchError, match=r"head\.weight: planned as one tensor with embed\.weight"):
            plan.verify(model)
        if error:
            with pytest.raises(
                fl.PlanMismatchError, match=r"embed\.weight and head\.weight were one tensor in the plan"
            ):
                plan.bind(model, step="fully_shard")
        else:
            bound = plan.bind(model, step="fully_shard")
            assert "untied by fully_shard, frozen: embed.weight, head.weight" in bound.notes
            bound.verify(model)


def _files_hold_whole_tensors(process_rank: int, folder: Path) -> None:
    """Row 84's kind: what the messages propose works, and nothing is written from a part of a model."""
    model, plan = fl.prepare(seeded(Encoder), peft={"rank": 2})
    fl.save_adapter(model, folder / f"first-{process_rank}")
    shard(model)
    plan = plan.bind(model, step="fully_shard")
    with pytest.raises(fl.CheckpointError, match=r"(?s)32 parameters are sharded.*get_model_state_dict") as caught:
        fl.save_adapter(model, folder / "adapter")
    assert not (folder / "adapter").exists()
    with pytest.raises(fl.CheckpointError, match=r"(?s)are sharded.*call load_adapter on the bare model"):
        fl.load_adapter(model, folder / f"first-{process_rank}")
    with pytest.raises(fl.AdapterError, match=r"(?s)no process has the weights.*gather"):
        fl.merge(model)
    optimizer = sgd(model)
    model(inputs()).mean().backward()
    optimizer.step()
    whole, _ = fl.prepare(seeded(Encoder), peft={"rank": 2})
    code = [
        line.strip() for line in caught.value.problems[0].fix.splitlines() if " import " in line or "state = " in line
    ]
    held: dict[str, Any] = {"model": model}
    exec("\n".join(code), held)
    if process_rank == 0:
        whole.load_state_dict(held["state"])
        fl.save_adapter(whole, folder / "adapter")
        again, _ = fl.load_adapter(seeded(Encoder), folder / "adapter")
        torch.testing.assert_close(again(inputs()), whole(inputs()))
        assert float(again.layers[0].linear.lora_B["default"].weight.abs().max()) > 0

    model, plan = fl.prepare(seeded(Encoder), freeze_config=FREEZE)
    shard(model)
    plan.bind(model, step="fully_shard")
    with pytest.raises(fl.CheckpointError, match=r"(?s)save_trained.*get_model_state_dict"):
        fl.save_trained(model, folder / "trained")
    with pytest.raises(fl.CheckpointError, match="call load_trained on the bare model"):
        fl.load_trained(model, folder / "trained")


def _half_of_the_blocks_are_wrapped() -> None:
    """`layers` still finds the one list of blocks when only some are sharded, checkpointed or compiled."""
    model, plan = fl.prepare(seeded(Encoder), freeze_config=FREEZE)
    model.layers[1] = checkpoint_wrapper(model.layers[1])
    model.layers[2] = torch.compile(model.layers[2], backend="eager")  # type: ignore[assignment]
    fully_shard(model.layers[3])
    fully_shard(model.layers[1])  # shards below the wrapper's path
    assert fl.resolve(model, freeze_config=FREEZE) == plan
    model.layers[0].linear = nn.Sequential(nn.Linear(4, 4))
    bound = plan.bind(model, step="surgery")
    assert bound.decisions["layers.0.linear.0.weight"].rule.text == 'freeze_modules layers ":2"'
    assert flags(model) == set(plan.trainable)
    bound.verify(model)


def _work(process_rank: int, folder: Path) -> tuple[str, str]:
    _files_hold_whole_tensors(process_rank, folder)
    _gathered_stand_ins_are_seen_through()
    _lora_in_a_sharded_model(process_rank)
    _the_wrong_order_is_named()
    _ties_are_kept_or_refused()
    _half_of_the_blocks_are_wrapped()
    return _shards_are_hashed_where_they_are(process_rank)


def test_fully_shard(spawn: Callable[..., list[Any]], tmp_path: Path) -> None:
    """Rows 20, 47, 84, 137, 139, 155: see the functions above."""
    (first, first_head), (second, second_head) = spawn(_work, 2, tmp_path)
    assert first
    assert not second
    assert first_head != second_head  # each process has hashed a shard of its own
