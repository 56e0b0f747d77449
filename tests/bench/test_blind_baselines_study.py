"""No guess without a view exceeds the blind baseline, and attacks below it are named."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from data_dir import data_dir

from fedtrees.benchmarks.papers.blind_baselines import (
    MARGIN,
    NAME,
    over_baseline,
    tabulate_attacks,
    tabulate_guesses,
)
from fedtrees.core.claims import Guess, Records
from fedtrees.core.threat import Threat
from fedtrees.experiments.evaluate import blind_baseline, evaluate_blind, score_guess
from fedtrees.experiments.federation import federation_of
from fedtrees.experiments.plan import build_plan
from fedtrees.experiments.suite import Suite


@pytest.fixture(scope="module")
def suite():
    return Suite.load(NAME)


@pytest.mark.long
@pytest.mark.parametrize(
    ("threat", "guesses"),
    [
        ("server", {"class prior", "schema marginals"}),
        ("passive", {"PC1 K-means", "Gaussian mixture"}),
    ],
)
def test_no_simple_guess_is_above_the_baseline(suite, threat, guesses):
    cells = (c for c in build_plan(suite).blind if c.threat == threat)
    cell = next(
        c
        for c in cells
        if c.federation_config.data.name == "pima" and c.federation_config.seed == 0
    )
    rows = evaluate_blind(cell, federation_of(cell.federation_config, data_dir())).rows
    excess = over_baseline(cell, data_dir(), blind_baseline(rows).scores)
    assert set(excess) == guesses
    assert max(excess.values()) <= MARGIN
    lowered = {name: value - 0.5 for name, value in blind_baseline(rows).scores.items()}
    assert min(over_baseline(cell, data_dir(), lowered).values()) > MARGIN


@pytest.mark.long
def test_an_adversary_without_rows_is_also_compared_with_the_population(suite):
    cells = [
        c
        for c in build_plan(suite).blind
        if c.federation_config.data.name == "pima" and not c.federation_config.seed
    ]
    for threat in ("server", "client"):
        cell = next(
            c for c in cells if c.threat == threat and c.federation_config.layout == "horizontal"
        )
        world, roles = (
            federation_of(cell.federation_config, data_dir()),
            dict(cell.federation_config.roles),
        )
        case = world.case(roles, Threat.parse(threat).principals(roles), 0, threat)
        baseline = blind_baseline(evaluate_blind(cell, world).rows)
        if threat == "client":
            assert case.of_population is None
            assert not baseline.population
            continue
        assert case.blind_view().rows is None
        np.testing.assert_array_equal(case.of_population.blind_view().rows.X, world.test.X)
        assert baseline.population["ra"] > baseline.scores["ra"] + 0.2  # .75 against .48
        population_rows = world.test.take(
            np.resize(np.arange(len(world.test)), len(case.victims_rows))
        )
        (row,) = (
            score_row
            for score_row in score_guess("mine", Guess((Records(population_rows),)), case, baseline)
            if score_row["metric"] == "ra"
        )
        assert row["population"] == baseline.population["ra"] > row["value"]
        assert row["beyond"] < 0 < row["advantage"]


def test_tables_mark_guesses_above_and_attacks_below_the_baseline(suite, monkeypatch):
    common = {
        "dataset": "pima", "partition": "iid[clients=3]", "protocol": "fedtree-hist",
        "defense_spec": "none", "threat": "client", "stage": "attack", "status": "ok",
        "metric": "ra", "part": "", "value": 0.7, "attack_params": "",
    }  # fmt: skip
    rows = pd.DataFrame([
        {**common, "attack": "joint", "blind": 0.702, "seed": 0},
        {**common, "attack": "timberstrike", "blind": 0.705, "seed": 0},
        {**common, "attack": "timberstrike", "blind": 0.704, "seed": 1},
    ])  # fmt: skip
    _, _, lines = tabulate_attacks(rows)
    assert [(line[5], line[-1]) for line in lines] == [("joint", ""), ("timberstrike", "below")]
    monkeypatch.setattr(
        "fedtrees.benchmarks.papers.blind_baselines.over_baseline",
        lambda cell, folder, line: {"one": 0.002, "other": 0.004},
    )
    _, _, lines = tabulate_guesses(suite, rows, None)
    assert {(line[3], line[-1]) for line in lines} == {("one", ""), ("other", "above")}


def test_there_are_twenty_cells(suite):
    cells = (c for g in build_plan(suite).groups for c in g.attacks)
    trained = {(c.protocol, c.federation_config.data, c.federation_config.partition_text, c.threat)
               for c in cells}  # fmt: skip
    assert len(trained) >= 20
