"""Class counts of leaves under noise: the claim is the most probable pair of integers."""

import numpy as np
import pytest
from federations import sample_federation
from present import here

from fedtrees.attacks.counts.leaf_posterior import most_probable_counts
from fedtrees.attacks.counts.leaf_sums import victim_sums
from fedtrees.attacks.observations.boosting import (
    BoostingObservations,
    Distortion,
    ObservedSums,
    RowCounts,
    SumVariance,
)
from fedtrees.attacks.timberstrike.attack import TimberStrike
from fedtrees.core.claims import LeafCounts
from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.specs import parse_grid, parse_one
from fedtrees.core.streams import Streams
from fedtrees.experiments.evaluate import make_defense
from fedtrees.metrics.leaf_counts import LeafCountMetric, score_leaf_counts
from fedtrees.metrics.metric import Case
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.params import TreeParams

LEAVES = 16


def complete_tree(g, h):
    """Return a tree of depth four on one column, with these sums in its leaves."""
    inner = LEAVES - 1
    feature = np.r_[np.zeros(inner), np.full(LEAVES, -1)].astype(np.int32)
    left = np.r_[2 * np.arange(inner) + 1, np.full(LEAVES, -1)].astype(np.int32)
    right = np.where(left < 0, -1, left + 1).astype(np.int32)
    nodes = 2 * LEAVES - 1
    sums = [np.r_[np.full(inner, np.nan), part] for part in (g, h)]
    return Tree(
        feature=feature,
        threshold=np.zeros(nodes, dtype=np.float32),
        default_left=np.zeros(nodes, dtype=bool),
        left=left,
        right=right,
        value=np.zeros(nodes, dtype=np.float32),
        g=sums[0],
        h=sums[1],
    )


def evidence_with(truth, deviation, seed):
    """Return noisy sums of rows that were counted, seen by an adversary without rows."""
    rng, n = np.random.default_rng(seed), truth.sum(axis=1)
    g = 0.5 * (truth[:, 0] - truth[:, 1]) + rng.normal(0, deviation, LEAVES)
    h = 0.25 * n + rng.normal(0, deviation, LEAVES)
    tree = complete_tree(g, h)
    variance = np.full(2 * LEAVES - 1, deviation**2)
    return BoostingObservations(
        (tree,),
        np.float32(0),
        TreeParams(),
        ObservedSums("statistics"),
        Distortion(noise=(SumVariance(variance, variance, 0.0, 0.0),)),
        RowCounts(int(n.sum())),
    )


def share_exact(truth, deviation, seed):
    evidence = evidence_with(truth, deviation, seed)
    no_local_rows = Table(np.zeros((0, 1), dtype=np.float32), np.zeros(0, dtype=np.int64))
    (sums,) = victim_sums(evidence, no_local_rows, 1)
    n0, n1 = most_probable_counts(evidence, sums, 0)
    leaves = evidence.trees[0].leaves
    claim = LeafCounts(0, leaves, np.stack([n0, n1], axis=1))
    return score_leaf_counts([claim], [LeafCounts(0, leaves, truth)]).leaf_counts_exact


SPARSE = np.zeros((LEAVES, 2), dtype=np.int64)
SPARSE[[1, 6]] = [[120, 70], [40, 60]]


@pytest.mark.parametrize("deviation", [2.0, 8.0])
def test_leaves_are_claimed_to_be_empty_under_strong_noise(deviation):
    shares = [share_exact(SPARSE, deviation, seed) for seed in range(10)]
    assert np.mean(shares) >= 14 / 16 - 0.02  # All 14 empty leaves are claimed correctly.


def test_with_little_noise_every_count_is_exact():
    full = np.random.default_rng(0).integers(0, 40, (LEAVES, 2))
    assert share_exact(SPARSE, 0.02, 0) == 1
    assert share_exact(full, 0.02, 0) == 1


RECIPE = "dp-gbdt[epsilon=4,trees=20,max_depth=4,noise=distributed]"


@pytest.mark.parametrize("protocol", here("protocol", [RECIPE]))
@pytest.mark.parametrize("principal", ["client-0", "server"])
def test_counts_of_leaves_under_distributed_noise_are_no_worse_than_blind(protocol, principal):
    parts, schema = sample_federation(rows=240)
    local_data, shares_exact, blind_shares = over_clients(parts), [], []
    for seed in range(4):
        training_protocol = register.make("protocol", parse_grid(protocol)[0])
        run = train(
            training_protocol,
            local_data,
            schema,
            defense=make_defense(parse_one("none")),
            seed=seed,
        )
        case = Case(
            local_data, dict(run.transcript.roles), (principal,), schema, Streams(seed), principal,
            model=run.model, transcript=run.transcript,
        )  # fmt: skip
        guess = TimberStrike(chains=2).run(
            view_of(run, (principal,), local_data), np.random.default_rng(0)
        )
        metric = LeafCountMetric()
        truth = metric.truth(case)
        scores = {score.key: score.value for score in metric.score(guess.all(LeafCounts), truth)}
        shares_exact.append(scores["leaf_counts_exact"])
        blind_shares.append(metric.line(case, truth, {})["leaf_counts_exact"])
    assert np.mean(shares_exact) >= np.mean(blind_shares) - 0.05
    assert np.mean(blind_shares) > 0.2  # A guess of equal shares of all rows would score 0.
