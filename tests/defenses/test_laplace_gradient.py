"""Noise on gradients of rows: scale, one draw per tree, exact counts, and the spent epsilon."""

import math

import numpy as np
import pytest
from federations import sample_federation
from result_rows import read_rows
from scipy import stats

from fedtrees.core.composition import Composition
from fedtrees.core.errors import UnguardedMessageError, UsageError
from fedtrees.core.guarantee import PureDP
from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema, Table
from fedtrees.core.specs import Spec
from fedtrees.experiments.session import BenchSession
from fedtrees.experiments.suite import Suite
from fedtrees.messages.horizontal import Histogram, LeafValues, NodeSplits
from fedtrees.protocols.training import train
from fedtrees.trees.boosted.histogram import from_fixed


def make(name, **params):
    return register.make("defense", Spec(name, params))


def noisy(**params):
    return make("laplace-gradient", **params)


def run(*defenses, clients=None, schema=None, **params):
    rows, default_schema = sample_federation()
    settings = {"trees": 3, "max_depth": 3, "max_bin": 16, "base_score": 0.5, **params}
    protocol = register.make("protocol", Spec("fedtree-hist", settings))
    composition = Composition(defenses)
    return train(
        protocol,
        over_clients(clients or rows),
        schema or default_schema,
        defense=composition,
        seed=1,
    )


def sent(training, message_type, tree=None):
    return [
        delivery.message
        for delivery in training.transcript
        if isinstance(delivery.message, message_type) and tree in (None, delivery.message.tree)
    ]


def same_model(a, b):
    return all(
        np.array_equal(s.feature, t.feature) and np.array_equal(s.value, t.value)
        for s, t in zip(a.model.trees, b.model.trees, strict=True)
    )


@pytest.mark.long
def test_a_sum_over_n_rows_carries_n_times_the_declared_variance():
    # With this learning rate, gradients do not change from tree to tree.
    constant_gradients = {"trees": 150, "max_depth": 1, "learning_rate": 1e-9}
    defense = noisy(epsilon=150)
    noisy_run, exact_run = run(defense, **constant_gradients), run(**constant_gradients)
    pairs = zip(sent(noisy_run, Histogram), sent(exact_run, Histogram), strict=True)
    noise = np.array(
        [
            from_fixed((noisy_message.totals - exact_message.totals)[0, 0])
            for noisy_message, exact_message in pairs
        ]
    )
    public = sample_federation()[1], noisy_run.protocol.parameters
    channel = defense.channels(*public)["gradients", "g"]
    variance = channel.posterior_moments(np.zeros(1))[1][0]
    # The variance is 2 scale^2. The scale is 2 / e, where e = 150 / (2 x 150) = 1/2.
    assert variance == 2 * 4.0**2
    sums = (noise**2).sum() / (80 * variance)  # 80 rows a client: nearly normal
    # 80 rows per client make sums nearly normal.
    assert stats.chi2.cdf(sums, len(noise)) == pytest.approx(0.5, abs=0.499)
    assert abs(np.corrcoef(noise[::3], noise[1::3])[0, 1]) < 4 / math.sqrt(150)


@pytest.mark.long
def test_the_noise_of_one_row_is_laplace():
    rows, _ = sample_federation(rows=6)
    constant_gradients = {"trees": 400, "max_depth": 1, "learning_rate": 1e-9, "clients": rows}
    noisy_run, exact_run = (
        run(noisy(epsilon=800), cuts="public", **constant_gradients),
        run(cuts="public", **constant_gradients),
    )
    differences = [
        # A bin of one row, or of two.
        (noisy_message.sums[0] - exact_message.sums[0])[:, 0][exact_message.sums[0, :, 1] > 0]
        for noisy_message, exact_message in zip(
            sent(noisy_run, Histogram), sent(exact_run, Histogram), strict=True
        )
    ]
    single = [
        from_fixed(difference[0])
        for difference, message in zip(differences, sent(noisy_run, Histogram), strict=True)
        if from_fixed(message.sums[0][message.sums[0, :, 1] > 0][0, 1]) == 1
    ]
    assert len(single) >= 400
    assert stats.kstest(np.array(single) / 2.0, "laplace").pvalue > 1e-3


def test_all_sums_of_a_tree_use_the_same_draw():
    training = run(noisy(epsilon=3), trees=2, max_depth=2)
    for tree in range(2):
        _, child_splits = sent(training, NodeSplits, tree)
        parts = sent(training, Histogram, tree)
        at_root, at_child = parts[:3], parts[3:]
        # No value is missing, so the bins of a feature add up to the total.
        for part in at_root:
            np.testing.assert_array_equal(part.sums[0, :16].sum(axis=0), part.totals[0])
        (built_node,) = at_child[0].nodes
        sum_of_g = sum(from_fixed(p.sums[0, :16, 0].sum()) for p in at_child)
        announced_g = dict(zip(child_splits.nodes.tolist(), child_splits.g, strict=True))
        assert sum_of_g == pytest.approx(announced_g[int(built_node)], abs=1e-6)
    first, second = (
        sent(training, Histogram, tree_number)[0].totals[0, 0] for tree_number in range(2)
    )
    assert abs(from_fixed(first - second)) > 1  # Another tree has another draw.


def test_counts_are_exact_in_every_tree_and_include_every_row():
    training = run(noisy(epsilon=3), trees=5)
    rows = Table.concat(sample_federation()[0])
    leaves = training.model.apply(rows.X)
    for tree_number, message in enumerate(sent(training, LeafValues)):
        counts = [(leaves[:, tree_number] == node).sum() for node in message.nodes]
        np.testing.assert_array_equal(message.h, counts)
        np.testing.assert_allclose(message.value, -0.3 * message.g / (message.h + 1), rtol=1e-5)


