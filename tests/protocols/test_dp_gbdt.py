"""dp-gbdt: sensitivity of a row, released sums, and the claimed and spent privacy budget."""

import math
from fractions import Fraction

import numpy as np
import pytest
import xgboost
from federations import client_seat, sample_federation
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from present import here
from scipy import stats

from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.guarantee import ApproximateDP, join, parse
from fedtrees.core.local_data import over_clients
from fedtrees.core.messages import Sealed
from fedtrees.core.party import acting
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import Spec, parse_composed, parse_grid
from fedtrees.core.wire import decode, encode
from fedtrees.experiments.evaluate import make_defense
from fedtrees.messages.horizontal import LeafSums
from fedtrees.messages.models import as_message
from fedtrees.privacy.gaussian_dp import row_bound
from fedtrees.protocols.horizontal.dp_gbdt import LeafClient
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.boosted.histogram import from_fixed, to_fixed
from fedtrees.trees.boosted.losses import objective_of
from fedtrees.trees.boosted.noisy_leaves import bounded
from fedtrees.trees.boosted.splitting import leaf_values
from fedtrees.trees.files.xgboost import save_xgboost

PARTS, SCHEMA = sample_federation(rows=90)
ROWS = Table.concat(PARTS)
THREE = Schema(SCHEMA.features, "y", ("a", "b", "c"))


def protocol(options="epsilon=2"):
    return register.make("protocol", parse_grid(f"dp-gbdt[max_depth=3,trees=6,{options}]")[0])


def grown(options="epsilon=2", defense="none", clients=3, seed=1, rows=ROWS, schema=SCHEMA):
    local_data = over_clients(
        [rows.take(part) for part in np.array_split(np.arange(len(rows)), clients)]
    )
    defense_object = make_defense(parse_composed([defense])[0])
    return train(
        protocol(options), local_data, schema, defense=defense_object, seed=seed
    ), local_data


