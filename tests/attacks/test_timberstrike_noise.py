"""TimberStrike under noise on the gradients of rows: the treatment of counts, sums and leaf
values.
"""

import runpy
from importlib import resources

import guessed
import numpy as np
import pytest
from federations import sample_federation, view_in
from scipy import stats

from fedtrees.attacks.clients.per_client import observe_clients
from fedtrees.attacks.counts.leaf_sums import NOISE_FLOOR, leaf_sums, victim_sums
from fedtrees.attacks.observations.reading import read_boosting
from fedtrees.attacks.observations.replay import row_variance
from fedtrees.attacks.reconstruction.boxes import Grid
from fedtrees.attacks.reconstruction.context import equations
from fedtrees.attacks.timberstrike.attack import TimberStrike, as_published
from fedtrees.core.composition import Composition
from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.specs import Spec
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.boosted.losses import logistic_gradients


def view_under(*specs, name="fedtree-hist", **params):
    """Train under some defenses; return the view of client 2, the victims' rows and the
    training.
    """
    clients, schema = sample_federation()
    settings = {"trees": 12, "max_depth": 3, "max_bin": 16, "base_score": 0.5, **params}
    defense = Composition(tuple(register.make("defense", spec) for spec in specs))
    protocol = register.make("protocol", Spec(name, settings))
    training = train(protocol, over_clients(clients), schema, defense=defense, seed=4)
    return (
        view_of(training, ("client-2",), over_clients(clients)),
        Table.concat(clients[:2]),
        training,
    )


def gradient_noise(epsilon):
    return Spec("laplace-gradient", {"epsilon": epsilon})


def run_attack(view, **params):
    attack_object = register.make("attack", Spec("timberstrike", {"chains": 1, **params}))
    return attack_object.run(view, np.random.default_rng(0))


def true_gradients(rows, training):
    """Yield, for every tree, the sums of gradients per leaf without noise, and the numbers of
    rows.
    """
    margin = np.zeros(len(rows), dtype=np.float32)
    for tree, leaf in zip(training.model.trees, training.model.apply(rows.X).T, strict=True):
        gradients = logistic_gradients(margin, rows.y)[:, 0]
        n_nodes = len(tree)
        yield (
            np.bincount(leaf, gradients, n_nodes)[tree.leaves],
            np.bincount(leaf, minlength=n_nodes)[tree.leaves],
        )
        margin += tree.value[leaf]


@pytest.mark.long
@pytest.mark.parametrize("name", ["fedtree-hist", "nvflare-hist"])
def test_the_noise_of_sums_has_the_variance_of_the_evidence(name):
    view, victims, training = view_under(gradient_noise(600), name=name, trees=60)
    evidence = read_boosting(view)
    variance = row_variance(view)
    root_scores, leaf_scores = [], []
    all_rows = Table.concat([victims, view.rows])
    for t, (true_sums, n_rows) in enumerate(true_gradients(all_rows, training)):
        tree, declared_noise = evidence.trees[t], evidence.distortion.noise[t]
        noisy_sums, rows = leaf_sums(evidence, t)
        np.testing.assert_array_equal(rows, n_rows)
        np.testing.assert_allclose(declared_noise.g[tree.leaves], n_rows * variance)
        assert not declared_noise.h.any()
        root_scores.append((noisy_sums.sum() - true_sums.sum()) / np.sqrt(declared_noise.g[0]))
        leaf_scores.append((noisy_sums - true_sums) / np.sqrt(declared_noise.g[tree.leaves]))
    squares = (np.array(root_scores) ** 2).sum()
    assert stats.chi2.cdf(squares, len(root_scores)) == pytest.approx(0.5, abs=0.499)
    # Splits are found where the noise is large, so leaves have more noise than a random sum.
    assert (np.concatenate(leaf_scores) ** 2).mean() > 2


def test_all_rows_are_counted_and_local_rows_are_subtracted():
    view, victims, training = view_under(gradient_noise(5))
    evidence = read_boosting(view)
    leaves = training.model.apply(victims.X)
    for t, sums in enumerate(victim_sums(evidence, view.rows, len(evidence.trees))):
        counts = np.bincount(leaves[:, t], minlength=len(evidence.trees[t]))
        np.testing.assert_array_equal(sums.h, counts[evidence.trees[t].leaves])
        assert sums.var_h.max() <= NOISE_FLOOR
    (first,) = guessed.counts(run_attack(view))
    truth = np.bincount(leaves[:, 0], minlength=len(evidence.trees[0]))[evidence.trees[0].leaves]
    np.testing.assert_array_equal(first.n0 + first.n1, truth)


def test_under_overwhelming_noise_labels_have_the_local_share():
    view, victims, _ = view_under(gradient_noise(0.5))
    share = view.rows.y.mean()
    for params in ({}, {"max_level": "values"}):
        guess = run_attack(view, **params)
        assert len(guessed.rows(guess)) == len(victims)
        assert guessed.rows(guess).y.mean() == pytest.approx(share, abs=0.05)
    ignored = run_attack(view, noise="ignored")
    assert abs(guessed.rows(ignored).y.mean() - share) > 0.05