def test_rows_that_a_round_does_not_sample_add_neither_noise_nor_count():
    clients, _ = sample_federation()
    training = run(noisy(epsilon=3), subsample=0.5, trees=6)
    for message in sent(training, Histogram):
        empty = message.sums[..., 1] == 0
        assert (message.sums[empty] == 0).all()
        if message.totals.size:
            count = from_fixed(message.totals[0, 1])
            assert count == round(count)
            assert 0 < count < len(clients[0])


def test_next_to_no_noise_is_no_defense_where_hessians_are_1_already():
    rows, schema = sample_federation()
    numbers = {"schema": Schema(schema.features, "value", ()), "objective": "reg:squarederror",
               "clients": [Table(t.X, t.y.astype(float)) for t in rows]}  # fmt: skip
    assert same_model(run(noisy(epsilon=1e12), **numbers), run(**numbers))


@pytest.mark.parametrize("trees", [2, 7])
def test_claimed_and_spent_epsilon(trees):
    defense = noisy(epsilon=8)
    assert str(defense.claim()) == "pure-dp[epsilon=8]"
    spent = defense.spent(run(defense, trees=trees, cuts="public").transcript)
    # A row spends half of the budget on the leaves, and its bins are exact.
    assert spent == PureDP(math.inf, histograms=pytest.approx(4.0), unprotected=("counts",))
    spent = defense.spent(run(defense, trees=trees, base_score=None).transcript)
    assert spent.unprotected == ("counts", "cuts", "base-score")


def test_with_several_classes_every_tree_spends_its_share():
    rows, schema = sample_federation()
    three_classes = Schema(schema.features, "label", ("a", "b", "c"))
    clients = [Table(table.X, table.y + (table.X[:, 0] > 1)) for table in rows]
    defense = noisy(epsilon=8)
    training = run(defense, clients=clients, schema=three_classes, base_score=None, trees=4)
    assert len(training.model) == 12
    assert defense.spent(training.transcript).histograms == pytest.approx(4.0)
    assert defense.scale(three_classes, training.protocol.parameters) == pytest.approx(
        2 * 2 * 12 / 8
    )


def test_a_tighter_clip_spends_as_much_with_less_noise():
    defense = noisy(epsilon=8, clip=0.1)
    training = run(defense, cuts="public")
    assert defense.spent(training.transcript).histograms == pytest.approx(4.0)
    unclipped = noisy(epsilon=8)
    scales = [d.scale(training.schema, training.protocol.parameters) for d in (defense, unclipped)]
    assert scales[0] == pytest.approx(0.1 * scales[1])
    noiseless = run(noisy(epsilon=1e9, clip=0.1), max_depth=1, trees=1)
    (leaf,) = sent(noiseless, LeafValues)
    assert (np.abs(leaf.g) <= 0.1 * leaf.h + 1e-3).all()


@pytest.mark.parametrize("other", ["laplace-hist", "min-bin"])
def test_defenses_that_rely_on_bounded_hessians_are_refused_with_it(other):
    required_parameters = {"laplace-hist": {"epsilon": 4.0}}
    parts = (noisy(epsilon=8), make(other, **required_parameters.get(other, {})))
    for pair in (parts, parts[::-1]):
        with pytest.raises(UsageError, match=f"'laplace-gradient' sets .* {other!r} relies on"):
            Composition(pair)


@pytest.mark.parametrize("other", ["secure-sum", "split-only"])
def test_hiding_the_sums_changes_no_model(other):
    without_it, with_it = run(noisy(epsilon=8)), run(noisy(epsilon=8), make(other))
    assert same_model(without_it, with_it)
    has_hessians = [message.h is not None for message in sent(with_it, LeafValues)]
    assert not any(has_hessians) if other == "split-only" else all(has_hessians)


def test_losses_of_held_out_rows_are_refused_as_unguarded():
    with pytest.raises(UnguardedMessageError, match="about to send ValidationLoss"):
        run(noisy(epsilon=8), early_stopping_rounds=2, validation_fraction=0.3)


@pytest.mark.parametrize("name", ["epsilon", "clip"])
@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, "1", True])
def test_parameters_are_finite_and_positive(name, value):
    with pytest.raises(UsageError, match=f"{name} must be a finite number > 0"):
        noisy(**{"epsilon": 1.0, name: value})


@pytest.mark.long
def test_a_benchmark_writes_the_claim_and_the_spending_of_each_row(tmp_path):
    suite = """
name = "noise"
seeds = [0]
[[grid]]
data = ["wine"]
protocols = ["fedtree-hist[trees=2,max_depth=2,max_bin=16]"]
defenses = ["split-only+laplace-gradient[epsilon=8]"]
attacks = ["random-leaf"]
"""
    bench = BenchSession(Suite.parse(suite, "noise"), tmp_path / "run")
    bench.open(resume=False)
    bench.run()
    rows = [row for row in read_rows(tmp_path / "run") if "laplace-gradient" in row["defense"]]
    assert {row["claimed"] for row in rows} == {"structural+pure-dp[epsilon=8]"}
    spent = "structural+pure-dp[epsilon=inf,histograms=4,unprotected=counts+cuts+base-score]"
    assert {row["spent"] for row in rows} == {spent}
    assert {"ra", "auc"} <= {row["metric"] for row in rows}
