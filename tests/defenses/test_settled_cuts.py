"""Defenses that determine how the cut points are computed."""

import math
from dataclasses import replace

import numpy as np
import pytest
from federations import sample_federation

from fedtrees.core.composition import Composition
from fedtrees.core.errors import DataError, UnguardedMessageError, UsageError
from fedtrees.core.guarantee import Structural, join
from fedtrees.core.local_data import over_clients
from fedtrees.core.messages import has_sealed_field
from fedtrees.core.reasons import Unfit
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import parse_composed, parse_grid
from fedtrees.defenses.cut_points import GridCuts
from fedtrees.experiments.evaluate import make_defense
from fedtrees.messages.horizontal import (
    CutPoints,
    CutsRequest,
    FeatureRanges,
    FeatureSketch,
    GridCounts,
    GridRequest,
)
from fedtrees.privacy.mechanisms import discrete_laplace_share, private_quantiles, rank_error
from fedtrees.protocols.compatibility import check_fit
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of

PROTOCOLS = ("fedtree-hist", "nvflare-hist", "forest-hist")
SMALL = {
    "fedtree-hist": "fedtree-hist[trees=2,max_depth=3,max_bin=16,base_score=0.5]",
    "nvflare-hist": "nvflare-hist[trees=2,max_depth=3,max_bin=16,base_score=0.5]",
    "forest-hist": "forest-hist[trees=2,max_depth=3,max_bin=16]",
}
DEFENSES = (
    "public-cuts",
    "grid-cuts",
    "grid-cuts[rounds=1]",
    "dp-grid-cuts[epsilon=2]",
    "dp-quantile-cuts[epsilon=2]",
    "sketch-rounding",
)


def run(defense, protocol="fedtree-hist", federation=None, seed=3):
    clients, schema = federation or sample_federation()
    protocol_object = register.make("protocol", parse_grid(SMALL.get(protocol, protocol))[0])
    composition = make_defense(parse_composed([defense])[0])
    local_data = over_clients(clients)
    return train(protocol_object, local_data, schema, defense=composition, seed=seed), local_data


def sent(training, *kinds):
    return [d.message for d in training.transcript if isinstance(d.message, kinds)]


def spent(training):
    return training.defense.spent(training.transcript)


def bare(clients, schema):
    """Return the federation with nothing declared."""
    features = tuple(Feature(f.name) for f in schema.features)
    return clients, Schema(features, schema.target, schema.classes)


def same_trees(a, b):
    return all(
        np.array_equal(s.feature, t.feature) and np.array_equal(s.threshold, t.threshold)
        for s, t in zip(a.model.trees, b.model.trees, strict=True)
    )


