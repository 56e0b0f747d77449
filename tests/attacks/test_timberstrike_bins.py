"""TimberStrike and histograms that are off: bins are read by their weight, whatever the defense."""

import guessed
import numpy as np
import pytest
from timberstrike_world import accuracy, structured

from fedtrees.attacks.timberstrike.bins import _adding_up, _normal_posterior, _posterior
from fedtrees.core.composition import Composition
from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import Spec, parse_composed
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of

SCHEMA = Schema(tuple(Feature(f"x{k}", low=-6.0, high=6.0) for k in range(6)), "y", ("0", "1"))


def seen(defense, seed=0, name="fedtree-hist", who="server", **params):
    """Train three clients under a defense; return the view of one and the victims' rows."""
    X, y = structured(360, seed=5 + seed)
    clients = [Table(X[k::3], y[k::3]) for k in range(3)]
    settings = {"trees": 4, "max_depth": 3, "max_bin": 16, **params}
    (composed,) = parse_composed([defense])
    made = Composition(tuple(register.make("defense", s) for s in composed.parts))
    protocol = register.make("protocol", Spec(name, settings))
    done = train(protocol, over_clients(clients), SCHEMA, defense=made, seed=seed)
    victims = Table.concat(clients if who == "server" else clients[:2])
    return view_of(done, (who,), over_clients(clients)), victims, done


def attack(view, **params):
    made = register.make("attack", Spec("timberstrike", {"chains": 4, **params}))
    return made.run(view, np.random.default_rng(0))


def scores(defense, seeds=(0, 1, 2), **params):
    """Return the accuracy over seeds with bins read, and with node sums alone."""
    found = []
    for seed in seeds:
        view, victims, _ = seen(defense, seed, **params)
        both = (guessed.rows(attack(view, max_level=most)) for most in ("histograms", "statistics"))
        found.append([accuracy(rows, victims, SCHEMA) for rows in both])
    return np.mean(found, axis=0)


@pytest.mark.long
@pytest.mark.parametrize(
    "defense",
    [
        "secure-sum+hist-rounding[step=0.1]",
        "secure-sum+hist-rounding[step=1]",
        "secure-sum+laplace-hist[epsilon=16]",
        "laplace-gradient[epsilon=200]",
        "secure-sum+min-bin[k=3]",
    ],
)
def test_who_has_no_rows_is_better_off_with_bins_whatever_is_done_to_them(defense):
    bins, sums = scores(defense)
    assert bins > sums + 0.02


@pytest.mark.parametrize(("cuts", "followed"), [("", False), ("grid-cuts+", True)])
def test_who_has_no_rows_pairs_what_sketches_told_and_follows_what_a_grid_did(cuts, followed):
    view, *_ = seen(f"{cuts}secure-sum+hist-rounding[step=0.1]")
    assert ("residual_last_tree" in attack(view).notes) is followed


@pytest.mark.parametrize("step", [0.01, 0.1])
def test_rounded_sums_of_several_clients_are_whole_rows(step):
    view, victims, done = seen(f"secure-sum+hist-rounding[step={step}]", base_score=0.5)
    (first,) = guessed.counts(attack(view))
    leaf, tree = done.model.apply(victims.X)[:, 0], done.model.trees[0]
    n = np.bincount(leaf, minlength=len(tree))[tree.leaves]
    n1 = np.bincount(leaf, victims.y, len(tree))[tree.leaves]
    np.testing.assert_array_equal(first.n0 + first.n1, n)
    np.testing.assert_array_equal(first.n1, n1)


def test_exact_sums_of_a_bin_are_its_rows_whatever_one_expects():
    rng = np.random.default_rng(0)
    rows, p = rng.poisson(3, size=(200, 2)).astype(float), 0.37
    sums = np.stack([rows.sum(axis=1), rows[:, 0] * p + rows[:, 1] * (p - 1)], axis=1)
    off = np.full(rows.shape, 1e-9)
    mean, variance = _posterior(sums, off, np.full(rows.shape, 2.0), np.ones(rows.shape), p)
    np.testing.assert_allclose(mean, rows, atol=1e-6)
    assert variance.max() < 1e-6


def test_the_more_noise_the_more_a_bin_is_what_one_expects():
    raw, expected = np.array([[9.0, 2.0]]), np.array([[2.0, 1.0]])
    off = [
        np.abs(_posterior(raw, np.full((1, 2), v), expected, np.ones((1, 2)), 0.5)[0] - expected)
        for v in (0.01, 1.0, 100.0, 1e6)
    ]
    total = [float(d.sum()) for d in off]
    assert total == sorted(total, reverse=True)
    assert total[-1] < 0.01


def test_what_bins_lack_of_their_node_goes_where_they_are_least_sure():
    found = _adding_up(np.array([3.0, 4.0, 0.0]), np.array([0.0, 1.0, 0.5]), 10.0)
    np.testing.assert_allclose(found, [3, 6, 1], atol=1e-6)
    np.testing.assert_allclose(_adding_up(np.array([3.0, 4.0]), np.ones(2), 0.0), 0, atol=1e-9)


def test_a_count_that_is_exact_is_kept_beside_a_noisy_sum_of_many_rows():
    """188 rows whose number alone is told: of a covariance by inversion no digit was right."""
    off, prior = np.array([[1e-12, 6016.0]]), np.array([[83.0, 83.0]])
    mean, _ = _posterior(np.array([[188.0, 120.5]]), off, prior, np.ones((1, 2)), 0.46)
    assert mean.sum() == pytest.approx(188, abs=1e-6)
    assert mean[0, 0] > mean[0, 1] > 10


def test_two_normal_numbers_and_what_is_known_of_them():
    rng, p = np.random.default_rng(0), 0.3
    off, prior, surprise = rng.uniform(0.1, 9, (3, 40, 2))
    A = np.array([[1, 1], [p, p - 1]])
    precision = np.einsum("ki,ck,kj->cij", A, 1 / off, A)
    precision[:, [0, 1], [0, 1]] += 1 / prior
    covariance = np.linalg.inv(precision)
    moved, variance = _normal_posterior(surprise, off, prior, p)
    assert moved == pytest.approx(np.einsum("cij,kj,ck->ci", covariance, A, surprise / off))
    assert variance == pytest.approx(covariance[:, [0, 1], [0, 1]])
