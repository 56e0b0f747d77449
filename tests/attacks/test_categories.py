"""Shares of categories are estimated from the noisy quantiles of their codes, with the known
distribution of the noise.
"""

from __future__ import annotations

import numpy as np
import pytest

from fedtrees.attacks.joint.attack import Joint
from fedtrees.attacks.observations.columns import columns_of, likely_shares
from fedtrees.attacks.observations.reading import read_boosting
from fedtrees.attacks.observations.rows_from_columns import likely_rows
from fedtrees.attacks.reconstruction.context import ReconstructionContext
from fedtrees.attacks.sketch_reading import SketchReading
from fedtrees.core.claims import Records
from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import parse_composed, parse_grid
from fedtrees.defenses.cut_points import PrivateQuantileCuts
from fedtrees.experiments.evaluate import make_defense
from fedtrees.metrics.records import score_records
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of

SHARES = (0.1, 0.7, 0.2)
SCHEMA = Schema(
    (*(Feature(f"k{i}", "categorical", categories=tuple("abc")) for i in range(3)),
     Feature("x", low=0, high=9)),
    "y",
    ("no", "yes"),
)  # fmt: skip


def random_rows(seed):
    rng = np.random.default_rng(seed)
    X = rng.choice(3, (400, 4), p=SHARES).astype(np.float32)
    X[:, 3] = rng.uniform(2, 4, 400)
    return Table(X, rng.integers(0, 2, 400))


def view_of_quantiles(epsilon, seed=0):
    local_data = over_clients([random_rows(seed) for seed in range(3)])
    defense = make_defense(parse_composed([f"dp-quantile-cuts[epsilon={epsilon}]"])[0])
    protocol = register.make("protocol", parse_grid("fedtree-hist[trees=2,max_depth=2]")[0])
    run = train(protocol, local_data, SCHEMA, defense=defense, seed=seed)
    return view_of(run, ("server",), local_data)


@pytest.mark.long
def test_categorical_columns_contain_codes_and_are_more_reliable_with_less_noise():
    reliability = {}
    for epsilon in (0.01, 100):
        columns = [
            column
            for client_columns in columns_of(view_of_quantiles(epsilon)).values()
            for column in client_columns[:3]
        ]
        assert all(set(column.values) <= {0, 1, 2} and not column.exact for column in columns)
        reliability[epsilon] = np.mean([column.reliability for column in columns])
    assert reliability[0.01] < reliability[100] - 0.1


@pytest.mark.long
def test_estimated_shares_are_closer_with_a_larger_epsilon():
    rng = np.random.default_rng(0)
    distances = {epsilon: [] for epsilon in (0.01, 100.0)}
    for epsilon in distances:
        defense = PrivateQuantileCuts(epsilon)
        (log_chance,) = {c.log_chance for c in defense.channels(SCHEMA, {}).values()}
        for _ in range(30):
            shares = rng.dirichlet(np.ones(4))
            column = rng.choice(4, 400, p=shares).astype(np.float32)
            points = defense._quantiles(column, (0.0, 3.0), epsilon / 5, rng)
            estimated, _ = likely_shares(
                lambda values, one_value, points=points, log_chance=log_chance: log_chance(
                    points, values, one_value, (0.0, 3.0)
                ),
                np.zeros(4),
                400,
                rng,
            )
            distances[epsilon].append(np.abs(estimated - shares).sum())
    assert np.mean(distances[100.0]) < np.mean(distances[0.01]) - 0.1


def test_an_uninformative_likelihood_returns_the_prior_shares():
    prior_counts = np.array([30.0, 10.0])
    shares, reliability = likely_shares(
        lambda values, one_value: 0.0, prior_counts, 200, np.random.default_rng(0)
    )
    assert shares == pytest.approx([0.75, 0.25], abs=0.03)
    assert reliability < 0.5
    single_category = likely_shares(
        lambda values, one_value: 0.0, prior_counts[:1], 200, np.random.default_rng(0)
    )
    assert single_category == ([1.0], 1.0)


@pytest.mark.long
def test_noisy_columns_improve_the_reconstruction():
    """Points between codes reveal only part of the shares, so distances show more than recovered
    values.
    """
    truth = Table.concat([random_rows(seed) for seed in range(3)])
    distance = {True: [], False: []}
    for seed in range(3):
        view = view_of_quantiles(100, seed)
        likely = likely_rows(view, np.random.default_rng(0))
        assert likely is not None
        assert set(np.unique(likely.X[:, :3])) <= {0, 1, 2}
        for sketches, distances in distance.items():
            guess = Joint(sketches=sketches, steps=20_000).run(view, np.random.default_rng(0))
            table = guess.all(Records)[0].table
            distances.append(score_records(table, truth, SCHEMA).gower)
    assert np.mean(distance[True]) < np.mean(distance[False]) - 0.01


@pytest.mark.long
def test_noisy_values_reveal_no_range_and_declared_ranges_are_used():
    view = view_of_quantiles(0.01)
    evidence = read_boosting(view)
    assert not evidence.columns.cuts_reveal_ranges
    context = ReconstructionContext.of(evidence, Table.empty(SCHEMA), SCHEMA)
    assert (context.prior.low[3], context.prior.high[3]) == (0, 9)
    guess = SketchReading().run(view, np.random.default_rng(0))
    X = guess.all(Records)[0].table.X
    assert guess.notes["submits_blind"] == 1
    assert "votes" not in guess.notes
    assert not np.isnan(X).any()
    assert X[:, 3].min() >= 0
    assert X[:, 3].max() <= 9
    guess_with_less_noise = SketchReading().run(view_of_quantiles(100), np.random.default_rng(0))
    assert not np.isnan(guess_with_less_noise.all(Records)[0].table.X).any()
