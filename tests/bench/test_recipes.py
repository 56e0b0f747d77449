"""What the documentation names is what is computed from the results that are stored."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from fedtrees.benchmarks.papers import recipes
from fedtrees.report.recipe import recommend
from fedtrees.report.rows import UNDEFENDED

ROOT = Path(__file__).parents[2]
TRIALS = recipes.stored()
PLACES = {t.place for t in TRIALS[UNDEFENDED]}
#: What fits every table.
EVERYWHERE = [n for n in TRIALS if n != UNDEFENDED and {t.place for t in TRIALS[n]} == PLACES]


def test_what_is_stored_reads_back_as_it_was():
    again = recipes.read(recipes.written(TRIALS))
    assert recipes.written(again) == recipes.written(TRIALS)
    assert [c.name for c in recommend(again).candidates] == [
        c.name for c in recommend(TRIALS).candidates
    ]
    assert recipes.named(recommend(again)) == recipes.named(recommend(TRIALS))


def test_the_page_quotes_the_stored_run():
    page = (ROOT / "docs" / "how-to/choose.md").read_text()
    (quoted,) = re.findall(r"<!-- recipes -->\n(.*?)<!-- end -->", page, flags=re.S)
    assert quoted == recipes.quoted(TRIALS)


def test_the_readme_names_what_is_computed():
    found = recommend(TRIALS)
    text = (ROOT / "README.md").read_text()
    protocol, _, defense = recipes.named(found).rpartition(" with ")
    assert f'`-p "{protocol}" -d "{defense}"`' in text
    assert ("none holds" in text) == (found.choice is None)
    assert f"AUC {(found.choice or found.least).price.change.mean:+.3f}" in text


def test_nothing_is_named_that_was_not_tested_everywhere():
    found = recommend(TRIALS)
    name = recipes.named(found)
    places = {t.place for tried in TRIALS.values() for t in tried}
    assert {t.place for t in TRIALS[name]} == places
    assert not any(t.untested for t in TRIALS[name])
    assert {t.place for t in TRIALS[UNDEFENDED]} == places


@pytest.mark.parametrize("name", EVERYWHERE)
def test_a_recipe_that_held_would_be_named(name):
    """With every advantage taken away, and every other recipe as it was."""
    held = [
        replace(t, cells=tuple(replace(c, state="shut") for c in t.cells)) for t in TRIALS[name]
    ]
    (mine,) = (c for c in recommend({**TRIALS, name: held}).candidates if c.name == name)
    assert mine.holds
    assert mine.shown


def test_no_stored_cell_is_safe_whose_attacks_scored_below_their_baseline():
    cells = [c for tried in TRIALS.values() for t in tried for c in t.cells]
    safe = [c for c in cells if c.state == "shut"]
    assert safe
    for cell in safe:
        mean = sum(cell.advantages) / len(cell.advantages)
        assert mean >= -cell.limit, (cell.metric, mean)


def test_a_recipe_with_a_failed_attack_is_not_shown_to_resist():
    name = recipes.named(recommend(TRIALS))
    held = [
        replace(t, cells=tuple(replace(c, state="shut") for c in t.cells)) for t in TRIALS[name]
    ]
    cell = held[0].cells[0]
    n = len(cell.seeds)
    failed = replace(cell, state="shut", advantages=(-1.0,) * n)
    held[0] = replace(held[0], cells=(failed, *held[0].cells[1:]))
    again = recipes.read(recipes.written({UNDEFENDED: TRIALS[UNDEFENDED], name: held}))
    (mine,) = recommend(again).candidates
    assert mine.holds
    assert not mine.shown
    assert mine.left("person") == 1.0


def test_rounding_is_not_named():
    assert "rounding" not in recipes.named(recommend(TRIALS))