def exact_sums(forest, tree, bits, rows=ROWS):
    """Return the fixed-point sums in the leaves of a tree, given the trees before it."""
    objective = forest.objective
    earlier_trees = forest.first(tree // objective.n_outputs)
    margin = np.atleast_2d(earlier_trees.margin(rows.X).T)
    units = to_fixed(objective.gradients(margin, rows.y), bits)[tree % objective.n_outputs]
    sums = np.zeros((len(forest.trees[tree]), 2), dtype=np.int64)
    np.add.at(sums, forest.apply(rows.X)[:, tree], units)
    return sums[forest.trees[tree].leaves]


@pytest.fixture(scope="module")
def exact():
    return grown("epsilon=inf")[0].model


def test_infinite_epsilon_is_boosting_without_noise(exact):
    params = protocol().tree_params
    for t, tree in enumerate(exact.trees):
        sums = exact_sums(exact, t, (30, 30))
        assert np.array_equal(tree.value[tree.leaves], leaf_values(sums, params))
        assert np.array_equal(np.stack([tree.g, tree.h], 1)[tree.leaves], from_fixed(sums))
        assert (tree.h[0], tree.g[0]) == pytest.approx(from_fixed(sums.sum(axis=0))[::-1])
    assert np.mean((exact.predict(ROWS.X) > 0.5) == ROWS.y) > 0.7


@pytest.mark.parametrize("noise", ["central", "distributed"])
@pytest.mark.parametrize(
    "defense", here("defense", ["none", "secure-sum", "masking", "paillier[mode=ideal]"])
)
def test_the_forest_does_not_depend_on_how_sums_are_protected(exact, noise, defense):
    training, _ = grown(f"epsilon=inf,noise={noise}", defense, clients=2)
    assert encode(as_message(training.model)) == encode(as_message(exact))
    assert not training.transcript.events


def test_xgboost_reads_the_saved_file(exact, tmp_path):
    noisy = grown()[0].model
    save_xgboost(noisy, tmp_path / "m.json", 5, SCHEMA.names)
    booster = xgboost.Booster(model_file=tmp_path / "m.json")
    predictions = booster.predict(xgboost.DMatrix(ROWS.X, feature_names=list(SCHEMA.names)))
    assert np.allclose(predictions, noisy.predict(ROWS.X), rtol=0, atol=1e-7)
    decoded = decode(encode(as_message(noisy))).model()
    assert np.array_equal(decoded.predict(ROWS.X), noisy.predict(ROWS.X))


@settings(max_examples=60)
@given(
    arrays.arrays(np.float64, (3, 4, 2), elements=st.floats(-5, 5)),
    st.floats(0.01, 3),
    st.floats(0.01, 3),
)
def test_no_clipped_row_exceeds_its_bound(gh, norm, ratio):
    units = to_fixed(gh, (20, 12))
    clipped = bounded(units, norm, ratio, (20, 12))
    squared_norms = lambda units_of_rows: [  # noqa: E731
        sum(Fraction(int(g), 2**20) ** 2 + (Fraction(int(h), 2**12) / Fraction(ratio)) ** 2
            for g, h in row) for row in units_of_rows.transpose(1, 0, 2)
    ]  # fmt: skip
    assert max(squared_norms(clipped)) <= Fraction(norm) ** 2
    small = [size <= 0.999 * Fraction(norm) ** 2 for size in squared_norms(units)]
    assert np.array_equal(clipped[:, small], units[:, small])


@pytest.mark.parametrize("classes", [("n", "y"), ("a", "b", "c"), tuple("abcdef")])
def test_hessians_are_free_relative_to_the_largest_gradient(classes):
    objective = objective_of(None, classes)
    rng, norms = np.random.default_rng(0), objective.norms
    K = objective.n_outputs
    margin = rng.normal(0, rng.uniform(0, 4, 20_000), (K, 20_000)).astype(np.float32)
    margin[:, :2000] += 9 * (rng.random((K, 2000)) < 0.5)
    gh = objective.gradients(margin, rng.integers(0, len(classes), 20_000)).astype(np.float64)
    g, h = (gh**2).sum(axis=0).T
    free = row_bound(norms, largest=norms[0], free=objective.free, share=None)
    assert (free.norm, free.ratio) == (norms[0], objective.free)
    for share in (None, 0.05, 0.2, 0.6, 0.95):
        bound = row_bound(norms, largest=norms[0], free=objective.free, share=share)
        assert np.sqrt(g + h / bound.ratio**2).max() <= bound.norm * (1 + 1e-6)
        assert bound.norm <= math.hypot(norms[0], norms[1] / bound.ratio)
    # A smaller ratio, hence less noise for the hessians, would exceed the bound.
    assert np.sqrt(g + h / (0.97 * free.ratio) ** 2).max() > free.norm
    assert math.sqrt(h.max()) == pytest.approx(norms[1], rel=1e-2)


@pytest.mark.parametrize(
    ("schema", "options"),
    [(SCHEMA, "epsilon=2"), (SCHEMA, "epsilon=2,clip=0.3"), (THREE, "epsilon=2")],
)
def test_removing_a_row_moves_every_round_by_at_most_the_sensitivity_in_the_ledger(schema, options):
    protocol_object = protocol(options)
    objective = objective_of(None, schema.classes)
    training, _ = grown(options, rows=ROWS, schema=schema)
    received = [delivery.message for delivery in training.transcript if delivery.sender == "server"]
    sums_of_tables = []
    for rows in (ROWS, ROWS.take(np.arange(1, len(ROWS)))):
        client = LeafClient(client_seat("client-0", rows, schema), protocol_object)
        with acting(client):
            answers = [
                client.answer(message)
                for message in received
                if type(message) in LeafClient._handlers
            ]
        sums_of_tables.append([answer.sums for answer in answers if isinstance(answer, LeafSums)])
    changes = np.array(sums_of_tables[0]) - np.array(sums_of_tables[1])
    assert len(changes) == protocol_object.trees * objective.n_outputs
    assert ((changes != 0).any(axis=2).sum(axis=1) <= 1).all()  # one leaf of each tree
    rounds = changes.sum(axis=1).reshape(protocol_object.trees, -1, 2).astype(float)
    bits = next(message for message in received if hasattr(message, "g_bits"))
    (event,) = [e for e in training.transcript.events if e.what == "LeafSums"]
    steps = np.ldexp(protocol_object.leaf_noise(objective).scales, (bits.g_bits, bits.h_bits))
    norm = np.sqrt(((rounds / steps) ** 2).sum(axis=(1, 2)))  # in scales of the noise
    assert 0.1 * event.l2 / event.scale < norm.max() <= event.l2 / event.scale
    assert event.scale == min(steps)
    assert event.count == protocol_object.trees


@pytest.mark.parametrize("noise", ["central", "distributed"])
def test_released_sums_carry_the_noise_once(noise):
    options = f"epsilon=2,noise={noise}"
    scales = protocol(options).leaf_noise(objective_of(None, SCHEMA.classes)).scales
    noise_in_scales = []
    for seed in range(6):
        forest = grown(options, seed=seed)[0].model
        for index, tree in enumerate(forest.trees):
            released = np.stack([tree.g, tree.h], axis=1)[tree.leaves]
            noise_in_scales.append(
                (released - from_fixed(exact_sums(forest, index, (30, 30)))) / scales
            )
    noise = np.concatenate(noise_in_scales)
    for part in noise.T:
        assert stats.kstest(part, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(noise.T)[0, 1]) < 0.25


@pytest.mark.parametrize("noise", ["central", "distributed"])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-5), (8, 1e-6)])
def test_the_claimed_epsilon_is_spent(epsilon, delta, noise):
    training, _ = grown(f"epsilon={epsilon},delta={delta},noise={noise}", "secure-sum")
    claim, spent = training.claims[0], training.spent[0]
    assert (claim.epsilon, claim.delta) == (epsilon, delta)
    assert spent.epsilon == pytest.approx(epsilon, rel=1e-6)
    assert spent.epsilon <= epsilon
    assert (spent.delta, spent.unprotected) == (delta, ("rows",))
    assert spent.trusted == ("clients" if noise == "distributed" else "server",)
    assert type(parse(join(training.spent))[0]) is ApproximateDP


