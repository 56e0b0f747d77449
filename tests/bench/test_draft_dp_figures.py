"""Figures 6, 12 and 13 of DRAFT-DP: mechanisms, known attributes and the informed adversary."""

from math import exp, log, sqrt

import numpy as np
import pytest

from fedtrees.benchmarks.papers import draft_dp_figures
from fedtrees.benchmarks.papers.comparisons import read_published
from fedtrees.benchmarks.papers.draft_dp_figures import compare_figures, informed, known_attributes
from fedtrees.benchmarks.papers.draft_dp_forests import PublishedForests
from fedtrees.benchmarks.papers.draft_dp_mechanisms import count_noise, mechanisms
from fedtrees.core.schema import Feature, Schema, Table

FEATURES = tuple(Feature(name, "categorical", categories=("0", "1")) for name in "abcdef")
SCHEMA = Schema(FEATURES, "y", ("0", "1"))


class Random(PublishedForests):
    """Random binary rows, whose label is their first attribute, instead of each published table."""

    def table(self, name):
        X = np.random.default_rng(0).integers(0, 2, (400, 6)).astype(np.float32)
        return Table(X, X[:, 0].astype(np.int64)), SCHEMA


def test_the_noise_of_a_count_composes_to_the_privacy_of_the_forest():
    laws = count_noise(10.0, 1e-4, 10)
    assert laws["Laplace"].noise.scale == 1.0
    basic, advanced = laws["Gaussian, basic"], laws["Gaussian, advanced"]
    assert (10 * basic.epsilon, 10 * basic.delta) == pytest.approx((10.0, 1e-4))
    e, delta_prime = advanced.epsilon, 1e-4 - 10 * advanced.delta
    total = sqrt(2 * 10 * log(1 / delta_prime)) * e + 10 * e * (exp(e) - 1)
    assert total == pytest.approx(10.0)
    for law in (basic, advanced):
        assert law.noise.scale**2 == pytest.approx(2 * log(1.25 / law.delta) / law.epsilon**2)
    # With the parameters of Figure 6, advanced composition adds more noise. It adds less if there
    # are many trees and epsilon is small.
    assert advanced.noise.scale > 2 * basic.noise.scale > 6 * laws["Laplace"].noise.scale
    many = count_noise(1.0, 1e-4, 1000)
    assert many["Gaussian, advanced"].noise.scale < many["Gaussian, basic"].noise.scale / 5


@pytest.mark.long
def test_every_mechanism_is_measured_on_every_table(tmp_path):
    (table,) = mechanisms(Random(tmp_path, None, 1))
    errors = {(line[0], line[1]): float(line[-1]) for line in table.lines}
    assert len(errors) == 6
    assert errors["compas", "Laplace"] < errors["compas", "Gaussian, advanced"]


def test_an_informed_adversary_finds_every_row_without_noise_and_the_most_frequent_one_with_it(
    tmp_path,
):
    published = Random(tmp_path, None, 1)
    exact = informed(published, "compas", 300, 1000.0, 0)
    assert (exact["error"], exact["strongest"]) == (0.0, 0.0)
    assert exact["blind"] > 0.2
    noisy = informed(published, "compas", 300, 0.01, 0)
    # The regularizer of Equation 20 is the distance from the known rows.
    assert noisy["error"] == noisy["blind"]


def test_known_attributes_are_not_scored(tmp_path):
    published = Random(tmp_path, None, 1)
    few, many = (known_attributes(published, "compas", k, 0, 0.02) for k in (0, 5))
    assert 0 < few["error"] < 0.3
    # The only unknown attribute is random, so that no guess from other rows is good.
    assert many["blind"] > 0.2


def test_an_interrupted_figure_continues_with_the_missing_settings(tmp_path, monkeypatch):
    computed = []

    def scores(published, setting, seed, work):
        computed.append((setting, seed))
        return {"error": 0.1, "blind": 0.3, "strongest": 0.05, "error, network": float("nan")}

    monkeypatch.setattr(draft_dp_figures, "_scores", scores)
    published, cells = Random(tmp_path, None, 2), read_published("draft_dp")
    first = list(compare_figures(published, "Figure 13", 1.0, tmp_path, "adult*"))
    assert len(computed) == 14
    # Without torch, the network has no result.
    assert {(c.score, c.seeds, c.strongest) for c in first} == {("error", 2, 0.05)}
    every = list(compare_figures(published, "Figure 13", 1.0, tmp_path, "*"))
    assert len(computed) == 42
    assert len(every) == 21
    assert len([c for c in cells if c.item == "Figure 12"]) == 7 + 14 + 16
