"""Shares of categories are read from what a mechanism drew between their codes, by its law."""

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


def rows(seed):
    rng = np.random.default_rng(seed)
    X = rng.choice(3, (400, 4), p=SHARES).astype(np.float32)
    X[:, 3] = rng.uniform(2, 4, 400)
    return Table(X, rng.integers(0, 2, 400))


def seen(epsilon, seed=0):
    held = over_clients([rows(seed) for seed in range(3)])
    defense = make_defense(parse_composed([f"dp-quantile-cuts[epsilon={epsilon}]"])[0])
    protocol = register.make("protocol", parse_grid("fedtree-hist[trees=2,max_depth=2]")[0])
    run = train(protocol, held, SCHEMA, defense=defense, seed=seed)
    return view_of(run, ("server",), held)


@pytest.mark.long
def test_columns_are_of_codes_and_as_reliable_as_what_was_drawn():
    told = {}
    for epsilon in (0.01, 100):
        columns = [c for parts in columns_of(seen(epsilon)).values() for c in parts[:3]]
        assert all(set(c.values) <= {0, 1, 2} and not c.exact for c in columns)
        told[epsilon] = np.mean([c.reliability for c in columns])
    assert told[0.01] < told[100] - 0.1


@pytest.mark.long
def test_shares_are_nearer_the_more_was_spent():
    rng = np.random.default_rng(0)
    off = {epsilon: [] for epsilon in (0.01, 100.0)}
    for epsilon in off:
        defense = PrivateQuantileCuts(epsilon)
        (law,) = {c.log_chance for c in defense.channels(SCHEMA, {}).values()}
        for _ in range(30):
            shares = rng.dirichlet(np.ones(4))
            column = rng.choice(4, 400, p=shares).astype(np.float32)
            points = defense._quantiles(column, (0.0, 3.0), epsilon / 5, rng)
            found, _ = likely_shares(
                lambda values, each, points=points, law=law: law(points, values, each, (0.0, 3.0)),
                np.zeros(4), 400, rng,
            )  # fmt: skip
            off[epsilon].append(np.abs(found - shares).sum())
    assert np.mean(off[100.0]) < np.mean(off[0.01]) - 0.1


def test_a_law_that_says_nothing_leaves_what_was_known():
    known = np.array([30.0, 10.0])
    shares, told = likely_shares(lambda values, each: 0.0, known, 200, np.random.default_rng(0))
    assert shares == pytest.approx([0.75, 0.25], abs=0.03)
    assert told < 0.5
    one = likely_shares(lambda values, each: 0.0, known[:1], 200, np.random.default_rng(0))
    assert one == ([1.0], 1.0)


@pytest.mark.long
def test_rows_with_drawn_columns_are_nearer_than_rows_without():
    """Points between codes reveal few of the shares: distances tell more than recovered values."""
    truth = Table.concat([rows(seed) for seed in range(3)])
    distance = {True: [], False: []}
    for seed in range(3):
        view = seen(100, seed)
        likely = likely_rows(view, np.random.default_rng(0))
        assert likely is not None
        assert set(np.unique(likely.X[:, :3])) <= {0, 1, 2}
        for sketches, distances in distance.items():
            guess = Joint(sketches=sketches, steps=20_000).run(view, np.random.default_rng(0))
            table = guess.all(Records)[0].table
            distances.append(score_records(table, truth, SCHEMA).gower)
    assert np.mean(distance[True]) < np.mean(distance[False]) - 0.01


@pytest.mark.long
def test_drawn_values_tell_no_range_and_with_much_noise_declared_ranges_are_read():
    view = seen(0.01)
    evidence = read_boosting(view)
    assert not evidence.columns.cuts_reveal_ranges
    basis = ReconstructionContext.of(evidence, Table.empty(SCHEMA), SCHEMA)
    assert (basis.prior.low[3], basis.prior.high[3]) == (0, 9)
    guess = SketchReading().run(view, np.random.default_rng(0))
    X = guess.all(Records)[0].table.X
    assert guess.notes["submits_blind"] == 1
    assert "votes" not in guess.notes
    assert not np.isnan(X).any()
    assert X[:, 3].min() >= 0
    assert X[:, 3].max() <= 9
    told = SketchReading().run(seen(100), np.random.default_rng(0))
    assert not np.isnan(told.all(Records)[0].table.X).any()
