"""The tables of DRAFT-DP: settings, scores, and studies that are resumed."""

import numpy as np
import pytest

from fedtrees.benchmarks.papers import draft_dp_tables
from fedtrees.benchmarks.papers.comparisons import read_published
from fedtrees.benchmarks.papers.draft_dp_forests import PublishedForests
from fedtrees.benchmarks.papers.draft_dp_tables import (
    Setting,
    compare_tables,
    matched_errors,
    probability_by_chance,
    setting_of,
)
from fedtrees.core.errors import DataError
from fedtrees.core.schema import Feature, Schema, Table

SCHEMA = Schema(tuple(Feature(name, low=0.0, high=1.0) for name in "abcdef"), "y", ("0", "1"))


def rows(n, seed=0):
    """Return random binary rows whose label is their first attribute."""
    X = np.random.default_rng(seed).integers(0, 2, (n, 6)).astype(np.float32)
    return Table(X, X[:, 0].astype(np.int64))


class Random(PublishedForests):
    """Random rows instead of each published table."""

    def table(self, name):
        return rows(400), SCHEMA


def test_every_table_of_forests_has_its_published_settings():
    settings = {c.item: set() for c in read_published("draft_dp")}
    for c in read_published("draft_dp"):
        settings[c.item].add(setting_of(c))
    sizes = {item: len(part - {None}) for item, part in settings.items()}
    grid = {"Table I": 270, "Table II": 270, "Table IV": 270, "Table VI": 270}
    figures = {"Figure 12": 0, "Figure 13": 0}  # of another module
    assert sizes == grid | figures | {"Table III": 18, "Table V": 0, "Table VII": 21}
    assert settings["Table III"] | settings["Table II"] == settings["Table I"]
    assert Setting("compas", 10, 5, 30.0, 100, True) in settings["Table III"]
    assert Setting("adult", 10, 5, 5.0, 25, True) in settings["Table VII"]
    assert not any(s.row_count_known for s in settings["Table IV"])


def test_rows_are_matched_before_their_attributes_are_compared():
    truth = rows(30)
    assert matched_errors(truth.take(np.arange(30)[::-1]), truth).tolist() == [0.0] * 30
    wrong_values = truth.X.copy()
    wrong_values[4, :3] = 1 - wrong_values[4, :3]
    assert matched_errors(Table(wrong_values, truth.y), truth).sum() == pytest.approx(
        3 / 6, abs=0.35
    )


def test_an_exact_reconstruction_is_not_explained_by_chance_but_another_sample_is():
    truth, other_rows = rows(40), rows(400, seed=1)
    exact = probability_by_chance(truth, other_rows, 0.0, np.random.default_rng(0))
    assert exact < 1e-6
    another_sample = rows(40, seed=2)
    error = float(matched_errors(another_sample, truth).mean())
    assert (
        probability_by_chance(another_sample, other_rows, error, np.random.default_rng(0)) > 0.001
    )


def test_an_interrupted_study_continues_with_the_missing_forests(tmp_path, monkeypatch):
    published, path = Random(tmp_path, None, 1), tmp_path / "forests.csv"
    monkeypatch.setattr(
        draft_dp_tables, "read_published",
        lambda paper: [c for c in read_published(paper) if c.setting.endswith("epsilon 30")],
    )  # fmt: skip
    first = list(compare_tables(published, ["Table III"], 0.001, path))
    assert {comparison.item for comparison in first} == {
        "Table I",
        "Table II",
        "Table III",
        "Table VI",
    }
    assert all(c.seeds == 1 and not np.isnan(c.measured) for c in first)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:2]) + "\n")
    attacked = []
    monkeypatch.setattr(
        draft_dp_tables,
        "attack",
        lambda *arguments, real=draft_dp_tables.attack: (
            attacked.append(arguments[1]),
            real(*arguments),
        )[1],
    )
    resumed = list(compare_tables(published, ["Table III"], 0.001, path))
    # The first call only loads the kernels.
    assert len(attacked) == 3
    by_cell = {
        (comparison.item, comparison.setting, comparison.score): comparison.measured
        for comparison in resumed
        if comparison.score != "seconds"
    }
    assert by_cell == {
        (comparison.item, comparison.setting, comparison.score): pytest.approx(
            comparison.measured, rel=1e-4
        )
        for comparison in first
        if comparison.score != "seconds"
    }


def test_accuracies_of_models_need_no_attack(tmp_path, monkeypatch):
    monkeypatch.setattr(draft_dp_tables, "attack", None)
    published, path = Random(tmp_path, None, 1), tmp_path / "forests.csv"
    compared = list(compare_tables(published, ["Table V"], 0.001, path))
    assert len(compared) == 12
    assert {comparison.seeds for comparison in compared} == {5}
    # The label is the first attribute, which a tree of scikit-learn separates.
    cart = [c.measured for c in compared if c.score == "accuracy, test, CART"]
    assert all(accuracy > 0.95 for accuracy in cart)
    assert all(0 < comparison.measured <= 1 for comparison in compared)


def test_a_damaged_line_of_results_is_named(tmp_path):
    path = tmp_path / "forests.csv"
    path.write_text("data,trees,depth,epsilon,rows,row_count_known,seed,error\nadult,1,3\n")
    with pytest.raises(DataError, match="line 2 is no result"):
        list(compare_tables(Random(tmp_path, None, 1), [], 0.001, path))
