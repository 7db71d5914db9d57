"""What a selector selects: each modifier against a loop that says the same, and what a dead selector is told."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from frostline.adapters import LoRA, inject
from frostline.config import load_yaml
from frostline.errors import SelectorError
from frostline.selectors import parse_selector, parse_selectors, require_matches
from frostline.tree import ModuleTree

from .conftest import matched, param_paths, select

# -- against a naive definition

NAMES = st.sampled_from(["bert", "albert", "a", "bert2", "0", "1", "layer"])
LEAVES = st.sampled_from([lambda: nn.Linear(1, 1), lambda: nn.LayerNorm(1), nn.ReLU]).map(lambda make: make())
MODELS = st.recursive(
    LEAVES, lambda below: st.builds(nn.ModuleDict, st.dictionaries(NAMES, below, max_size=4)), max_leaves=12
)
PATTERNS = st.lists(st.sampled_from(["bert", "a", "0", "layer", "b*", "*", "?", "[01]"]), min_size=1, max_size=3)
SIMPLE = st.one_of(
    PATTERNS.map(".".join),
    PATTERNS.map(lambda parts: {"path": ".".join(parts)}),
    PATTERNS.map(lambda parts: {"glob": ".".join(parts)}),
    PATTERNS.map(lambda parts: {"param": ".".join([*parts, "weight"])}),
    st.sampled_from(["Linear", "LayerNorm", "Module", "ModuleDict"]).map(lambda name: {"type": name}),
    st.sampled_from([r"bert(\.a)?", r".*\d", r".*"]).map(lambda text: {"regex": text}),
)


def is_match(value: Any, path: str, module: nn.Module | None) -> bool:
    """The definition, one module or parameter at a time."""
    if isinstance(value, str):
        pattern, parts = value.split("."), path.split(".")
        tail = parts[len(parts) - len(pattern) :]
        return len(parts) >= len(pattern) and all(map(fnmatch.fnmatchcase, tail, pattern))
    kind, text = next(iter(value.items()))
    if kind == "path":
        return path == text
    if kind == "regex":
        return re.fullmatch(text, path) is not None
    if kind == "type":
        return module is not None and text in [base.__name__ for base in type(module).__mro__]
    return fnmatch.fnmatchcase(path, text)


def naive(value: Any, model: nn.Module) -> set[str]:
    """Names of the parameters that `value` selects, modifiers included."""
    modifiers: dict[str, Any] = {}
    if isinstance(value, dict):
        modifiers = {key: value[key] for key in ("within", "except") if key in value}
        value = {key: text for key, text in value.items() if key not in modifiers}
    chosen: set[str] = set()
    within = None
    if "within" in modifiers:
        within = {path for path, module in model.named_modules() if _inside(modifiers["within"], path, model)}
    if isinstance(value, dict) and "param" in value:
        for name, _ in model.named_parameters():
            if is_match(value, name, None) and (within is None or name.rpartition(".")[0] in within):
                chosen.add(name)
    else:
        for path, module in model.named_modules():
            if is_match(value, path, module) and (within is None or path in within):
                prefix = path + "." if path else ""
                chosen |= {name for name, _ in model.named_parameters() if name.startswith(prefix)}
    for excepted in modifiers.get("except", []):
        chosen -= naive(excepted, model)
    return chosen


def _inside(value: Any, path: str, model: nn.Module) -> bool:
    parts = path.split(".") if path else []
    above = [".".join(parts[:depth]) for depth in range(len(parts) + 1)]
    return any(is_match(value, name, model.get_submodule(name)) for name in above)


MODULE_KINDS = SIMPLE.filter(lambda value: isinstance(value, str) or "param" not in value)
MODIFIED = st.builds(
    lambda value, within, excepts: {
        **value,
        **({"within": within} if within is not None else {}),
        **({"except": excepts} if excepts else {}),
    },
    SIMPLE.filter(lambda value: isinstance(value, dict)),
    st.none() | MODULE_KINDS,
    st.lists(SIMPLE, max_size=2),
)


@settings(max_examples=250, deadline=None)
@given(MODELS, SIMPLE | MODIFIED)
def test_selection_equals_its_definition_as_a_loop(model: nn.Module, value: Any) -> None:
    assert param_paths(ModuleTree.from_model(model), value) == naive(value, model)


@settings(max_examples=100, deadline=None)
@given(MODELS, st.lists(st.sampled_from(["bert", "a", "0", "layer"]), min_size=1, max_size=3))
def test_case_06_case_07_a_bare_name_never_crosses_the_border_of_a_component(model: nn.Module, parts: Any) -> None:
    tree = ModuleTree.from_model(model)
    for path in matched(tree, ".".join(parts)):
        assert path.split(".")[-len(parts) :] == parts


# -- kinds on a real shape


def test_case_05_layer_1_is_neither_10_nor_11(towers: ModuleTree) -> None:
    expected = ["model.language_model.layers.1.self_attn", "model.vision_tower.layers.1.self_attn"]
    assert matched(towers, "layers.1.self_attn") == expected
    assert matched(towers, {"glob": "model.language_model.layers.1.self_attn"}) == expected[:1]
    dots = {"regex": "modelXlanguage_model.*"}
    assert matched(towers, dots) == []


def test_case_06_only_whole_components_match(towers: ModuleTree) -> None:
    assert matched(towers, "vision*") == ["model.vision_tower"]
    assert matched(towers, "*text*") == ["model.context_proj"]  # only where a wildcard asks for it
    assert matched(towers, "language_model") == ["model.language_model"]
    chosen = param_paths(towers, "vision_tower") | param_paths(towers, "language_model")
    assert not any("context_proj" in path or "revision_head" in path for path in chosen)


def test_case_08_the_last_block_of_one_tower_only(towers: ModuleTree) -> None:
    value = {"layers": -1, "of": "language_model.layers"}
    assert matched(towers, value) == ["model.language_model.layers.11"]
    assert matched(towers, {"layers": -1, "within": "vision_tower"}) == ["model.vision_tower.layers.3"]


def test_case_10_lists_ranges_and_sets_of_layers_with_several_kinds(towers: ModuleTree) -> None:
    blocks = {"layers": [1, 3, 5], "of": "language_model.layers"}
    found = {path for name in ("mlp", "self_attn") for path in matched(towers, {"glob": f"*.{name}", "within": blocks})}
    assert found == {f"model.language_model.layers.{n}.{part}" for n in (1, 3, 5) for part in ("mlp", "self_attn")}


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (":2", [0, 1]),
        ("-2:", [2, 3]),
        ("::2", [0, 2]),
        ("::-2", [1, 3]),
        ("1:-1", [1, 2]),
        (0, [0]),
        ("0", [0]),
        (-4, [0]),
        ([3, 0, -1], [0, 3]),
        (":", [0, 1, 2, 3]),
        (" 1 : 3 ", [1, 2]),
        ("-4:4", [0, 1, 2, 3]),
    ],
)
def test_case_51_layers_by_position_as_in_python(towers: ModuleTree, layers: Any, expected: list[int]) -> None:
    paths = matched(towers, {"layers": layers, "of": "vision_tower.layers"})
    assert paths == [f"model.vision_tower.layers.{index}" for index in expected]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"layers": 4, "of": "vision_tower.layers"}, r"index 4 is outside the list[\s\S]*4 blocks: 0 to 3, or -4 to"),
        ({"layers": [0, -5], "of": "vision_tower.layers"}, "index -5 is outside"),
        ({"layers": ":8", "of": "vision_tower.layers"}, "bound 8 is outside"),
        ({"layers": "-5:", "of": "vision_tower.layers"}, "bound -5 is outside"),
        ({"layers": "2:2", "of": "vision_tower.layers"}, 'the slice "2:2" is empty'),
        ({"layers": "4:", "of": "vision_tower.layers"}, 'the slice "4:" is empty'),
        ({"layers": 0}, r"the model has 2 block lists[\s\S]*language_model\.layers \(12 blocks\)[\s\S]*`of: model"),
        ({"layers": 0, "of": "layers"}, 'of: "layers" names 2 lists of modules'),
        ({"layers": 0, "of": "tower"}, 'of: "tower" names 0 lists of modules'),
        ({"layers": 0, "of": "lm_head"}, "names 0 lists"),
        ({"layers": 0, "within": "lm_head"}, "no block list was found"),
        ({"layers": 9, "of": "vision_tower.layers", "optional": True}, "index 9 is outside"),
    ],
)
def test_layers_outside_or_ambiguous_are_refused(towers: ModuleTree, value: Any, message: str) -> None:
    with pytest.raises(SelectorError, match=message):
        require_matches(parse_selectors(value), towers)


def test_layers_of_a_model_without_blocks_may_be_optional() -> None:
    tree = ModuleTree.from_model(nn.Sequential(nn.Linear(1, 1)))
    with pytest.raises(SelectorError, match=r"no block list was found[\s\S]*block lists of this model: none"):
        require_matches(parse_selectors({"layers": 0}), tree)
    (selection,) = require_matches(parse_selectors({"layers": 0, "optional": True}), tree)
    assert selection.matches == ()
    assert selection.num_params == 0


def test_case_49_the_layer_is_the_number_behind_the_outermost_list() -> None:
    class Expert(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up_proj = nn.Linear(1, 1)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = nn.ModuleDict({"experts": nn.ModuleList(Expert() for _ in range(3))})

    model = nn.ModuleDict({"layers": nn.ModuleList(Layer() for _ in range(2))})
    value = {"glob": "*.up_proj", "within": {"layers": 1}}
    assert matched(ModuleTree.from_model(model), value) == [f"layers.1.mlp.experts.{n}.up_proj" for n in range(3)]


def test_case_50_the_layer_list_at_the_root_of_a_bare_backbone() -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList(nn.Linear(1, 1) for _ in range(3))})
    for prefix, tree in (
        ("", ModuleTree.from_model(model)),
        ("model.", ModuleTree.from_model(nn.ModuleDict({"model": model}))),
    ):
        for value in ({"layers": 0}, "layers.0", {"layers": ":1", "of": "layers"}):
            assert matched(tree, value) == [f"{prefix}layers.0"]
    root = ModuleTree.from_model(nn.ModuleList(nn.Linear(1, 1) for _ in range(3)))
    assert matched(root, {"layers": [0, 2]}) == ["0", "2"]


def test_a_sequential_may_be_named_as_the_list() -> None:
    tree = ModuleTree.from_model(nn.ModuleDict({"features": nn.Sequential(nn.Linear(1, 1), nn.ReLU())}))
    assert matched(tree, {"layers": 0, "of": "features"}) == ["features.0"]


def test_star_matches_the_root_and_a_name_matches_every_tail(towers: ModuleTree) -> None:
    assert matched(towers, "*")[0] == ""
    assert matched(towers, {"glob": "*"})[0] == ""
    assert param_paths(towers, "*") == {ref.path for ref in towers.params}
    assert matched(towers, "model.lm_head") == []
    assert matched(towers, {"path": "language_model"}) == []
    assert matched(towers, {"glob": "*.mlp"}) == [p for p in (r.path for r in towers.modules) if p.endswith(".mlp")]
    assert matched(towers, {"glob": "LM_HEAD"}) == []


def test_types_match_subclasses(towers: ModuleTree) -> None:
    class Special(nn.Linear):
        pass

    tree = ModuleTree.from_model(nn.Sequential(Special(1, 1), nn.Linear(1, 1), nn.LayerNorm(1)))
    assert matched(tree, {"type": "Linear"}) == ["0", "1"]
    assert matched(tree, {"type": "Special"}) == ["0"]


def test_except_takes_modules_and_parameters_away(towers: ModuleTree) -> None:
    value = {"type": "Linear", "within": {"layers": 0, "of": "vision_tower.layers"}, "except": [{"glob": "*.o_proj"}]}
    assert matched(towers, value) == [f"model.vision_tower.layers.0.{part}" for part in ("self_attn.q_proj", "mlp")]
    assert param_paths(towers, {"path": "lm_head", "except": {"param": "*.weight"}}) == set()
    biases = param_paths(towers, {"param": "*.bias", "except": "vision_tower"})
    assert biases
    assert not any("vision_tower" in path for path in biases)
    # A parent of what is excepted stays matched: it keeps its other parts.
    assert matched(towers, {"path": "model", "except": "vision_tower"}) == ["model"]


def test_except_with_an_except_of_its_own_leaves_what_that_one_takes_back() -> None:
    class Block(nn.Sequential):
        pass

    model = nn.ModuleDict({"layers": nn.ModuleList(Block(nn.Linear(1, 1), nn.ReLU()) for _ in range(3))})
    tree = ModuleTree.from_model(model)
    taken_back = {"type": "Block", "except": [{"param": "layers.1.*"}]}
    value = {"type": "Sequential", "except": [taken_back]}
    assert matched(tree, value) == ["layers.1"]
    assert param_paths(tree, value) == {"layers.1.0.weight", "layers.1.0.bias"}
    assert require_matches([parse_selector(value)], tree)[0].num_params == 2
    # All that one leaves another may take: then nothing is left of the module.
    value = {"type": "Sequential", "except": [taken_back, {"param": "layers.*"}]}
    assert matched(tree, value) == []
    value = {"type": "Linear", "except": [{"layers": ":", "except": [{"param": "*.1.0.bias"}, {"path": "layers.2"}]}]}
    assert matched(tree, value) == ["layers.1.0", "layers.2.0"]
    assert param_paths(tree, value) == {"layers.1.0.bias", "layers.2.0.weight", "layers.2.0.bias"}


def test_adapters_are_reached_by_param_only() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    inject(model, LoRA(rank=1, target_modules=["a"]))
    tree = ModuleTree.from_model(model)
    for value in ("*", {"glob": "*"}, {"regex": ".*"}, {"type": "Module"}):
        assert param_paths(tree, value) == {"a.weight", "a.bias", "b.weight", "b.bias"}
        assert not any("lora" in path for path in matched(tree, value))
    assert matched(tree, {"path": "a.lora_A"}) == []
    assert matched(tree, "lora_A") == []
    assert matched(tree, {"type": "Linear"}) == ["a", "b"]
    assert param_paths(tree, {"param": "*.lora_B.*"}) == {"a.lora_B.default.weight"}


# -- dead selectors


@pytest.mark.parametrize(
    ("value", "message"),
    [
        # case 07: a misspelt name
        ("lm_haed", 'selector "lm_haed" matched 0 modules[\\s\\S]*nearest: lm_head'),
        # case 01: an anchored pattern
        ("^lm_head.weight$", "matched 0 modules[\\s\\S]*nearest: lm_head"),
        # case 02: another architecture
        ({"glob": "transformer.h.*"}, "matched 0 modules"),
        ({"path": "model.vision"}, "matched 0 modules[\\s\\S]*nearest: model.vision_tower"),
        ({"type": "RMSNorm"}, "matched 0 modules[\\s\\S]*LayerNorm"),
        ({"type": "Zzz"}, "classes here: Towers, ModuleDict"),
        ("zzz", "top level of this model: model, lm_head"),
        ({"param": "*.bais"}, "matched 0 parameters[\\s\\S]*nearest: .*bias"),
        # a parameter where a module is meant
        ("lm_head.weight", r'names a parameter[\s\S]*write \{param: "lm_head\.weight"\}'),
        ("bias", r'names parameters[\s\S]*write \{param: "\*\.bias"\}'),
        ("mlp.weight", r'names parameters[\s\S]*write \{param: "\*\.mlp\.weight"\}'),
        ("*.bias", r'names parameters[\s\S]*write \{param: "\*\.bias"\}'),
        ("norm.[wb]*", r'names parameters[\s\S]*and 27 more[\s\S]*write \{param: "\*\.norm\.\[wb\]\*"\}'),
        ({"glob": "*.mlp.weight"}, r'names parameters[\s\S]*write \{param: "\*\.mlp\.weight"\}'),
        ({"glob": "lm_head.w*"}, r'names a parameter,[\s\S]*write \{param: "lm_head\.w\*"\}'),
        ({"path": "lm_head.weight"}, r'names a parameter,[\s\S]*write \{param: "lm_head\.weight"\}'),
        ({"regex": r"lm_head\.weight"}, r'names a parameter,[\s\S]*write \{param: "lm_head\.weight"\}'),
        (
            {"regex": r".*\.bias"},
            r"names parameters[\s\S]*write \{param: \"model\.language_model\.layers\.0\..*, and so on",
        ),
        # case 01: an expression that matches a part of the path only
        ({"regex": "q_proj"}, r"must match the whole path\n[\s\S]*and 11 more\n.*write \{regex: \"\.\*q_proj\"\}"),
        ({"regex": r"^model\.vision"}, r"must match the whole path\n[\s\S]*write \{regex: 'model\\\.vision\.\*'\}"),
        ({"regex": "q_pro|o_pro"}, r"write \{regex: \"\.\*\(q_pro\|o_pro\)\.\*\"\}"),
        ({"regex": "q_porj"}, r"must match the whole path\n[\s\S]*nearest: q_proj"),
        # a list written as one text
        ("q_proj, lm_head", r"the text is one name\n[\s\S]*write a list: \[q_proj, lm_head\]"),
        ("q_proj, lm_haed", r"matched 0 modules\n"),
        # a tail where the full path is meant
        ({"param": "mlp.weight"}, r'covers the full path[\s\S]*write \{param: "\*\.mlp\.weight"\}'),
        ({"param": "*.lm_head.weight"}, r'covers the full path[\s\S]*write \{param: "lm_head\.weight"\}'),
        # killed by a modifier
        ({"type": "Linear", "within": {"glob": "*.norm"}}, "type Linear matches 51 modules, but `within` leaves none"),
        ({"param": "*.bias", "except": [{"glob": "*"}]}, "matches .* parameters, but `except` leaves none of them"),
        ({"path": "lm_head", "except": {"param": "*"}}, "matches 1 modules, but nothing below them is left"),
        ({"path": "lm_head", "within": "nothing"}, '`within` of the selector "nothing" matched 0 modules'),
        ({"path": "lm_head", "except": ["nothing"]}, '`except` of the selector "nothing" matched 0 modules'),
    ],
)
def test_case_01_case_02_case_04_a_dead_selector_is_told_the_nearest_names(
    towers: ModuleTree, value: Any, message: str
) -> None:
    with pytest.raises(SelectorError, match=message):
        require_matches(parse_selectors(value), towers)


def test_case_04_all_dead_entries_come_at_once_with_their_lines(towers: ModuleTree, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "freeze_modules:\n  - lm_head\n  - wte\n  - {layers: 99, of: vision_tower.layers}\n  - {glob: h.0}\n", "utf-8"
    )
    document = load_yaml(path)
    selectors = parse_selectors(document.data["freeze_modules"], document.origins.below("freeze_modules"))
    with pytest.raises(SelectorError, match="3 problems") as caught:
        require_matches(selectors, towers)
    lines = [str(problem.where).partition("line ")[2] for problem in caught.value.problems]
    assert lines == ["3: freeze_modules[1]", "4: freeze_modules[2]", "5: freeze_modules[3]"]


def test_optional_selectors_may_be_dead_with_all_their_parts(towers: ModuleTree) -> None:
    values = [{"path": "x", "optional": True}, {"path": "lm_head", "within": "nothing", "optional": True}]
    assert [selection.matches for selection in require_matches(parse_selectors(values), towers)] == [(), ()]
    within = {"path": "lm_head", "except": [{"path": "nothing", "optional": True}]}
    assert select(towers, within).num_params == 1
    require_matches(parse_selectors(within), towers)


def test_modules_without_parameters_count_only_where_none_are_needed() -> None:
    tree = ModuleTree.from_model(nn.Sequential(nn.ReLU(), nn.Linear(1, 1)))
    with pytest.raises(SelectorError, match=r"matches 1 modules, but nothing below them is left[\s\S]*matched: 0"):
        require_matches(parse_selectors("0"), tree)
    require_matches(parse_selectors("0"), tree, need_params=False)


def test_suggestions_of_a_large_model_come_from_the_right_block() -> None:
    with torch.device("meta"):
        model = nn.ModuleDict(
            {"layers": nn.ModuleList(nn.ModuleDict({"down_proj": nn.Linear(1, 1)}) for _ in range(5_000))}
        )
    tree = ModuleTree.from_model(model)
    with pytest.raises(SelectorError, match=r"nearest: layers\.4321\.down_proj"):
        require_matches([parse_selector({"path": "layers.4321.dwn_proj"})], tree)