def test_cut_points_are_public_or_cost_epsilon():
    epsilon_of_leaves = grown()[0].spent[0].epsilon
    for defense, trusted in (("grid", ("clients", "server")), ("quantile", ("server",))):
        run = grown(defense=f"dp-{defense}-cuts[epsilon=1]+secure-sum")[0]
        claim, spent = run.claims[0], run.spent[0]
        assert (
            epsilon_of_leaves < spent.epsilon <= claim.epsilon < epsilon_of_leaves + 1
        )  # The cost of the cuts is part of the claim.
        # The claim is made without knowing how many columns are counted, so it assumes the worst.
        assert spent.epsilon > (
            claim.epsilon - 0.1 if defense == "quantile" else epsilon_of_leaves + 0.2
        )
        assert claim.trusted == spent.trusted == trusted
    exact = grown(defense="grid-cuts")[0]
    for guarantee in (exact.claims[0], exact.spent[0]):
        assert (guarantee.epsilon, guarantee.unprotected) == (math.inf, ("rows", "cuts"))
    public = grown(defense="public-cuts")[0]
    assert public.spent[0].epsilon == epsilon_of_leaves
    assert public.claims[0] == protocol().claim()
    assert join(grown("epsilon=inf")[0].spent) == "none"


def test_splits_do_not_depend_on_rows_and_columns_take_turns(exact):
    forest_of_fewer_rows = grown(rows=ROWS.take(np.arange(40)))[0].model
    for tree, other_tree in zip(exact.trees, forest_of_fewer_rows.trees, strict=True):
        assert np.array_equal(tree.feature, other_tree.feature)
        assert np.array_equal(tree.threshold, other_tree.threshold)
    features_of_trees = [set(t.feature[t.feature >= 0].tolist()) for t in exact.trees]
    assert max(map(len, features_of_trees)) <= 2
    one_feature_per_tree = grown("epsilon=inf,features_per_tree=1")[0].model
    first_features = [t.feature[0] for t in one_feature_per_tree.trees]
    assert sorted(first_features[:5]) == [0, 1, 2, 3, 4]


