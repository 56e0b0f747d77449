"""Noise on rows' gradients: its size, one draw a tree, exact counts, what is claimed and spent."""

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
    rows, known = sample_federation()
    settings = {"trees": 3, "max_depth": 3, "max_bin": 16, "base_score": 0.5, **params}
    protocol = register.make("protocol", Spec("fedtree-hist", settings))
    made = Composition(defenses)
    return train(protocol, over_clients(clients or rows), schema or known, defense=made, seed=1)


def sent(done, kind, tree=None):
    return [
        d.message
        for d in done.transcript
        if isinstance(d.message, kind) and tree in (None, d.message.tree)
    ]


def same_model(a, b):
    return all(
        np.array_equal(s.feature, t.feature) and np.array_equal(s.value, t.value)
        for s, t in zip(a.model.trees, b.model.trees, strict=True)
    )


@pytest.mark.long
def test_a_sum_over_n_rows_carries_n_times_the_declared_variance():
    still = {"trees": 150, "max_depth": 1, "learning_rate": 1e-9}  # gradients stay what they were
    defense = noisy(epsilon=150)
    done, plain = run(defense, **still), run(**still)
    pairs = zip(sent(done, Histogram), sent(plain, Histogram), strict=True)
    noise = np.array([from_fixed((a.totals - b.totals)[0, 0]) for a, b in pairs])
    public = sample_federation()[1], done.protocol.parameters
    law = defense.channels(*public)["gradients", "g"]
    variance = law.posterior_moments(np.zeros(1))[1][0]
    assert variance == 2 * 4.0**2  # 2 / e, and e = 150 / (2 x 150)
    sums = (noise**2).sum() / (80 * variance)  # 80 rows a client: nearly normal
    assert stats.chi2.cdf(sums, len(noise)) == pytest.approx(0.5, abs=0.499)
    assert abs(np.corrcoef(noise[::3], noise[1::3])[0, 1]) < 4 / math.sqrt(150)


@pytest.mark.long
def test_the_noise_of_one_row_is_laplace():
    rows, _ = sample_federation(rows=6)
    still = {"trees": 400, "max_depth": 1, "learning_rate": 1e-9, "clients": rows}
    done, plain = run(noisy(epsilon=800), cuts="public", **still), run(cuts="public", **still)
    differ = [
        (a.sums[0] - b.sums[0])[:, 0][b.sums[0, :, 1] > 0]  # a bin of a row, or of two
        for a, b in zip(sent(done, Histogram), sent(plain, Histogram), strict=True)
    ]
    single = [from_fixed(d[0]) for d, m in zip(differ, sent(done, Histogram), strict=True)
              if from_fixed(m.sums[0][m.sums[0, :, 1] > 0][0, 1]) == 1]  # fmt: skip
    assert len(single) >= 400
    assert stats.kstest(np.array(single) / 2.0, "laplace").pvalue > 1e-3


def test_one_draw_serves_all_sums_of_a_tree():
    done = run(noisy(epsilon=3), trees=2, max_depth=2)
    for tree in range(2):
        _, below = sent(done, NodeSplits, tree)
        parts = sent(done, Histogram, tree)
        at_root, at_child = parts[:3], parts[3:]
        for part in at_root:  # no value is missing: a feature's bins add up to the total
            np.testing.assert_array_equal(part.sums[0, :16].sum(axis=0), part.totals[0])
        (built,) = at_child[0].nodes
        g = sum(from_fixed(p.sums[0, :16, 0].sum()) for p in at_child)
        told = dict(zip(below.nodes.tolist(), below.g, strict=True))
        assert g == pytest.approx(told[int(built)], abs=1e-6)
    first, second = (sent(done, Histogram, t)[0].totals[0, 0] for t in range(2))
    assert abs(from_fixed(first - second)) > 1  # another draw for another tree


def test_counts_are_exact_in_every_tree_and_leaves_are_of_whole_rows():
    done = run(noisy(epsilon=3), trees=5)
    rows = Table.concat(sample_federation()[0])
    leaves = done.model.apply(rows.X)
    for t, message in enumerate(sent(done, LeafValues)):
        counts = [(leaves[:, t] == node).sum() for node in message.nodes]
        np.testing.assert_array_equal(message.h, counts)
        np.testing.assert_allclose(message.value, -0.3 * message.g / (message.h + 1), rtol=1e-5)


