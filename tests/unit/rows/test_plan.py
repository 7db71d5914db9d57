"""Which rows train: overlay, ties, notes, digest; and what the plan does to a model over its life."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import frostline as fl
from frostline.adapters import lay_rows, rows_of
from frostline.config import load_yaml
from frostline.config.models import OptimizerConfig
from frostline.errors import AdapterError, ConfigError, PlanMismatchError, SelectorError
from frostline.preparation import release
from frostline.trainability import show_rows
from frostline.training.optimizer import build_optimizer

from .conftest import VOCABULARY, WIDTH, rows_config, scatter, table

EMBED = "embed_tokens.weight"
ROWS = "embed_tokens.trained_rows"
ALL = tuple(range(VOCABULARY))
WHOLE = {"param": EMBED}


def some(rows: Any) -> dict[str, Any]:
    return {"param": EMBED, "rows": rows}


OVERLAYS: dict[str, tuple[list[Any], list[Any], Any]] = {
    "nothing": ([], [], ALL),
    "freeze some": ([some(":10")], [], ALL[10:]),
    "freeze some, twice": ([some(":10"), some("15:")], [], ALL[10:15]),
    "freeze all by rows": ([some(":10"), some("10:")], [], ()),
    "freeze all, thaw some": ([WHOLE], [some("17:")], ALL[17:]),
    "freeze all by its module, thaw some": (["embed_tokens"], [some("17:"), some(0)], (0, *ALL[17:])),
    "freeze some, thaw fewer": ([some(":10")], [some("8:10")], ALL[8:]),
    "freeze all, thaw all by rows": ([WHOLE], [some(":10"), some("10:")], ALL),
    "freeze some, thaw all": ([some(":10")], [WHOLE], ALL),
    "freeze some, then all": ([some(":10"), WHOLE], [], ()),
    "freeze all, then some": ([WHOLE, some(":10")], [], ()),
}


@pytest.mark.parametrize("name", OVERLAYS)
def test_rows_are_overlaid_as_modules_are(name: str) -> None:
    freeze, unfreeze, expected = OVERLAYS[name]
    plan = fl.resolve(table(tied=False), freeze_config={"freeze_modules": freeze, "unfreeze_modules": unfreeze})
    if expected in ((), ALL):
        assert ROWS not in plan.decisions
        assert plan.decisions[EMBED].trains == bool(expected)
        assert (
            plan.digest
            == fl.resolve(
                table(tied=False), freeze_config={"freeze_modules": [] if expected else ["embed_tokens"]}
            ).digest
        )
    else:
        assert plan.decisions[ROWS].rows == expected
        assert plan.decisions[ROWS].trains
        assert not plan.decisions[EMBED].trains


@pytest.mark.parametrize("order", [1, -1])
def test_thawing_rows_of_what_trains_anyway_is_an_error(order: int) -> None:
    """Row 1: what would silently train the whole table is refused."""
    with pytest.raises(
        SelectorError, match=r"thaws rows of embed_tokens.weight, all of which trains anyway(.|\n)*built"
    ):
        fl.prepare(table(tied=False), freeze_config={"unfreeze_modules": [some("17:")]})
    with pytest.raises(SelectorError, match=r"all of which trains anyway(.|\n)*unfreeze_modules \"embed_tokens\""):
        fl.prepare(
            table(tied=False),
            freeze_config={"freeze_modules": ["*"], "unfreeze_modules": ["embed_tokens", some("17:")][::order]},
        )


def test_with_adapters_the_baseline_is_frozen() -> None:
    plan = fl.resolve(table(), freeze_config={"unfreeze_modules": [some("17:")]}, peft=fl.LoRA(rank=2))
    assert plan.decisions[ROWS].rows == (17, 18, 19)
    assert plan.decisions[EMBED].rule.text == "baseline: PEFT freezes the base"
    assert plan.decisions[ROWS].rule.text == f'unfreeze_modules param "{EMBED}" rows "17:"'
    assert "not adapted, `rows` of its weight are named in freeze_config: 1 module (lm_head)" in plan.notes


def test_the_rule_of_each_side_is_told() -> None:
    plan = fl.resolve(table(tied=False), freeze_config={"freeze_modules": [some(":10")]})
    assert plan.decisions[EMBED].rule.text == f'freeze_modules param "{EMBED}" rows ":10"'
    assert plan.decisions[ROWS].rule.text == "baseline: trains as built"
    assert plan.decisions[EMBED].note == f"rows 10:20 train, as {ROWS}"
    assert not any("built it frozen" in note for note in plan.notes)


def test_a_decision_says_what_the_parameter_is() -> None:
    plan = fl.resolve(table(), freeze_config=rows_config([3, 17], head=True))
    decision = plan.decisions[ROWS]
    assert (decision.kind, decision.shape, decision.num_elements, decision.dtype) == ("rows", (2, WIDTH), 12, "float32")
    assert decision.rows == (3, 17)
    assert decision.conditional
    assert decision.aliases == ("lm_head.trained_rows",)
    assert plan.decisions[EMBED].rows is None
    assert plan.trainable == (ROWS,)
    assert plan.kept == (ROWS,)
    assert plan.num_trainable == 12
    assert plan.to_json()["parameters"][ROWS]["rows"] == "3, 17"


def test_resolve_touches_nothing_and_equals_what_prepare_attaches() -> None:
    model = table()
    before = copy.deepcopy(model.state_dict())
    plan = fl.resolve(model, freeze_config=rows_config(head=True))
    assert list(model.state_dict()) == list(before)
    assert type(model.embed_tokens) is nn.Embedding
    _, applied = fl.prepare(model, freeze_config=rows_config(head=True))
    assert plan.digest == applied.digest == fl.plan_of(model).digest
    assert plan.trainable == applied.trainable
    assert [name for name, param in model.named_parameters() if param.requires_grad] == [ROWS]


def test_the_digest_holds_the_rows() -> None:
    """Equal shapes, other rows: another plan."""
    plans = [fl.resolve(table(), freeze_config=rows_config(rows, head=True)) for rows in ([1, 2], [1, 3])]
    assert plans[0].digest != plans[1].digest
    (line,) = plans[0].diff(plans[1])
    assert line.startswith(f"~ {ROWS}: rows 1:3 trained -> rows 1, 3 trained (unfreeze_modules")


def test_all_entries_that_name_rows_of_a_table_are_told() -> None:
    first, second = f'param "{EMBED}" rows 3, 4', f'param "{EMBED}" rows "17:"'
    thawed = fl.resolve(
        table(tied=False), freeze_config={"freeze_modules": ["*"], "unfreeze_modules": [some([3, 4]), some("17:")]}
    )
    assert thawed.decisions[ROWS].rule.text == f"unfreeze_modules {first}; unfreeze_modules {second}"
    assert thawed.decisions[EMBED].rule.text == 'freeze_modules "*"'
    frozen = fl.resolve(table(tied=False), freeze_config={"freeze_modules": [some([3, 4]), some("17:")]})
    assert frozen.decisions[EMBED].rule.text == f"freeze_modules {first}; freeze_modules {second}"
    assert frozen.decisions[ROWS].rule.text == "baseline: trains as built"
    together = fl.resolve(
        table(tied=False), freeze_config={"freeze_modules": ["*"], "unfreeze_modules": [some([3, 4, 17, 18, 19])]}
    )
    assert thawed.digest == together.digest


def test_each_entry_that_names_rows_of_a_table_is_told_with_its_line(tmp_path: Path) -> None:
    text = "freeze_config:\n  freeze_modules: ['*']\n  unfreeze_modules:\n"
    text += f"    - {{param: {EMBED}, rows: [3, 4]}}\n    - {{param: {EMBED}, rows: '17:'}}\n"
    (tmp_path / "run.yaml").write_text(text)
    document = load_yaml(tmp_path / "run.yaml")
    plan = fl.resolve(table(tied=False), freeze_config=document.data["freeze_config"], origins=document.origins)
    assert str(plan.decisions[ROWS].rule) == (
        f'line 4: unfreeze_modules param "{EMBED}" rows 3, 4; line 5: unfreeze_modules param "{EMBED}" rows "17:"'
    )


def test_row_47_rules_that_disagree_about_the_names_of_a_tied_table_are_refused() -> None:
    """Row 47: freeze everything, thaw rows under one of the names."""
    with pytest.raises(
        SelectorError, match=r"both frozen and trained under its names embed_tokens.weight, lm_head.weight"
    ):
        fl.resolve(table(), freeze_config=rows_config())
    with pytest.raises(SelectorError, match="trained in different rows under its names"):
        fl.resolve(
            table(),
            freeze_config={
                "freeze_modules": ["*"],
                "unfreeze_modules": [some("17:"), {"param": "lm_head.weight", "rows": "18:"}],
            },
        )


def test_row_67_a_tied_table_has_one_parameter_of_rows() -> None:
    """Row 67: one trainable tensor serving both uses."""
    model, plan = fl.prepare(table(), freeze_config=rows_config(head=True))
    assert model.get_submodule("embed_tokens").trained_rows is model.get_submodule("lm_head").trained_rows
    assert plan.trainable == (ROWS,)
    assert f"one tensor, trains: {ROWS} = lm_head.trained_rows" in plan.notes


def test_untied_tables_are_independent() -> None:
    freeze = {
        "freeze_modules": ["*"],
        "unfreeze_modules": [some("17:"), {"param": "lm_head.weight", "rows": ":4"}],
    }
    model, plan = fl.prepare(table(tied=False), freeze_config=freeze)
    assert plan.trainable == (ROWS, "lm_head.trained_rows")
    assert [entry.rows for entry in rows_of(model).values()] == [(17, 18, 19), (0, 1, 2, 3)]


def test_row_1_a_wrapper_around_the_model_changes_nothing() -> None:
    """Row 1: a row slice of the embedding in a wrapped model reaches the same rows, or says that it reaches none."""

    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = table()

    names = ["*.embed_tokens.weight", "*.lm_head.weight"]
    unfreeze = [{"param": name, "rows": "17:"} for name in names]
    plan = fl.resolve(Wrapper(), freeze_config={"freeze_modules": ["*"], "unfreeze_modules": unfreeze})
    assert plan.trainable == (f"inner.{ROWS}",)
    compiled = torch.compile(table(), backend="eager")
    assert isinstance(compiled, nn.Module)
    assert fl.resolve(compiled, freeze_config=rows_config(head=True)).trainable == (ROWS,)
    with pytest.raises(SelectorError, match=r"matched 0 parameters(.|\n)*inner.embed_tokens.weight"):
        fl.resolve(Wrapper(), freeze_config={"unfreeze_modules": [some("17:")]}, peft=fl.LoRA(target_modules=["mix"]))


def test_an_optional_selector_may_find_no_table() -> None:
    freeze = {"freeze_modules": [{"param": "*.nothing", "rows": "3:", "optional": True}]}
    plan = fl.resolve(table(), freeze_config=freeze)
    assert plan.digest == fl.resolve(table()).digest


def test_rows_of_a_new_parameter_are_refused() -> None:
    freeze = {"freeze_modules": [{"param": "lm_head.weight", "rows": ":3"}]}
    with pytest.raises(SelectorError, match=r"names rows of lm_head.weight, which is new"):
        fl.resolve(table(tied=False), freeze_config=freeze, new=["lm_head.weight"])
    # Tied to a table that the files hold, it is not new.
    assert fl.resolve(table(), freeze_config=freeze, new=["lm_head.weight"]).decisions[ROWS].rows == ALL[3:]


def test_preparing_again_with_the_same_config_changes_nothing() -> None:
    model, plan = fl.prepare(table(), freeze_config=rows_config(head=True))
    scatter(model)
    values = model.get_parameter(ROWS)
    again, second = fl.prepare(model, freeze_config=rows_config(head=True))
    assert again.get_parameter(ROWS) is values
    assert second.digest == plan.digest
    scatter(model)
    assert fl.resolve(model, freeze_config=rows_config(head=True)).digest == plan.digest


@pytest.mark.parametrize("other", [rows_config("16:", head=True), {}, {"freeze_modules": ["mix"]}], ids=str)
def test_preparing_again_with_other_rows_is_an_error_that_names_them(other: dict[str, Any]) -> None:
    model, _ = fl.prepare(table(), freeze_config=rows_config(head=True))
    with pytest.raises(AdapterError, match=rf"already has trained rows(.|\n)*{ROWS}: rows 17:20 in the model"):
        fl.prepare(model, freeze_config=other)


def test_a_released_model_can_be_prepared_with_the_same_config() -> None:
    model, plan = fl.prepare(table(), freeze_config=rows_config(head=True))
    release(model)
    assert model.get_parameter("mix.weight").requires_grad
    _, again = fl.prepare(model, freeze_config=rows_config(head=True))
    assert again.digest == plan.digest
    again.verify(model)


def test_nothing_is_changed_when_preparing_fails() -> None:
    class Failing(fl.LoRA):
        def transform(self, module: nn.Module, *args: Any, **options: Any) -> nn.Module:
            raise RuntimeError("no")

    model = table()
    with pytest.raises(RuntimeError, match="no"):
        fl.prepare(model, freeze_config={"unfreeze_modules": [some("17:")]}, peft=Failing(target_modules=["mix"]))
    assert type(model.embed_tokens) is nn.Embedding
    assert type(model.lm_head) is nn.Linear
    assert list(model.state_dict()) == list(table().state_dict())


def test_laying_rows_is_all_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from frostline.adapters import rows

    model, lay, calls = table(tied=False), rows.lay, []

    def failing(module: nn.Module, *args: Any) -> None:
        calls.append(module)
        if len(calls) == 2:
            raise RuntimeError("no")
        lay(module, *args)

    monkeypatch.setattr(rows, "lay", failing)
    with pytest.raises(RuntimeError):
        lay_rows(model, {ROWS: (1,), "lm_head.trained_rows": (2,)})
    assert type(model.embed_tokens) is nn.Embedding


def test_bind_keeps_the_rows_and_refuses_to_lose_them() -> None:
    model, plan = fl.prepare(table(), freeze_config=rows_config(head=True))
    bound = plan.bind(model, step="nothing")
    assert bound.digest == plan.digest
    assert bound.decisions[ROWS].rows == (17, 18, 19)
    assert bound.decisions[ROWS].aliases == ("lm_head.trained_rows",)
    model.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
    model.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
    with pytest.raises(PlanMismatchError, match=f"planned parameters vanished: {ROWS}"):
        plan.bind(model, step="a swap")


def test_verify_sees_a_table_that_was_thawed_and_rows_that_the_optimizer_lacks() -> None:
    model, plan = fl.prepare(table(), freeze_config=rows_config(head=True))
    optimizer = build_optimizer(model, plan, OptimizerConfig(), lr=0.1)
    plan.verify(model, optimizer)
    model.get_parameter(EMBED).requires_grad_(True)
    with pytest.raises(PlanMismatchError, match=f"{EMBED}: planned frozen, but is trained"):
        plan.verify(model, optimizer)
    plan.apply(model)
    with pytest.raises(PlanMismatchError, match=f"{ROWS}: trains, but is not in the optimizer"):
        plan.verify(model, torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0))


def test_row_89_an_optimizer_group_can_take_the_rows() -> None:
    """Row 89: the group of the embedding's rows is not empty."""
    model, plan = fl.prepare(table(), freeze_config={"unfreeze_modules": [some("17:")]}, peft=fl.LoRA(rank=2))
    groups: Any = [{"select": {"param": "*.trained_rows"}, "lr": 1.0, "weight_decay": 0.0}]
    optimizer = build_optimizer(model, plan, OptimizerConfig(groups=groups), lr=0.1)
    assert optimizer.param_groups[0]["names"] == [ROWS]
    assert [group["lr"] for group in optimizer.param_groups] == [1.0, 0.1]
    groups[0]["select"] = {"param": EMBED, "rows": "17:"}
    with pytest.raises(SelectorError, match="selects rows, which is not possible here"):
        build_optimizer(model, plan, OptimizerConfig(groups=groups), lr=0.1)


