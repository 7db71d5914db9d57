"""`frozen_mode` of single selectors: which frozen parts stay still and which follow the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from frostline import LoRA, Prover, enter_phase, prepare, resolve
from frostline.errors import SelectorError

from .conftest import changed, encoder, snapshot


def roots(*freeze: Any, **block: Any) -> tuple[str, ...]:
    return resolve(encoder(), freeze_config={"freeze_modules": list(freeze), **block}).frozen_roots


def test_without_one_the_block_decides() -> None:
    assert roots("embed", {"layers": ":2"}) == ("embed", "layers.0", "layers.1")
    assert roots("embed", {"layers": ":2"}, frozen_mode="train") == ()


def test_a_selector_overrides_the_block_in_both_directions() -> None:
    assert roots("embed", {"layers": ":2", "frozen_mode": "train"}) == ("embed",)
    assert roots("embed", {"layers": ":2", "frozen_mode": "eval"}, frozen_mode="train") == ("layers.0", "layers.1")


def test_the_last_selector_that_freezes_a_module_decides_for_it() -> None:
    inner = {"type": "BatchNorm1d", "frozen_mode": "train"}
    # The normalization of a frozen block follows the model; its dropout, which has no parameters, stays still.
    assert roots({"layers": 0}, inner, {"type": "BatchNorm1d", "within": "layers.1", "frozen_mode": "eval"}) == (
        "layers.0.linear",
        "layers.0.dropout",
        "layers.1.norm",
    )
    assert roots(inner, "layers") == ("layers",)
    assert roots(inner, {"path": "layers.0", "frozen_mode": "eval"}) == ("layers.0",)


def test_a_selector_of_parameters_speaks_for_modules_whose_parameters_it_freezes_all() -> None:
    every = {"param": "layers.0.norm.*", "frozen_mode": "train"}
    assert roots("layers", every) == ("layers.0.linear", "layers.0.dropout", "layers.1", "layers.2")
    assert roots("layers", {**every, "param": "layers.0.norm.weight"}) == ("layers",)


def test_a_thawed_part_is_never_held() -> None:
    plan = resolve(
        encoder(),
        freeze_config={"freeze_modules": [{"path": "layers", "frozen_mode": "eval"}], "unfreeze_modules": ["layers.1"]},
    )
    assert plan.frozen_roots == ("layers.0", "layers.2")


def test_case_31_statistics_move_only_where_the_selector_says_train() -> None:
    """Row 31: an option says whether the statistics of frozen modules move, per selector too."""
    config = {"freeze_modules": [{"layers": 0, "frozen_mode": "train"}, {"layers": 1}]}
    model, plan = prepare(encoder(), freeze_config=config)
    model.train()
    model.layers[1].train()
    assert [block.dropout.training for block in model.layers] == [True, False, True]
    before = snapshot(model)
    model(torch.randn(8, 4))
    moved = {name.partition(".norm")[0] for name in changed(model, before) if "running" in name}
    assert moved == {"layers.0", "layers.2"}
    assert (
        "frozen_mode train of layers 0 (freeze_config.freeze_modules[0]): dropout and normalization statistics there "
        "follow the model's mode"
    ) in plan.notes
    assert plan == resolve(encoder(), freeze_config={"freeze_modules": [{"layers": [0, 1]}]})  # not in the digest


def test_it_survives_a_step_that_replaces_modules() -> None:
    config = {"freeze_modules": [{"layers": 0, "frozen_mode": "train"}, {"layers": 1}]}
    model, plan = prepare(encoder(), freeze_config=config)
    model.layers[0].linear = nn.Sequential(nn.Linear(4, 4))
    assert plan.bind(model).frozen_roots == ("layers.1",)


def test_with_adapters_only_what_has_none_and_stays_still_is_held() -> None:
    plan = resolve(
        encoder(),
        freeze_config={"freeze_modules": [{"layers": 0, "frozen_mode": "train"}]},
        peft=LoRA(rank=1, target_modules="linear"),
    )
    assert plan.frozen_roots == ("embed", "layers.1.norm", "layers.2.norm", "head")


@pytest.mark.parametrize(
    "blocks",
    [
        {"freeze_config": {"unfreeze_modules": [{"path": "head", "frozen_mode": "train"}]}},
        {"freeze_config": {"freeze_modules": [{"type": "Linear", "within": {"path": "head", "frozen_mode": "train"}}]}},
        {"freeze_config": {"freeze_modules": [{"path": "head", "except": {"path": "a", "frozen_mode": "train"}}]}},
        {"peft": {"target_modules": [{"path": "head", "frozen_mode": "train"}]}},
        {"peft": {"exclude_modules": [{"path": "head", "frozen_mode": "train"}]}},
    ],
)
def test_elsewhere_it_is_refused_with_the_place_where_it_has_a_meaning(blocks: dict[str, Any]) -> None:
    with pytest.raises(SelectorError, match=r"(?s)`frozen_mode` has no meaning here.*entries of freeze_modules"):
        resolve(encoder(), **blocks)


def in_phases(*phases: dict[str, Any], **block: Any) -> list[tuple[str, ...]]:
    entries = [{"at": {"step": 2 * index + 2}, **phase} for index, phase in enumerate(phases)]
    plan = resolve(encoder(), freeze_config={**block, "phases": entries})
    return [plan.in_phase(index).frozen_roots for index in range(len(phases) + 1)]


def test_the_mode_of_an_entry_of_a_phase_holds_from_that_phase_on() -> None:
    """Row 31 with phases: the block does not know yet what a phase says."""
    later = {"freeze_modules": [{"layers": 1}, {"layers": 0, "frozen_mode": "train"}]}
    last = {"freeze_modules": [{"layers": 0}, "embed"]}
    assert in_phases(later, last, freeze_modules=[{"layers": 0}]) == [
        ("layers.0",),
        ("layers.1",),
        ("embed", "layers.0", "layers.1"),
    ]
    # A phase may change nothing but a mode.
    assert in_phases(later, freeze_modules=["layers"]) == [("layers",), ("layers.1", "layers.2")]


def test_the_modes_of_phases_survive_a_step_that_replaces_modules() -> None:
    phase = {"at": {"step": 2}, "freeze_modules": [{"layers": 1, "frozen_mode": "train"}]}
    model, plan = prepare(encoder(), freeze_config={"freeze_modules": ["layers"], "phases": [phase]})
    model.layers[1].linear = nn.Sequential(nn.Linear(4, 4))
    for bound in (plan.bind(model), plan.in_phase(1).bind(model)):
        assert [bound.in_phase(index).frozen_roots for index in (0, 1)] == [("layers",), ("layers.0", "layers.2")]
    model, bound = enter_phase(model, plan.bind(model), 1)
    assert model.layers[1].linear[0].training


def test_statistics_that_moved_in_an_earlier_phase_are_kept_and_not_called_untouched() -> None:
    still = {"at": {"step": 2}, "freeze_modules": [{"layers": 0, "frozen_mode": "eval"}]}
    config = {"freeze_modules": [{"layers": 0, "frozen_mode": "train"}], "phases": [still]}
    model, plan = prepare(encoder(), freeze_config=config)
    prover = Prover(model, plan)
    model(torch.randn(8, 4))
    model, plan = enter_phase(model, plan, 1)
    prover = prover.next_phase(plan, 2)
    assert (plan.frozen_roots, plan.untouched_roots) == (("layers.0",), ())
    assert prover.final_check() == (
        "frozen part: 4 tensors bit-identical to what was loaded, "
        "0 tensors and 3 buffers to what they were when a phase froze them"
    )