def test_leaf_values_of_noisy_sums_are_not_read_as_exact():
    view, victims, training = view_under(Spec("split-only"), gradient_noise(5))
    evidence = read_boosting(view)
    assert evidence.observed.level == "values"
    leaf = training.model.apply(victims.X)[:, 0]
    truth = np.bincount(leaf, victims.y, len(evidence.trees[0]))[evidence.trees[0].leaves]
    errors = []
    for handling in ("declared", "ignored"):
        (first,) = guessed.counts(run_attack(view, noise=handling))
        errors.append(np.abs(first.n1 - truth).sum())
    assert errors[0] < 0.6 * errors[1]


def test_without_counts_the_noise_of_a_leaf_is_estimated_from_local_rows():
    view, _, _ = view_under(Spec("split-only"), gradient_noise(30))
    variance = row_variance(view)
    evidence = read_boosting(view)
    for tree, declared_noise in zip(evidence.trees, evidence.distortion.noise, strict=True):
        rows = declared_noise.g / variance
        assert rows[0] == pytest.approx(view.n_rows)
        for node in np.flatnonzero(tree.feature >= 0):
            assert rows[node] == pytest.approx(rows[tree.left[node]] + rows[tree.right[node]])
        local_counts = np.bincount(tree_leaf(tree, view.rows.X), minlength=len(tree))[tree.leaves]
        assert stats.spearmanr(rows[tree.leaves], local_counts).statistic == pytest.approx(
            1, abs=1e-9
        )


def test_leaf_values_are_as_uncertain_as_their_sums():
    view, _, _ = view_under(Spec("split-only"), gradient_noise(30))
    evidence = read_boosting(view)
    leaves = Grid.of(evidence.trees, len(view.schema.features)).leaves(evidence.trees[1])
    sums = victim_sums(evidence, view.rows, 2)[1]
    _, variance = equations(evidence, 1, sums, leaves)
    np.testing.assert_allclose(variance[:, 0], sums.var_g)
    assert sums.var_g.min() > 1


def tree_leaf(tree, X):
    node = np.zeros(len(X), dtype=int)
    for _ in range(len(tree)):
        inner = tree.feature[node] >= 0
        left = X[np.arange(len(X)), np.maximum(tree.feature[node], 0)] < tree.threshold[node]
        node = np.where(inner, np.where(left, tree.left[node], tree.right[node]), node)
    return node


def test_the_published_attack_reads_gradients_too_small():
    view, _, _ = view_under(gradient_noise(1e9))
    evidence = read_boosting(view)
    published_evidence = as_published(evidence)
    assert not published_evidence.constant_hessian
    assert published_evidence.distortion.noise is None
    for t in range(len(evidence.trees)):
        (g, n), (small, quarter) = leaf_sums(evidence, t), leaf_sums(published_evidence, t)
        np.testing.assert_allclose(quarter, n / 4)
        np.testing.assert_allclose(small, g * (n / 4 + 1) / (n + 1), rtol=1e-4, atol=1e-4)
    evidence_without_noise = read_boosting(view_under()[0])
    assert as_published(evidence_without_noise).trees is evidence_without_noise.trees


def test_rounding_of_a_new_defense_is_read_from_its_channel():
    """The template's defense rounds the statistics that are sent with splits and leaf values."""
    template = resources.files("fedtrees.cli") / "templates" / "defense.py"
    RoundedStatistics = runpy.run_path(str(template))["RoundedStatistics"]

    clients, schema = sample_federation()
    protocol = register.make("protocol", Spec("fedtree-hist", {"trees": 2, "max_depth": 2}))
    for step in (0.5, 2.0):
        defense = Composition((RoundedStatistics(step),))
        training = train(protocol, over_clients(clients), schema, defense=defense, seed=1)
        evidence = read_boosting(view_of(training, ("client-0",), over_clients(clients)))
        assert evidence.distortion.noise[0].g == pytest.approx(step**2 / 12)
        assert evidence.distortion.noise[0].h == pytest.approx(step**2 / 12)
        server_evidence = read_boosting(view_of(training, ("server",), over_clients(clients)))
        # The server rounds only the values that it sends.
        assert server_evidence.distortion.noise is None


def test_ignored_noise_is_ignored_in_the_sums_of_single_clients():
    view = view_in(
        "fedtree-hist[trees=2,max_depth=3]", "server", defense="laplace-hist[epsilon=50]"
    )
    victims = observe_clients(view)
    assert len(victims) == 3
    assert all(victim.evidence.distortion.noise is not None for victim in victims)
    declared, ignored = (
        guessed.rows(TimberStrike(noise=noise, chains=1).run(view, np.random.default_rng(0)))
        for noise in ("declared", "ignored")
    )
    assert not np.array_equal(declared.X, ignored.X)
