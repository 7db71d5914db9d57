"""The resolved plan equals its definition, written here as loops over names, on random module trees.

The loops know nothing of trees, masks or indices: they compare paths as text, one parameter after the other.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn

from frostline import LoRA, prepare, resolve
from frostline.errors import ConfigError, SelectorError
from frostline.selectors import parse_selector
from frostline.tree import ModuleTree

# Names of which some are parts, beginnings and ends of others, with the signs of wildcards and expressions near them.
NAMES = ["a", "ab", "b", "a_b", "text", "context", "layer", "layers", "norm"]
CLASSES = {"Linear": nn.Linear, "LayerNorm": nn.LayerNorm, "BatchNorm1d": nn.BatchNorm1d}


class Part(nn.Module):
    """A container with own parameters."""


class Special(Part):
    """A subclass, so that `type` has bases to look at."""


# -- random trees


@st.composite
def modules(draw: st.DrawFn, depth: int = 0) -> nn.Module:
    kinds = ["leaf"] if depth >= 3 else ["leaf", "part", "list"]
    kind = draw(st.sampled_from(kinds)) if depth else "part"
    if kind == "leaf":
        name = draw(st.sampled_from(sorted(CLASSES)))
        module: nn.Module = nn.Linear(1, 1, bias=draw(st.booleans())) if name == "Linear" else CLASSES[name](1)
    elif kind == "list":
        if draw(st.booleans()):  # a stack of equal blocks
            cls = draw(st.sampled_from([Part, Special]))
            module = nn.ModuleList(fill(draw, cls(), depth) for _ in range(draw(st.integers(1, 12))))
        else:
            module = nn.ModuleList(draw(modules(depth + 1)) for _ in range(draw(st.integers(0, 3))))
    else:
        module = fill(draw, draw(st.sampled_from([Part, Special]))(), depth)
    for param in module.parameters(recurse=False):
        param.requires_grad_(draw(st.booleans()))
    return module


def fill(draw: st.DrawFn, module: nn.Module, depth: int) -> nn.Module:
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3 if depth else 4)):
        module.add_module(name, draw(modules(depth + 1)))
    if draw(st.booleans()):
        module.register_parameter("scale", nn.Parameter(nn.Linear(1, 1).weight.detach()))
    return module


def selectors(model: nn.Module, depth: int = 0) -> st.SearchStrategy[Any]:
    """Values that often, not always, match something in `model`."""
    paths = [path for path, _ in model.named_modules(remove_duplicate=False)] or [""]
    params = [path for path, _ in model.named_parameters(remove_duplicate=False)] or ["x"]
    path = st.sampled_from([path for path in paths if path] or ["a"])

    def wild(text: str, position: int, sign: str) -> str:
        position %= len(text)
        return text[:position] + sign + text[position + 1 :]

    def tail(text: str, count: int) -> str:
        return ".".join(text.split(".")[-count:])

    wilded = st.builds(wild, path, st.integers(0, 30), st.sampled_from(["*", "?", "[a-z]", "[!x]"]))
    names = st.builds(tail, path | wilded, st.integers(1, 4)).filter(lambda text: "" not in text.split("."))
    kinds: list[st.SearchStrategy[Any]] = [
        names,
        st.fixed_dictionaries({"path": path | st.sampled_from(NAMES)}),
        st.fixed_dictionaries({"glob": path | wilded | st.sampled_from(["*", "*.layers", "*norm*"])}),
        st.fixed_dictionaries({"regex": st.builds(lambda text: text.replace(".", r"\.") + ".*", path)}),
        st.fixed_dictionaries(
            {"type": st.sampled_from([*CLASSES, "Part", "Special", "Module", "ModuleList", "_Norm"])}
        ),
        st.fixed_dictionaries({"param": st.sampled_from([*params, "*.bias", "*scale", "a*"])}),
        st.fixed_dictionaries(
            {"layers": st.sampled_from([0, -1, 2, ":2", "-2:", "::2", "::-1", "1:1", [0, -1], "0:"])}
        ),
        st.builds(lambda of: {"layers": 0, "of": of}, path),
    ]
    plain = st.one_of(kinds)
    if depth:
        return plain
    narrow = st.sampled_from([{"param": "*.bias"}, {"param": "*scale"}, {"type": "LayerNorm"}, {"type": "Part"}])
    more = st.fixed_dictionaries(
        {},
        optional={
            "within": selectors(model, 1),
            "except": st.lists(selectors(model, 1) | narrow, min_size=1, max_size=2),
            "optional": st.booleans(),
        },
    )
    mapped = plain.filter(lambda value: isinstance(value, dict))
    return plain | st.builds(lambda value, extra: {**value, **extra}, mapped, more)


# -- the definition as loops


class Refused(Exception):
    """The definition calls it an error."""


def is_below(path: str, root: str) -> bool:
    return not root or path == root or path.startswith(root + ".")


def naive_match(value: Any, path: str, module: nn.Module) -> bool:
    if isinstance(value, str):
        wanted, parts = value.split("."), path.split(".")
        if len(wanted) > len(parts):
            return False
        return all(fnmatch.fnmatchcase(part, want) for part, want in zip(parts[-len(wanted) :], wanted, strict=True))
    if "path" in value:
        return path == value["path"]
    if "glob" in value:
        return fnmatch.fnmatchcase(path, value["glob"])
    if "regex" in value:
        return re.fullmatch(value["regex"], path) is not None
    return value["type"] in [base.__name__ for base in type(module).__mro__]


def naive_blocks(value: Mapping[str, Any], model: nn.Module, scope: list[str] | None) -> list[str]:
    """Paths of the chosen blocks."""
    every = dict(model.named_modules(remove_duplicate=False))
    if "of" in value:
        lists = [
            path
            for path, module in every.items()
            if naive_match(value["of"], path, module) and isinstance(module, (nn.ModuleList, nn.Sequential))
        ]
    else:
        stacks = [
            path
            for path, module in every.items()
            if isinstance(module, nn.ModuleList) and len(module) and len({type(child) for child in module}) == 1
        ]
        lists = [path for path in stacks if not any(other != path and is_below(path, other) for other in stacks)]
    if scope is not None:
        # Of several lists, those that share a module with the scope.
        lists = [path for path in lists if any(is_below(root, path) or is_below(path, root) for root in scope)]
    if not lists:
        return []
    if len(lists) > 1:
        raise Refused
    blocks = [f"{lists[0]}.{name}".lstrip(".") for name in every[lists[0]]._modules]
    positions = value["layers"]
    if isinstance(positions, int):
        positions = [positions]
    if isinstance(positions, list):
        if any(not -len(blocks) <= position < len(blocks) for position in positions):
            raise Refused
        return [blocks[position] for position in positions]
    numbers = [int(number) if number else None for number in positions.split(":")]
    if any(number is not None and abs(number) > len(blocks) for number in numbers[:2]):
        raise Refused
    chosen = blocks[slice(*numbers)]
    if not chosen:
        raise Refused
    return chosen


def naive_select(value: Any, model: nn.Module, *, is_part: bool = False) -> tuple[list[str], set[str]]:
    """Matched paths and selected parameters. Raises Refused for what is an error."""
    extra = value if isinstance(value, dict) else {}
    optional = extra.get("optional", False)
    params = [path for path, _ in model.named_parameters(remove_duplicate=False)]
    scope: list[str] | None = None
    if "within" in extra:
        scope, _ = naive_select(extra["within"], model, is_part=True)
        if "param" in extra["within"]:
            raise Refused
        if not scope and not optional:
            raise Refused
    if "param" in extra:
        matches = [
            path
            for path in params
            if fnmatch.fnmatchcase(path, extra["param"])
            and (scope is None or any(is_below(path.rpartition(".")[0], root) for root in scope))
        ]
        selected = set(matches)
    else:
        if "layers" in extra:
            found = naive_blocks(extra, model, scope)
        else:
            found = [
                path for path, module in model.named_modules(remove_duplicate=False) if naive_match(value, path, module)
            ]
        matches = [path for path in found if scope is None or any(is_below(path, root) for root in scope)]
        selected = {path for path in params if any(is_below(path.rpartition(".")[0], match) for match in matches)}
    for part in extra.get("except", ()):
        away_matches, away = naive_select(part, model, is_part=True)
        if not away_matches and not optional:
            raise Refused
        selected -= away
    if not selected and not optional and not is_part:
        raise Refused
    return matches, selected


def naive_plan(model: nn.Module, freeze: Sequence[Any], unfreeze: Sequence[Any]) -> dict[str, tuple[bool, int | None]]:
    """Path -> does it train, and the number of the entry that decided."""
    result: dict[str, tuple[bool, int | None]] = {}
    lists = ((False, freeze), (True, unfreeze))
    chosen = [
        (trains, index, naive_select(value, model)[1]) for trains, values in lists for index, value in enumerate(values)
    ]
    for path, param in model.named_parameters():
        verdict: tuple[bool, int | None] = (param.requires_grad, None)
        for trains, index, selected in chosen:
            if path in selected:
                verdict = (trains, index)
        result[path] = verdict
    return result


# -- the properties

SOME = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(SOME, max_examples=120)


@MANY
@given(st.data())
def test_the_plan_is_its_definition(data: st.DataObject) -> None:
    model = data.draw(modules())
    assume(list(model.parameters()))
    freeze = data.draw(st.lists(selectors(model), max_size=3))
    unfreeze = data.draw(st.lists(selectors(model), max_size=3))
    config = {"freeze_modules": freeze, "unfreeze_modules": unfreeze}
    try:
        expected = naive_plan(model, freeze, unfreeze)
    except Refused:
        with pytest.raises(SelectorError):
            resolve(model, freeze_config=config)
        return
    if not any(trains for trains, _ in expected.values()):
        with pytest.raises(ConfigError, match="nothing trains"):
            resolve(model, freeze_config=config)
        return
    plan = resolve(model, freeze_config=config)
    assert {path: decision.trains for path, decision in plan.decisions.items()} == {
        path: trains for path, (trains, _) in expected.items()
    }
    for path, (trains, index) in expected.items():
        rule = plan.decisions[path].rule
        name = "unfreeze_modules" if trains else "freeze_modules"
        assert (None if rule.origin is None else rule.origin.key) == (
            None if index is None else f"freeze_config.{name}[{index}]"
        )


@SOME
@given(st.data())
def test_case_47_case_67_a_tied_tensor_has_one_decision_and_counts_once(data: st.DataObject) -> None:
    """Rows 47 and 67: explicit rules about its names must agree, and one of them decides for all."""
    model = data.draw(modules())
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assume(len(linears) > 1)
    for linear in linears[1:]:
        if data.draw(st.booleans()):
            linear.weight = linears[0].weight  # every linear here is 1 x 1
    owners = [module for module in model.modules() if isinstance(module, Part)]
    data.draw(st.sampled_from(owners)).add_module("shared", data.draw(st.sampled_from(linears)))
    paths = st.builds(lambda path: {"path": path}, st.sampled_from([path for path, _ in model.named_modules() if path]))
    freeze = data.draw(st.lists(st.just("*") | paths | selectors(model, 1), max_size=2))
    unfreeze = data.draw(st.lists(paths | selectors(model, 1), max_size=2))
    config = {"freeze_modules": freeze, "unfreeze_modules": unfreeze}
    verdicts: dict[int, set[bool]] = {}
    params: dict[int, nn.Parameter] = {}
    try:
        frozen = [naive_select(value, model)[1] for value in freeze]
        thawed = [naive_select(value, model)[1] for value in unfreeze]
    except Refused:
        assume(False)
        return
    for path, param in model.named_parameters(remove_duplicate=False):
        params[id(param)] = param
        said = verdicts.setdefault(id(param), set())
        if any(path in selected for selected in thawed):
            said.add(True)
        elif any(path in selected for selected in frozen):
            said.add(False)
    if any(len(said) > 1 for said in verdicts.values()):
        with pytest.raises(SelectorError, match="one tensor is both frozen and trained"):
            resolve(model, freeze_config=config)
        return
    expected = {key: next(iter(said), params[key].requires_grad) for key, said in verdicts.items()}
    assume(any(expected.values()))
    plan = resolve(model, freeze_config=config)
    for path, param in model.named_parameters(remove_duplicate=False):
        assert plan.decisions[path].trains == expected[id(param)]
    assert plan.num_total == sum(param.numel() for param in model.parameters())
    assert plan.num_trainable == sum(params[key].numel() for key, trains in expected.items() if trains)


@settings(SOME, max_examples=200)
@given(st.data())
def test_case_05_case_06_a_name_never_crosses_the_border_of_a_component(data: st.DataObject) -> None:
    """Rows 5 and 6: what a bare name, a path or `of` selects ends with whole components that are equal to its own."""
    model = data.draw(modules())
    tree = ModuleTree.from_model(model)
    name = data.draw(st.sampled_from(NAMES) | st.builds("{}.{}".format, st.sampled_from(NAMES), st.sampled_from(NAMES)))
    count = name.count(".") + 1
    for value in (name, {"path": name}):
        selection = parse_selector(value).select(tree)
        for index in selection.matches:
            assert tree.modules[index].path.split(".")[-count:] == name.split(".")
        for index, is_set in enumerate(selection.params):
            owner = tree.modules[tree.params[index].owner].path.split(".")
            holds = any(owner[at : at + count] == name.split(".") for at in range(len(owner)))
            assert bool(is_set) == (holds if isinstance(value, str) else is_below(".".join(owner), name))


@SOME
@given(st.data())
def test_module_selectors_never_reach_adapter_internals_and_param_does(data: st.DataObject) -> None:
    model = data.draw(modules())
    assume(any(isinstance(module, nn.Linear) for path, module in model.named_modules() if path))
    try:
        model, _ = prepare(model, peft=LoRA(rank=1))
    except ConfigError:
        assume(False)
    except ValueError:
        assume(False)
    tree = ModuleTree.from_model(model)
    adapters = set(tree.adapter_params)
    assert adapters
    value = data.draw(selectors(model, 1))
    assume(not (isinstance(value, dict) and "param" in value))
    try:
        selection = parse_selector(value).select(tree)
    except SelectorError:
        return
    assert not any(selection.params[index] for index in adapters)
    assert not any(tree.modules[index].is_adapter for index in selection.matches)
    everything = parse_selector({"param": "*.lora_?.*"}).select(tree)
    assert set(everything.matches) == adapters


def reordered(value: Any, order: Any) -> Any:
    """The same value with the keys of each mapping in another order."""
    if isinstance(value, dict):
        return {key: reordered(value[key], order) for key in order(list(value))}
    return [reordered(item, order) for item in value] if isinstance(value, list) else value


@SOME
@given(st.data())
def test_the_order_of_keys_means_nothing(data: st.DataObject) -> None:
    model = data.draw(modules())
    config = {
        "freeze_modules": data.draw(st.lists(selectors(model), max_size=2)),
        "unfreeze_modules": data.draw(st.lists(selectors(model), max_size=2)),
        "frozen_mode": data.draw(st.sampled_from(["eval", "train"])),
        "allow_frozen_new": data.draw(st.booleans()),
    }

    def outcome(order: Any) -> Any:
        try:
            plan = resolve(model, freeze_config=reordered(config, order))
        except ConfigError as error:
            return sorted(map(str, error.problems))
        return plan.digest, plan.to_json()

    assert outcome(list) == outcome(lambda keys: keys[::-1]) == outcome(sorted)


def test_one_digest_in_every_process() -> None:
    """Sets and dictionaries of text are ordered anew in each process; the plan and its digest are not."""
    code = (
        "import json, sys\n"
        "from torch import nn\n"
        "from frostline import LoRA, resolve\n"
        "block = lambda: nn.ModuleDict({'q': nn.Linear(2, 2), 'k': nn.Linear(2, 2), 'norm': nn.LayerNorm(2)})\n"
        "model = nn.ModuleDict({'layers': nn.ModuleList(block() for _ in range(5)), 'head': nn.Linear(2, 2)})\n"
        "config = {'freeze_modules': [{'layers': ':2', 'frozen_mode': 'train'}],\n"
        "    'unfreeze_modules': [{'type': 'LayerNorm', 'within': {'layers': '-2:'}, 'conditional': True}]}\n"
        "for peft in (None, LoRA(rank=1, target_modules=['q', 'k'])):\n"
        "    plan = resolve(model, freeze_config=config, peft=peft, new=['head.weight', 'head.bias'])\n"
        "    print(plan.digest, json.dumps(plan.to_json()), plan.frozen_roots, plan.notes)\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True, text=True, check=True, timeout=120,
        ).stdout
        for seed in ("0", "4294967295")
    }  # fmt: skip
    assert len(printed) == 1
    first, second = printed.pop().splitlines()
    assert len(first.split()[0]) == len(second.split()[0]) == 64
    assert json.loads(first[65 : first.rindex("} (") + 1])["num_trainable"] > 0


def test_the_strategies_reach_what_they_are_for() -> None:
    """Of a few hundred random cases many have a plan, and every kind and modifier is among them."""
    seen: set[str] = set()
    outcomes = {"plan": 0, "refused": 0}

    @settings(SOME, max_examples=500, database=None, derandomize=True)  # it looks at the strategies, not at the code
    @given(st.data())
    def look(data: st.DataObject) -> None:
        model = data.draw(modules())
        value = data.draw(selectors(model))
        try:
            naive_select(value, model)
        except Refused:
            outcomes["refused"] += 1
            return
        outcomes["plan"] += 1
        seen.update(["name"] if isinstance(value, str) else value)

    look()
    assert seen == {"name", "path", "glob", "regex", "type", "param", "layers", "of", "within", "except", "optional"}
    assert min(outcomes.values()) > 30