def test_nothing_below_a_module_selector_reaches_the_rows() -> None:
    """Freezing or thawing by modules is about the table; its rows follow their own rule."""
    model, _ = fl.prepare(table(), freeze_config=rows_config(head=True))
    plan = fl.resolve(model, freeze_config=rows_config(head=True, frozen=("*", "embed_tokens", "lm_head")))
    assert plan.decisions[ROWS].trains
    with pytest.raises(SelectorError, match="matched 0 parameters"):
        fl.resolve(model, freeze_config={**rows_config(head=True), "freeze_modules": [{"param": "*.trained_rows"}]})


def test_a_plan_of_nothing_says_so() -> None:
    with pytest.raises(ConfigError, match="nothing trains"):
        fl.resolve(
            table(tied=False), freeze_config={"freeze_modules": ["mix", "norm", "lm_head", some(":10"), some("10:")]}
        )


def test_the_table_shows_a_line_for_the_rows() -> None:
    plan = fl.resolve(table(), freeze_config=rows_config(head=True))
    lines = plan.render().splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("embed_tokens "))
    assert lines[at].split() == ["embed_tokens", "120", "-", "freeze_modules", '"*"']
    assert lines[at + 1].startswith("  embed_tokens  rows 17:20 (3 of 20)")
    assert lines[at + 1].split()[6] == "18"
    many = fl.resolve(table(), freeze_config=rows_config("::2", head=True))
    assert "embed_tokens  rows (10 of 20)" in many.render()


def test_rows_are_shown_as_slices() -> None:
    assert show_rows((0, 1, 2, 5, 7, 8)) == "0:3, 5, 7:9"
    assert show_rows(()) == ""


def test_frozen_modes_count_the_rows_as_training() -> None:
    plan = fl.resolve(table(tied=False), freeze_config=rows_config())
    assert "embed_tokens" not in plan.frozen_roots
    assert "mix" in plan.frozen_roots


def test_a_selector_of_rows_that_hits_many_vectors_is_one_problem() -> None:
    """What cannot train in rows is told once for each selector, not once for each layer."""
    model = nn.ModuleDict({"norms": nn.ModuleList(nn.LayerNorm(4) for _ in range(9)), "head": nn.Linear(4, 3)})
    block = {"unfreeze_modules": [{"param": "norms.*.weight", "rows": 1}, {"param": "head.bias", "rows": 1}]}
    with pytest.raises(AdapterError, match=r"rows of norms\.0\.weight, norms\.1\.weight and 7 more") as caught:
        fl.resolve(model, freeze_config={"freeze_modules": ["*"], **block})
    assert len(caught.value.problems) == 2