def test_rows_that_a_round_leaves_out_bring_neither_noise_nor_count():
    everyone, _ = sample_federation()
    done = run(noisy(epsilon=3), subsample=0.5, trees=6)
    for message in sent(done, Histogram):
        empty = message.sums[..., 1] == 0
        assert (message.sums[empty] == 0).all()
        if message.totals.size:
            count = from_fixed(message.totals[0, 1])
            assert count == round(count)
            assert 0 < count < len(everyone[0])


def test_next_to_no_noise_is_no_defense_where_hessians_are_1_already():
    rows, schema = sample_federation()
    numbers = {"schema": Schema(schema.features, "value", ()), "objective": "reg:squarederror",
               "clients": [Table(t.X, t.y.astype(float)) for t in rows]}  # fmt: skip
    assert same_model(run(noisy(epsilon=1e12), **numbers), run(**numbers))


@pytest.mark.parametrize("trees", [2, 7])
def test_what_is_claimed_and_what_is_spent(trees):
    defense = noisy(epsilon=8)
    assert str(defense.claim()) == "pure-dp[epsilon=8]"
    spent = defense.spent(run(defense, trees=trees, cuts="public").transcript)
    # a row pays for the leaves' half of the budget, and its bins cross exactly
    assert spent == PureDP(math.inf, histograms=pytest.approx(4.0), unprotected=("counts",))
    spent = defense.spent(run(defense, trees=trees, base_score=None).transcript)
    assert spent.unprotected == ("counts", "cuts", "base-score")


def test_of_several_classes_every_tree_has_its_share():
    rows, schema = sample_federation()
    three = Schema(schema.features, "label", ("a", "b", "c"))
    clients = [Table(t.X, t.y + (t.X[:, 0] > 1)) for t in rows]
    defense = noisy(epsilon=8)
    done = run(defense, clients=clients, schema=three, base_score=None, trees=4)
    assert len(done.model) == 12
    assert defense.spent(done.transcript).histograms == pytest.approx(4.0)
    assert defense.scale(three, done.protocol.parameters) == pytest.approx(2 * 2 * 12 / 8)


def test_a_tighter_clip_costs_as_much_with_less_noise():
    defense = noisy(epsilon=8, clip=0.1)
    done = run(defense, cuts="public")
    assert defense.spent(done.transcript).histograms == pytest.approx(4.0)
    wide = noisy(epsilon=8)
    scales = [d.scale(done.schema, done.protocol.parameters) for d in (defense, wide)]
    assert scales[0] == pytest.approx(0.1 * scales[1])
    noiseless = run(noisy(epsilon=1e9, clip=0.1), max_depth=1, trees=1)
    (leaf,) = sent(noiseless, LeafValues)
    assert (np.abs(leaf.g) <= 0.1 * leaf.h + 1e-3).all()


@pytest.mark.parametrize("other", ["laplace-hist", "min-bin"])
def test_what_counts_on_bounded_hessians_does_not_go_with_it(other):
    known = {"laplace-hist": {"epsilon": 4.0}}
    parts = (noisy(epsilon=8), make(other, **known.get(other, {})))
    for pair in (parts, parts[::-1]):
        with pytest.raises(UsageError, match=f"'laplace-gradient' sets .* {other!r} relies on"):
            Composition(pair)


@pytest.mark.parametrize("other", ["secure-sum", "split-only"])
def test_who_is_told_the_sums_changes_no_model(other):
    alone, both = run(noisy(epsilon=8)), run(noisy(epsilon=8), make(other))
    assert same_model(alone, both)
    told = [m.h is not None for m in sent(both, LeafValues)]
    assert not any(told) if other == "split-only" else all(told)


def test_losses_of_held_out_rows_are_not_its_to_send():
    with pytest.raises(UnguardedMessageError, match="about to send ValidationLoss"):
        run(noisy(epsilon=8), early_stopping_rounds=2, validation_fraction=0.3)


@pytest.mark.parametrize("name", ["epsilon", "clip"])
@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, "1", True])
def test_parameters_are_finite_and_positive(name, value):
    with pytest.raises(UsageError, match=f"{name} must be a finite number > 0"):
        noisy(**{"epsilon": 1.0, name: value})


@pytest.mark.long
def test_a_bench_writes_claim_and_spending_side_by_side(tmp_path):
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
    rows = [r for r in read_rows(tmp_path / "run") if "laplace-gradient" in r["defense"]]
    assert {r["claimed"] for r in rows} == {"structural+pure-dp[epsilon=8]"}
    spent = "structural+pure-dp[epsilon=inf,histograms=4,unprotected=counts+cuts+base-score]"
    assert {r["spent"] for r in rows} == {spent}
    assert {"ra", "auc"} <= {r["metric"] for r in rows}
