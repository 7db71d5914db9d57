"""The page of `frostline plan --html`, looked at in a headless Chromium: folding, search, hover, zoom, ties, keyboard.

Skipped, with a section of its own at the end of pytest's output, where no Chromium is installed.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from frostline import resolve
from frostline.trainability.screen.page import PAGE_MARK

from .chromium import Page
from .conftest import Model, make_plan

LORA = "layers.0-5.q_proj.lora_A.default.weight"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan = make_plan()
    path = tmp_path_factory.mktemp("page") / "plan.html"
    facts = {"optimizer": "AdamW", "steps": "25 = 800 / 32 x 1 epoch; backward reaches layers.0"}
    text = plan.to_html(facts, title="a <mixture>", devices=plan.forecast(dp_shard_size=4, tp_size=2))
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def page(browser: Page, file: Path) -> Page:
    """The page, freshly loaded; whatever the console says is an error of the test."""
    browser.errors.clear()
    browser.emulate(dark=False)
    browser.open(file)
    return browser


@pytest.fixture(autouse=True)
def quiet_console(page: Page) -> Any:
    yield
    page.settle()
    assert page.errors == []


def cells(page: Page) -> dict[str, dict[str, Any]]:
    """What is drawn, by path: state, class names and box."""
    script = """[...document.querySelectorAll('.cell')].map(cell => {
        const box = cell.getBoundingClientRect();
        return [cell.dataset.path, {state: cell.dataset.state, classes: [...cell.classList], text: cell.innerText,
            x: box.x, y: box.y, width: box.width, height: box.height}]; })"""
    return dict(page.evaluate(script))


def middle(cell: dict[str, Any]) -> tuple[float, float]:
    return cell["x"] + cell["width"] / 2, cell["y"] + cell["height"] / 2


def text(page: Page, selector: str) -> str:
    return page.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")


def crumbs(page: Page) -> list[str]:
    return page.evaluate("[...document.querySelectorAll('#crumbs button')].map(crumb => crumb.innerText)")


def search(page: Page, query: str) -> None:
    """Type `query` into the search box at once, and wait until it is answered."""
    script = "(box => { box.value = QUERY; box.dispatchEvent(new Event('input')); })(document.getElementById('search'))"
    page.evaluate(script.replace("QUERY", json.dumps(query)))
    page.wait_for(f"document.getElementById('found').dataset.query === {json.dumps(query.lower())}")


def click_badge(page: Page, path: str) -> None:
    selector = f'.cell[data-path="{path}"] .badge'
    page.click(*page.evaluate(
        f"(box => [box.x + box.width / 2, box.y + box.height / 2])"
        f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
    ))  # fmt: skip


def test_kinds_of_parameters_are_told_apart(page: Page) -> None:
    drawn = cells(page)
    states = {
        "embed_tokens": "frozen",
        "layers.0-5.norm.bias": "trained",
        LORA: "adapter",
        "classifier": "new",
        "layers.0-5": "mixed",
        "vision.2.weight": "mixed",  # some of its rows
    }
    at = {path: drawn.get(path) or drawn[f"{path}.weight"] for path in states}
    assert {path: cell["state"] for path, cell in at.items()} == states
    colors = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('.cell')].map(cell =>"
        "[cell.dataset.state, getComputedStyle(cell).backgroundColor]))"
    )
    assert len(set(colors.values())) == 5
    conditional = drawn["layers.0-5.experts.0-7.up_proj.lora_B.default.weight"]
    assert "conditional" in conditional["classes"]
    assert "rows" in drawn["vision.2.weight"]["classes"]
    assert "note" in drawn["vision.2.weight"]["text"]
    page.emulate(dark=True)
    page.settle()
    dark = page.evaluate("[document.body, document.querySelector('.cell')].map(e => getComputedStyle(e).color)")
    assert "rgb(227, 234, 242)" in dark


def test_the_summary_tells_counts_bytes_and_notes(page: Page) -> None:
    plan = make_plan()
    assert text(page, "#title") == "a <mixture>"
    assert text(page, "#trained") == f"{plan.num_trainable:,}"
    assert plan.digest[:8] in text(page, "#digest")
    assert "backward reaches layers.0" in text(page, "#facts")
    assert plan.digest in text(page, "#facts")
    assert "each of 8 devices" in text(page, "#forecast")
    assert "</script><img src=x onerror=alert(1)>" in text(page, "#notes")  # words, not markup
    assert page.evaluate("document.images.length") == 0
    kinds = page.evaluate("[...document.querySelectorAll('#legend button')].map(button => button.dataset.kind)")
    assert kinds == ["frozen", "trained", "adapter", "new", "mixed", "conditional", "tied", "noted"]


def test_equal_blocks_unfold_and_fold_again(page: Page) -> None:
    assert "×6" in cells(page)["layers.0-5"]["text"]
    click_badge(page, "layers.0-5")
    unfolded = cells(page)
    assert {f"layers.{number}" for number in range(6)} <= unfolded.keys()
    assert "layers.0-5" not in unfolded
    assert "layers.4.experts.0-7" in unfolded  # folded inside
    click_badge(page, "layers.3")
    assert "layers.0-5" in cells(page)
    click_badge(page, "layers.0-5.experts.0-7")
    assert "layers.0-5.experts.7" in cells(page)
    page.evaluate("document.getElementById('fold').click()")
    page.settle()
    assert "layers.0-5.experts.0-7" in cells(page)


def test_hover_shows_the_rule(page: Page) -> None:
    page.move(*middle(cells(page)[LORA]))
    tip = text(page, "#tip")
    assert LORA in tip
    assert "4 × 64  float32" in tip or "4 × 64 float32" in tip
    assert "1,536 elements, 6,144 bytes (6 equal, counts of all)" in tip
    assert "yes (adapter)" in tip
    assert 'target_modules "q_proj" (6 modules)' in tip
    assert "peft.target_modules[0]" in tip  # where it was written
    page.move(*middle(cells(page)["vision.2.weight"]))
    assert "10 rows, 10 to 19" in text(page, "#tip")
    assert "a note on </script> & <b>markup</b>" in text(page, "#tip")
    page.move(*middle(cells(page)["layers.0-5"]))
    assert "48 by peft.target_modules[1]" not in text(page, "#tip")
    assert "96 by peft.target_modules[1]" in text(page, "#tip")  # two factors in 6 x 8 experts
    page.move(5, 5)
    assert page.evaluate("document.getElementById('tip').hidden")


def test_click_zooms_in_and_the_breadcrumb_leads_back(page: Page) -> None:
    before = cells(page)["layers.0-5.experts.0-7"]
    page.click(*middle(before))
    assert crumbs(page) == ["Model", "layers", "0-5", "experts", "0-7"]  # each step of the way
    zoomed = cells(page)
    assert zoomed["layers.0-5.experts.0-7"]["height"] > 1.5 * before["height"]
    assert "embed_tokens.weight" not in zoomed
    page.evaluate("document.querySelectorAll('#crumbs button')[0].click()")
    page.settle()
    assert "embed_tokens.weight" in cells(page)
    page.click(*middle(cells(page)["vision"]))
    page.press("Escape")
    assert crumbs(page) == ["Model"]


def test_search_highlights_counts_and_zooms(page: Page) -> None:
    page.press("/")
    for letter in "layers.3.q_proj":  # a block that is folded
        page.press(letter)
    page.wait_for("document.getElementById('found').dataset.query === 'layers.3.q_proj'")
    assert text(page, "#found").startswith("4 parameters")
    drawn = cells(page)
    assert "hit" in drawn[LORA]["classes"]
    assert "dim" in drawn["vision"]["classes"]
    assert "dim" not in drawn["layers.0-5"]["classes"]
    page.press("Enter")
    assert crumbs(page) == ["Model", "layers", "0-5", "q_proj"]
    page.press("Escape")  # the search
    assert text(page, "#found") == ""
    page.press("Escape")  # the zoom
    assert crumbs(page)[-1] != "q_proj"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("*.norm.b*", "6 parameters"),
        ("target_modules[1]", "96 parameters"),
        ("layernorm", "0 parameters"),
        ("lm_head", "1 parameter;"),
        ("no such thing", "nothing found"),
    ],
)
def test_search_takes_globs_rules_and_classes(page: Page, query: str, found: str) -> None:
    search(page, query)
    assert text(page, "#found").startswith(found)
    assert bool([path for path, cell in cells(page).items() if "hit" in cell["classes"]]) == (found != "nothing found")


def test_tied_tensors_are_marked_and_linked(page: Page) -> None:
    drawn = cells(page)
    assert "tied" in drawn["embed_tokens.weight"]["text"]
    assert "ghost" in drawn["lm_head.weight"]["classes"]
    assert page.evaluate("document.querySelectorAll('#ties path').length") == 1
    page.move(*middle(drawn["lm_head.weight"]))
    assert "another name of embed_tokens.weight; counted there" in text(page, "#tip")
    assert page.evaluate("document.querySelectorAll('#ties path.lit').length") == 1
    page.evaluate("document.querySelector('#legend button[data-kind=tied]').click()")
    page.settle()
    assert "dim" in cells(page)["vision"]["classes"]
    assert "dim" not in cells(page)["embed_tokens.weight"]["classes"]
    page.evaluate("document.getElementById('linear').click()")
    page.settle()
    assert "lm_head.weight" in cells(page)  # another name has no size, and is there


def test_heights_follow_the_counts_where_asked(page: Page) -> None:
    page.evaluate("document.getElementById('linear').click()")
    page.settle()
    drawn = cells(page)
    ratio = drawn["layers.0-5"]["height"] / drawn["embed_tokens.weight"]["height"]
    plan = make_plan()
    counts = [
        sum(entry.num_elements for entry in plan.decisions.values() if entry.path.startswith(prefix))
        for prefix in ("layers.", "embed_tokens.")
    ]
    assert ratio == pytest.approx(counts[0] / counts[1], rel=0.1)


def test_everything_can_be_reached_from_the_keyboard(page: Page) -> None:
    page.evaluate("document.querySelector('.cell[tabindex=\"0\"]').focus()")
    focused = "document.activeElement.dataset.path"
    page.press("ArrowRight")
    page.press("ArrowDown")
    page.press("ArrowDown")
    assert page.evaluate(focused) == "layers.0-5"
    assert "layers.0-5" in text(page, "#tip")
    page.press("u")
    assert page.evaluate(focused) == "layers.0"
    page.press("Enter")
    assert crumbs(page) == ["Model", "layers", "0"]
    assert page.evaluate(focused) == "layers.0"
    page.press("Escape")
    roles = page.evaluate("[...document.querySelectorAll('.cell')].every(cell => cell.getAttribute('aria-label'))")
    assert roles
    assert page.evaluate("document.querySelectorAll('.cell[tabindex=\"0\"]').length") == 1


def test_a_mixture_with_thousands_of_experts_stays_small_and_quick(page: Page, tmp_path: Path) -> None:
    plan = make_plan(num_layers=24, num_experts=64)
    text_of_page = plan.to_html(title="large")
    assert PAGE_MARK in text_of_page[:2000]
    assert len(text_of_page) < 100_000
    file = tmp_path / "large.html"
    file.write_text(text_of_page, encoding="utf-8")
    assert min(page.open(file), page.open(file)) < 2
    assert "×24" in cells(page)["layers.0-23"]["text"]
    click_badge(page, "layers.0-23")
    assert "layers.17" in cells(page)
    started = time.perf_counter()
    search(page, "layers.17.experts.63.up")
    assert text(page, "#found").startswith("3 parameters")
    assert time.perf_counter() - started < 10  # half a second where nothing else runs


def test_stripes_of_phases_cover_only_what_trains_in_phases_as_a_whole(page: Page, tmp_path: Path) -> None:
    """And the tooltip says when a part starts and when it freezes, of a module and of a parameter."""
    phases = [
        {"at": {"step": 10}, "unfreeze_modules": ["layers.1"]},
        {"at": {"step": 20}, "freeze_modules": ["layers.1.norm"]},
    ]
    file = tmp_path / "phases.html"
    with torch.device("meta"):
        plan = resolve(Model(2, 1), freeze_config={"freeze_modules": ["layers"], "phases": phases})
    file.write_text(plan.to_html(), encoding="utf-8")
    page.open(file)
    drawn = cells(page)
    assert "later" not in drawn["layers"]["classes"]
    assert "part in phases" in drawn["layers"]["text"]
    assert "later" in drawn["layers.1"]["classes"]
    assert "later" in drawn["layers.1.norm.weight"]["classes"]
    page.move(*middle(drawn["layers.1"]))
    tip = page.evaluate("document.getElementById('tip').innerText")
    assert "6 of 8 parameters: starts in phase 1 (step 10)\n" in tip
    assert "2 of 8 parameters: starts in phase 1 (step 10), freezes in phase 2 (step 20)" in tip
    page.move(*middle(drawn["layers.1.norm.weight"]))
    tip = page.evaluate("document.getElementById('tip').innerText")
    assert "starts in phase 1 (step 10), freezes in phase 2 (step 20)" in tip
    assert "parameters:" not in tip


def test_labels_are_whole_lines_or_end_with_an_ellipsis(page: Page) -> None:
    script = """[...document.querySelectorAll('.cell b')].filter(label => {
        const box = label.getBoundingClientRect(), cell = label.closest('.cell').getBoundingClientRect();
        const isCut = label.scrollWidth > label.clientWidth && getComputedStyle(label).textOverflow !== 'ellipsis';
        return isCut || box.right > cell.right || box.top < cell.top || box.bottom > cell.bottom;
    }).map(label => label.closest('.cell').dataset.path)"""
    assert page.evaluate("document.querySelectorAll('.cell b').length") > 20
    assert page.evaluate(script) == []
