"""TimberStrike under noise on rows' gradients: what it makes of counts, sums and bare values."""

import runpy
from importlib import resources

import guessed
import numpy as np
import pytest
from federations import sample_federation, view_in
from scipy import stats

from fedtrees.attacks.clients.per_client import observe_clients
from fedtrees.attacks.counts.leaf_sums import NOISE_FLOOR, leaf_sums, victim_sums
from fedtrees.attacks.observations.noise_channels import row_variance
from fedtrees.attacks.observations.reading import read_boosting
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


def seen(*specs, name="fedtree-hist", **params):
    """Train under some defenses; return the view of client 2, the victims' rows and the run."""
    clients, schema = sample_federation()
    settings = {"trees": 12, "max_depth": 3, "max_bin": 16, "base_score": 0.5, **params}
    defense = Composition(tuple(register.make("defense", s) for s in specs))
    protocol = register.make("protocol", Spec(name, settings))
    done = train(protocol, over_clients(clients), schema, defense=defense, seed=4)
    return view_of(done, ("client-2",), over_clients(clients)), Table.concat(clients[:2]), done


def noise(epsilon):
    return Spec("laplace-gradient", {"epsilon": epsilon})


def attack(view, **params):
    made = register.make("attack", Spec("timberstrike", {"chains": 1, **params}))
    return made.run(view, np.random.default_rng(0))


def true_gradients(rows, done):
    """Yield every tree's sums of gradients per leaf, without noise, and numbers of rows."""
    margin = np.zeros(len(rows), dtype=np.float32)
    for tree, leaf in zip(done.model.trees, done.model.apply(rows.X).T, strict=True):
        g = logistic_gradients(margin, rows.y)[:, 0]
        n = len(tree)
        yield np.bincount(leaf, g, n)[tree.leaves], np.bincount(leaf, minlength=n)[tree.leaves]
        margin += tree.value[leaf]


@pytest.mark.long
@pytest.mark.parametrize("name", ["fedtree-hist", "nvflare-hist"])
def test_the_noise_of_a_sum_is_what_evidence_says(name):
    view, victims, done = seen(noise(600), name=name, trees=60)
    evidence = read_boosting(view)
    variance = row_variance(view)
    roots, chosen = [], []
    everyone = Table.concat([victims, view.rows])
    for t, (g, n) in enumerate(true_gradients(everyone, done)):
        tree, known = evidence.trees[t], evidence.distortion.noise[t]
        told, rows = leaf_sums(evidence, t)
        np.testing.assert_array_equal(rows, n)
        np.testing.assert_allclose(known.g[tree.leaves], n * variance)
        assert not known.h.any()
        roots.append((told.sum() - g.sum()) / np.sqrt(known.g[0]))
        chosen.append((told - g) / np.sqrt(known.g[tree.leaves]))
    squares = (np.array(roots) ** 2).sum()
    assert stats.chi2.cdf(squares, len(roots)) == pytest.approx(0.5, abs=0.499)
    # splits are found where the noise is large, so that leaves have more of it than a sum of theirs
    assert (np.concatenate(chosen) ** 2).mean() > 2


def test_every_row_is_counted_and_own_ones_are_taken_out():
    view, victims, done = seen(noise(5))
    evidence = read_boosting(view)
    leaves = done.model.apply(victims.X)
    for t, sums in enumerate(victim_sums(evidence, view.rows, len(evidence.trees))):
        counts = np.bincount(leaves[:, t], minlength=len(evidence.trees[t]))
        np.testing.assert_array_equal(sums.h, counts[evidence.trees[t].leaves])
        assert sums.var_h.max() <= NOISE_FLOOR
    (first,) = guessed.counts(attack(view))
    truth = np.bincount(leaves[:, 0], minlength=len(evidence.trees[0]))[evidence.trees[0].leaves]
    np.testing.assert_array_equal(first.n0 + first.n1, truth)


def test_under_overwhelming_noise_labels_come_out_as_own_rows_have_them():
    view, victims, _ = seen(noise(0.5))
    share = view.rows.y.mean()
    for params in ({}, {"max_level": "values"}):
        guess = attack(view, **params)
        assert len(guessed.rows(guess)) == len(victims)
        assert guessed.rows(guess).y.mean() == pytest.approx(share, abs=0.05)
    ignored = attack(view, noise="ignored")
    assert abs(guessed.rows(ignored).y.mean() - share) > 0.05


def test_bare_values_of_noisy_sums_are_not_taken_for_whole_rows():
    view, victims, done = seen(Spec("split-only"), noise(5))
    evidence = read_boosting(view)
    assert evidence.observed.level == "values"
    leaf = done.model.apply(victims.X)[:, 0]
    truth = np.bincount(leaf, victims.y, len(evidence.trees[0]))[evidence.trees[0].leaves]
    errors = []
    for how in ("declared", "ignored"):
        (first,) = guessed.counts(attack(view, noise=how))
        errors.append(np.abs(first.n1 - truth).sum())
    assert errors[0] < 0.6 * errors[1]


def test_where_nobody_counts_own_rows_say_how_much_noise_a_leaf_has():
    view, _, _ = seen(Spec("split-only"), noise(30))
    variance = row_variance(view)
    evidence = read_boosting(view)
    for tree, known in zip(evidence.trees, evidence.distortion.noise, strict=True):
        rows = known.g / variance
        assert rows[0] == pytest.approx(view.n_rows)
        for node in np.flatnonzero(tree.feature >= 0):
            assert rows[node] == pytest.approx(rows[tree.left[node]] + rows[tree.right[node]])
        own = np.bincount(tree_leaf(tree, view.rows.X), minlength=len(tree))[tree.leaves]
        assert stats.spearmanr(rows[tree.leaves], own).statistic == pytest.approx(1, abs=1e-9)


def test_bare_values_are_as_uncertain_as_the_sums_behind_them():
    view, _, _ = seen(Spec("split-only"), noise(30))
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


def test_as_published_gradients_are_read_too_small():
    view, _, _ = seen(noise(1e9))
    evidence = read_boosting(view)
    read = as_published(evidence)
    assert not read.constant_hessian
    assert read.distortion.noise is None
    for t in range(len(evidence.trees)):
        (g, n), (small, quarter) = leaf_sums(evidence, t), leaf_sums(read, t)
        np.testing.assert_allclose(quarter, n / 4)
        np.testing.assert_allclose(small, g * (n / 4 + 1) / (n + 1), rtol=1e-4, atol=1e-4)
    plain = read_boosting(seen()[0])
    assert as_published(plain).trees is plain.trees


def test_rounding_of_a_defense_never_seen_before_is_read_from_its_channel():
    """The template's defense rounds what is told beside splits and leaf values."""
    template = resources.files("fedtrees.cli") / "templates" / "defense.py"
    RoundedStatistics = runpy.run_path(str(template))["RoundedStatistics"]

    clients, schema = sample_federation()
    protocol = register.make("protocol", Spec("fedtree-hist", {"trees": 2, "max_depth": 2}))
    for step in (0.5, 2.0):
        by = Composition((RoundedStatistics(step),))
        done = train(protocol, over_clients(clients), schema, defense=by, seed=1)
        evidence = read_boosting(view_of(done, ("client-0",), over_clients(clients)))
        assert evidence.distortion.noise[0].g == pytest.approx(step**2 / 12)
        assert evidence.distortion.noise[0].h == pytest.approx(step**2 / 12)
        own = read_boosting(view_of(done, ("server",), over_clients(clients)))
        assert own.distortion.noise is None  # it rounds what it sends, not what it has


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