def test_the_server_sees_only_total_sums_if_noise_is_distributed():
    central, local_data = grown()
    assert len(list(view_of(central, ["server"], local_data).messages(LeafSums))) == 18
    shared, local_data = grown("epsilon=2,noise=distributed")
    sums = list(view_of(shared, ["server"], local_data).messages(LeafSums))
    assert {item.sender for item, _ in sums} == {"server"}
    sent = [delivery.message for delivery in shared.transcript if delivery.sender == "client-0"]
    assert all(isinstance(message.sums, Sealed) for message in sent)


def test_numeric_targets_need_a_bound():
    numbers = Schema(SCHEMA.features, "y", ())
    rows = Table(ROWS.X, ROWS.X[:, 1].astype(np.float64))
    with pytest.raises(UsageError, match="clip=None: gradients of reg:squarederror are unbounded"):
        protocol().check(numbers)
    forest = grown("epsilon=50,clip=20,learning_rate=0.5", rows=rows, schema=numbers)[0].model
    assert np.corrcoef(forest.predict(rows.X), rows.y)[0, 1] > 0.4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("epsilon=0", "epsilon=0: give a number > 0"),
        ("epsilon=nan", "epsilon=nan: give a number > 0"),
        ("delta=0", "delta must be a number between 0 and 1; got 0"),
        ("hessian_share=1", "hessian_share must be a number between 0 and 1"),
        ("max_depth=13", "max_depth=13: give a whole number from 1 to 12"),
        ("features_per_tree=-1", "features_per_tree=-1: give a whole number from 0"),
        ("clip=0", "clip must be a finite number > 0"),
        ("learning_rate=2", "learning_rate=2: give a number in"),
        ("noise=local", "unknown noise 'local'"),
    ],
)
def test_invalid_parameters_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        register.make("protocol", parse_grid(f"dp-gbdt[{options}]")[0])


def test_rows_and_columns_that_cannot_be_bounded_are_refused():
    weighted = Table(ROWS.X, ROWS.y, np.ones(90, np.float32))
    with pytest.raises(DataError, match="does not support sample weights"):
        grown(rows=weighted)
    with pytest.raises(UsageError, match=r"declare (them|ranges) in the schema"):
        grown(schema=Schema(tuple(map(Feature, "abcde")), "y", SCHEMA.classes))


def test_a_target_whose_gradient_sums_exceed_64_bits_is_refused():
    """Without noise and clip, sums of 300 residuals of a billion would wrap around."""
    X = np.random.default_rng(0).uniform(0, 1, (300, 2)).astype(np.float32)
    schema = Schema((Feature("a", low=0, high=1), Feature("b", low=0, high=1)), "y", ())
    protocol = register.make("protocol", Spec("dp-gbdt", {"epsilon": np.inf, "trees": 30}))

    def trained(unit):
        rows = Table(X, X[:, 0].astype(np.float64) * unit)
        local_data = over_clients([rows.take(part) for part in np.split(np.arange(300), 3)])
        return train(protocol, local_data, schema, seed=1).model.predict(X)

    assert np.corrcoef(trained(1e6), X[:, 0])[0, 1] > 0.9
    with pytest.raises(DataError, match="too large for sums of 64 bits"):
        trained(1e9)