@pytest.mark.long
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("defense", ["grid-cuts", "dp-grid-cuts[epsilon=2]"])
def test_no_party_sees_counts_or_summaries_of_a_single_client(protocol, defense):
    training, local_data = run(defense, protocol)
    assert not sent(training, CutsRequest, FeatureSketch, FeatureRanges)
    requests = sent(training, GridRequest)
    assert [request.round for request in requests] == [0, 1]
    assert [bool(request.reveals) for request in requests] == [False, True]
    view = view_of(training, ("server", "client-0"), local_data)
    open_senders = {
        item.sender for item, message in view.messages(GridCounts) if not has_sealed_field(message)
    }
    # Client-0's own counts, which include its share of the noise.
    assert open_senders == {"server", "client-0"}
    assert len(sent(training, GridCounts)) == 2 * (len(local_data) + 1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_public_cuts_equal_those_of_the_protocol_and_need_no_request(protocol):
    training, _ = run("public-cuts", protocol)
    assert not sent(training, CutsRequest, FeatureSketch, GridRequest)
    protocol_run, _ = run("none", SMALL[protocol].replace("]", ",cuts=public]"))
    assert same_trees(training, protocol_run)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_sums_over_many_clients_give_the_trees_of_a_single_client(protocol):
    clients, schema = sample_federation(clients=5)
    # The clients of this protocol sample rows independently.
    if protocol == "forest-hist":
        protocol = SMALL[protocol].replace("]", ",bootstrap=false,max_features=5]")
    five_clients, _ = run("grid-cuts", protocol, (clients, schema))
    single_client, _ = run("grid-cuts", protocol, ([Table.concat(clients)], schema))
    assert same_trees(five_clients, single_client)


@pytest.mark.parametrize("defense", DEFENSES)
@pytest.mark.parametrize("declared", [True, False])
def test_clients_with_unusual_columns_can_train(defense, declared):
    """One row, a constant column, a column without values at one client, and one without any."""
    if not declared and defense in ("public-cuts", "grid-cuts[rounds=1]"):
        return
    rng = np.random.default_rng(2)
    X = rng.normal(size=(60, 4)).astype(np.float32)
    X[:, 1], X[:20, 2], X[:, 3] = 7, np.nan, np.nan
    table = Table(X, (X[:, 0] > 0).astype(np.int64))
    clients = [table.take(rows) for rows in (np.arange(20), np.arange(20, 59), np.arange(59, 60))]
    schema = Schema(tuple(Feature(name, low=-9, high=9) for name in "abcd"), "y")
    training, _ = run(defense, federation=(clients, schema) if declared else bare(clients, schema))
    (cuts,) = sent(training, CutPoints)
    if not declared and defense.startswith("dp-"):
        return  # Noise on sixty rows in an estimated range makes the cuts useless.
    assert np.diff(cuts.offsets)[0] > 1
    if defense.startswith(("grid", "sketch")):
        assert np.diff(cuts.offsets)[[1, 3]].tolist() == [1, 1]
    is_right = (training.predict(X) > 0.5) == table.y
    assert is_right.mean() > 0.75


@pytest.mark.parametrize("defense", DEFENSES[1:2] + DEFENSES[3:])
@pytest.mark.parametrize("seed", range(3))
def test_every_training_row_lies_between_the_outermost_cuts(defense, seed):
    """Training has no bin beyond the outermost cuts, so no value may lie there."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(120, 2)).astype(np.float32)
    # Two rows are too few to be visible through noise.
    X[:2] = [[1e6, -1e6], [-1e6, 1e6]]
    clients = [Table(part, (part[:, 0] > 0).astype(np.int64)) for part in np.split(X, 3)]
    schema = Schema((Feature("a"), Feature("b")), "y", ("0", "1"))
    training, _ = run(defense, federation=(clients, schema), seed=seed)
    cuts = sent(training, CutPoints)[0]
    last_cut = cuts.values[cuts.offsets[1:] - 1]
    assert ((cuts.minimum <= X.min(axis=0)) & (X.max(axis=0) < last_cut)).all()


def test_a_row_never_counts_twice_where_columns_are_already_known():
    clients, schema = sample_federation()
    features = list(schema.features)  # of the last, three categories are declared
    features[0] = replace(features[0], cuts=(-60.0, -0.5, 0.0, 0.5, 60.0))
    training, _ = run("dp-grid-cuts[epsilon=2]", federation=(clients, replace_features(features)))
    assert {m.features for m in sent(training, GridCounts)} == {3}
    (cuts,) = sent(training, CutPoints)
    assert cuts.values[:4].tolist() == [-0.5, 0.0, 0.5, 60.0]
    assert cuts.values[cuts.offsets[4] :].tolist()[:2] == [1, 2]


def replace_features(features):
    return Schema(tuple(features), "label")


def test_if_all_cuts_are_declared_nothing_is_requested_or_spent():
    clients, schema = sample_federation()
    features = [replace(feature, cuts=(-60.0, 0.0, 60.0)) for feature in schema.features]
    training, _ = run("dp-grid-cuts[epsilon=2]", federation=(clients, replace_features(features)))
    assert not sent(training, GridRequest)
    assert spent(training) == [Structural()]


def test_a_single_grid_requires_declared_ranges():
    with pytest.raises(DataError, match=r"declared range .* a, b, c, d, e \(5 in all\).*rounds=2"):
        run("grid-cuts[rounds=1]", federation=bare(*sample_federation()))
    with pytest.raises(
        Unfit, match="cut points need a declared range of every numeric column; a, b, c"
    ):
        run("public-cuts", federation=bare(*sample_federation()))


def test_categories_that_are_split_as_sets_are_not_counted():
    protocol = "fedtree-hist[trees=2,max_depth=3,max_bin=2,enable_categorical=true]"
    training, _ = run("grid-cuts", protocol)
    assert {m.features for m in sent(training, GridCounts)} == {4}
    (cuts,) = sent(training, CutPoints)
    assert cuts.categorical.tolist() == [False] * 4 + [True]


# Claims and spending


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("defense", ["dp-grid-cuts", "dp-quantile-cuts"])
@pytest.mark.parametrize("more_parameters", ["", ",rounds=1", ",rounds=3"])
def test_the_cut_points_spend_epsilon_once_per_row(protocol, defense, more_parameters):
    if more_parameters and defense == "dp-quantile-cuts":
        return
    training, _ = run(f"{defense}[epsilon=0.7{more_parameters}]", protocol)
    (guarantee,) = spent(training)
    assert (guarantee.epsilon, guarantee.unit) == (pytest.approx(0.7), "cuts")
    shared = ",trusted=clients,colluders=1" if defense == "dp-grid-cuts" else ""
    claim = f"pure-dp[epsilon=0.7,unit=cuts{shared}]"
    assert str(training.defense.claims()[0]) == claim == str(replace(guarantee, coalition=0.0))
    # Two of three clients may collude.
    assert (guarantee.coalition > 0.7) == (defense == "dp-grid-cuts")


def test_epsilons_of_noisy_cut_points_and_noisy_histograms_add_up():
    training, _ = run("dp-grid-cuts[epsilon=1]+laplace-hist[epsilon=4,calibrated=true]")
    cuts, total = spent(training)
    shared = "trusted=clients,colluders=1"
    assert str(replace(cuts, coalition=0.0)) == f"pure-dp[epsilon=1,unit=cuts,{shared}]"
    assert str(replace(total, coalition=0.0)) == f"pure-dp[epsilon=5,{shared}]"
    assert total.coalition == pytest.approx(cuts.coalition + 4)
    exact, _ = run("grid-cuts+laplace-hist[epsilon=4,calibrated=true]")
    assert join(spent(exact)[1:]) == "pure-dp[epsilon=inf,histograms=4,unprotected=cuts]"
    public, _ = run("public-cuts+laplace-hist[epsilon=4,calibrated=true]")
    assert join(spent(public)) == "structural+pure-dp[epsilon=4]"


def test_an_additional_secure_sum_changes_no_tree():
    grid_run, _ = run("grid-cuts")
    combined_run, _ = run("grid-cuts+secure-sum+split-only")
    assert same_trees(grid_run, combined_run)


def test_a_sketch_that_crosses_all_the_same_stops_the_run():
    class Forgetful(GridCuts):
        name = "forgetful"

        def cut_plan(self):
            return None

    clients, schema = sample_federation()
    protocol = register.make("protocol", parse_grid(SMALL["fedtree-hist"])[0])
    with pytest.raises(UnguardedMessageError, match="about to send FeatureSketch"):
        train(protocol, over_clients(clients), schema, defense=Composition((Forgetful(),)))


# The noise


def test_shares_of_noise_add_up_to_discrete_laplace_noise():
    """Compare with ``P(k) = (1 - r) / (1 + r) r^|k|``, ``r = exp(-1 / scale)``, by chi squared."""
    scale, n_draws, parties = 1.5, 40_000, 5
    rng = np.random.default_rng(0)
    shares = [discrete_laplace_share(scale, n_draws, rng, parties) for _ in range(parties)]
    total = sum(shares)
    ratio = math.exp(-1 / scale)
    inner = np.arange(-5, 6)
    expected = n_draws * (1 - ratio) / (1 + ratio) * ratio ** np.abs(inner)
    observed = np.array([(total == value).sum() for value in inner])
    assert ((observed - expected) ** 2 / expected).sum() < 29.6  # 11 cells, P < 0.002
    variance_of_share = np.var(shares[0])
    assert variance_of_share == pytest.approx(np.var(total) / parties, rel=0.1)


def test_one_dishonest_client_of_two_or_four_faces_the_complete_noise():
    clients, schema = sample_federation(rows=240, clients=2)
    variances = []
    for parts in (
        clients,
        [part.take(s) for part in clients for s in (slice(0, 60), slice(60, 120))],
    ):
        defense = "dp-grid-cuts[epsilon=0.5,rounds=1,cells=4096]"
        noisy, _ = run(defense, federation=(parts, schema))
        exact, _ = run("grid-cuts[rounds=1,cells=4096]", federation=(parts, schema))
        totals = [
            next(message for message in sent(training, GridCounts) if not has_sealed_field(message))
            for training in (noisy, exact)
        ]
        variances.append(np.var(totals[0].counts - totals[1].counts))
    scale = 4 / 0.5  # four counted columns
    assert variances == pytest.approx([2 / 1 * 2 * scale**2, 4 / 3 * 2 * scale**2], rel=0.15)


@pytest.mark.long
@pytest.mark.parametrize(("less", "added"), [([0], 1), ([1, 1], 0)])
def test_three_quantiles_of_neighbouring_tables_respect_epsilon(less, added):
    """At the outcome that distinguishes them best, the ratio is close to the bound."""
    n_draws, epsilon = 8000, 2.0

    def chance(values):
        rng = np.random.default_rng(1)
        integers = np.array(values, dtype=np.int64)
        samples = [private_quantiles(integers, 3, 0, 1, epsilon, rng) for _ in range(n_draws)]
        return np.mean([not quantiles.any() for quantiles in samples])

    ratio = abs(math.log(chance(less) / chance([*less, added])))
    assert 0.5 * epsilon < ratio < 1.1 * epsilon


def test_quantiles_with_a_large_epsilon_equal_those_of_the_values():
    values = np.random.default_rng(0).permutation(np.arange(1000, 2000))
    quantiles = private_quantiles(values, 9, 0, 10_000, 1e4, np.random.default_rng(1))
    np.testing.assert_allclose(quantiles, np.arange(1100, 2000, 100), atol=3)
    quantiles_of_nothing = private_quantiles(values[:0], 3, 5, 9, 1.0, np.random.default_rng(1))
    assert (np.diff(quantiles_of_nothing) >= 0).all()
    assert quantiles_of_nothing.min() >= 5
    assert quantiles_of_nothing.max() <= 9


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_the_rank_error_of_quantiles_is_as_declared(epsilon):
    rng = np.random.default_rng(0)
    values = np.sort(rng.normal(2**19, 2**16, 1000).astype(np.int64))
    expected_ranks = np.arange(1, 16) * len(values) / 16
    samples = [private_quantiles(values, 15, 0, 2**20, epsilon, rng) for _ in range(50)]
    measured_error = np.sqrt(np.mean((np.searchsorted(values, samples) - expected_ranks) ** 2))
    assert 0.4 < measured_error / rank_error(15, epsilon) < 2.5


# Rounding


@pytest.mark.parametrize("digits", [1, 3])
def test_rounded_sketches_have_few_digits_and_count_all_rows(digits):
    training, local_data = run(f"sketch-rounding[digits={digits}]")
    messages = sent(training, FeatureSketch)
    assert len(messages) == len(local_data)
    for message, data in zip(messages, local_data.values(), strict=True):
        assert message.weights.sum() == data.X.size
        rounded = [np.float32(f"{value:.{digits - 1}e}") for value in message.points]
        np.testing.assert_array_equal(message.points, rounded)
        for feature in range(data.X.shape[1]):
            points = message.points[message.offsets[feature] : message.offsets[feature + 1]]
            assert (np.diff(points) > 0).all()


@pytest.mark.parametrize(
    ("defense", "error_message"),
    [
        ("dp-grid-cuts[epsilon=0]", "epsilon must be a finite number > 0; got 0"),
        ("dp-quantile-cuts[epsilon=-1]", "epsilon must be a finite number > 0; got -1"),
        ("dp-quantile-cuts[epsilon=1,quantiles=0]", "quantiles=0"),
        ("grid-cuts[cells=1]", "cells=1: give a whole number from 2"),
        ("grid-cuts[cells=2.5]", "cells=2.5"),
        ("grid-cuts[rounds=0]", "rounds=0"),
        ("dp-grid-cuts[epsilon=1,rounds=9]", "rounds=9: give a whole number from 1 to 4"),
        ("sketch-rounding[digits=0]", "digits=0"),
        ("grid-cuts+public-cuts", "'grid-cuts' and 'public-cuts' each determine the cut points"),
    ],
)
def test_invalid_parameters_are_refused(defense, error_message):
    with pytest.raises(UsageError, match=error_message):
        make_defense(parse_composed([defense])[0])


def test_where_no_cut_points_are_settled_they_have_no_place():
    protocol = register.make("protocol", parse_grid("flower-bagging")[0])
    for defense in DEFENSES:
        by = make_defense(parse_composed([defense])[0])
        assert "which 'flower-bagging' does not send" in str(check_fit(protocol, by))
