"""TimberStrike with distorted histograms: bins are weighted by their uncertainty under every
defense.
"""

from dataclasses import dataclass
from typing import ClassVar

import guessed
import numpy as np
import pytest
from timberstrike_world import accuracy, structured

from fedtrees.attacks.timberstrike.bins import _adding_up, _normal_posterior, _posterior
from fedtrees.core.channel import Channel
from fedtrees.core.composition import Composition
from fedtrees.core.defense import ChannelDefense
from fedtrees.core.guarantee import Structural
from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import Spec, parse_composed
from fedtrees.messages.horizontal import Histogram
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of

SCHEMA = Schema(tuple(Feature(f"x{k}", low=-6.0, high=6.0) for k in range(6)), "y", ("0", "1"))


def view_under(defense, seed=0, name="fedtree-hist", principal="server", **params):
    """Train three clients under a defense; return the view of one party, the victims' rows and
    the training.
    """
    X, y = structured(360, seed=5 + seed)
    clients = [Table(X[k::3], y[k::3]) for k in range(3)]
    settings = {"trees": 4, "max_depth": 3, "max_bin": 16, **params}
    defense_of_run = defense
    if isinstance(defense, str):
        (composed,) = parse_composed([defense])
        parts = tuple(register.make("defense", spec) for spec in composed.parts)
        defense_of_run = Composition(parts)
    protocol = register.make("protocol", Spec(name, settings))
    training = train(protocol, over_clients(clients), SCHEMA, defense=defense_of_run, seed=seed)
    victims = Table.concat(clients if principal == "server" else clients[:2])
    return view_of(training, (principal,), over_clients(clients)), victims, training


@dataclass(frozen=True)
class SignOfGradients(Channel):
    """Send the sign of a gradient sum, and the exact hessian sum."""

    scale: float = 1.0
    deterministic: ClassVar[bool] = True

    def send(self, x, rng=None):
        y = np.array(x)
        y[..., 0] = self.scale * np.sign(y[..., 0])
        return y

    def in_units_of(self, units, integers=True):
        return SignOfGradients(self.scale * float(np.ravel(units)[0]))

    def preimage(self, lo, hi):
        first, last = np.array(lo, np.float64), np.array(hi, np.float64)
        first[..., 0], last[..., 0] = -np.inf, np.inf
        return first, last


@dataclass(frozen=True)
class SignOnly(ChannelDefense):
    roles = frozenset({"client"})
    handled_types = (Histogram,)

    def claim(self):
        return Structural()

    def channels(self, schema, parameters):
        return dict.fromkeys([(Histogram, "sums"), (Histogram, "totals")], SignOfGradients())


def test_rows_are_reconstructed_if_nothing_is_stated_about_one_of_two_sums():
    view, victims, _ = view_under(Composition((SignOnly(),)))
    assert len(guessed.rows(run_attack(view))) == len(victims)


def run_attack(view, **params):
    attack_object = register.make("attack", Spec("timberstrike", {"chains": 4, **params}))
    return attack_object.run(view, np.random.default_rng(0))


def accuracies_with_and_without_bins(defense, seeds=(0, 1, 2), **params):
    """Return the mean accuracies with bins and with node sums only."""
    accuracies = []
    for seed in seeds:
        view, victims, _ = view_under(defense, seed, **params)
        guesses = (
            guessed.rows(run_attack(view, max_level=level))
            for level in ("histograms", "statistics")
        )
        accuracies.append([accuracy(rows, victims, SCHEMA) for rows in guesses])
    return np.mean(accuracies, axis=0)


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
def test_bins_improve_the_reconstruction_of_an_adversary_without_rows_under_every_defense(defense):
    bins, sums = accuracies_with_and_without_bins(defense)
    assert bins > sums + 0.02


@pytest.mark.parametrize(("cuts", "followed"), [("", False), ("grid-cuts+", True)])
def test_rows_are_followed_through_trees_if_cut_points_form_a_grid(cuts, followed):
    view, *_ = view_under(f"{cuts}secure-sum+hist-rounding[step=0.1]")
    assert ("residual_last_tree" in run_attack(view).notes) is followed


@pytest.mark.parametrize("step", [0.01, 0.1])
def test_rounded_sums_of_several_clients_determine_integer_counts(step):
    view, victims, training = view_under(f"secure-sum+hist-rounding[step={step}]", base_score=0.5)
    (first,) = guessed.counts(run_attack(view))
    leaf, tree = training.model.apply(victims.X)[:, 0], training.model.trees[0]
    n = np.bincount(leaf, minlength=len(tree))[tree.leaves]
    n1 = np.bincount(leaf, victims.y, len(tree))[tree.leaves]
    np.testing.assert_array_equal(first.n0 + first.n1, n)
    np.testing.assert_array_equal(first.n1, n1)


def test_exact_sums_of_a_bin_determine_its_rows_for_every_prior():
    rng = np.random.default_rng(0)
    rows, p = rng.poisson(3, size=(200, 2)).astype(float), 0.37
    sums = np.stack([rows.sum(axis=1), rows[:, 0] * p + rows[:, 1] * (p - 1)], axis=1)
    variances = np.full(rows.shape, 1e-9)
    mean, variance = _posterior(sums, variances, np.full(rows.shape, 2.0), np.ones(rows.shape), p)
    np.testing.assert_allclose(mean, rows, atol=1e-6)
    assert variance.max() < 1e-6


def test_more_noise_moves_a_bin_towards_its_prior():
    raw, expected = np.array([[9.0, 2.0]]), np.array([[2.0, 1.0]])
    distances = [
        np.abs(
            _posterior(raw, np.full((1, 2), variance), expected, np.ones((1, 2)), 0.5)[0] - expected
        )
        for variance in (0.01, 1.0, 100.0, 1e6)
    ]
    total = [float(distance.sum()) for distance in distances]
    assert total == sorted(total, reverse=True)
    assert total[-1] < 0.01


def test_the_difference_to_the_node_is_added_to_the_most_uncertain_bins():
    adjusted = _adding_up(np.array([3.0, 4.0, 0.0]), np.array([0.0, 1.0, 0.5]), 10.0)
    np.testing.assert_allclose(adjusted, [3, 6, 1], atol=1e-6)
    np.testing.assert_allclose(_adding_up(np.array([3.0, 4.0]), np.ones(2), 0.0), 0, atol=1e-9)


def test_an_exact_count_is_kept_with_a_noisy_sum_of_many_rows():
    """Only the number of the 188 rows is exact. Inverting the covariance matrix lost all digits."""
    variances, prior = np.array([[1e-12, 6016.0]]), np.array([[83.0, 83.0]])
    mean, _ = _posterior(np.array([[188.0, 120.5]]), variances, prior, np.ones((1, 2)), 0.46)
    assert mean.sum() == pytest.approx(188, abs=1e-6)
    assert mean[0, 0] > mean[0, 1] > 10


def test_the_posterior_of_two_normal_numbers_equals_the_matrix_formula():
    rng, p = np.random.default_rng(0), 0.3
    variances, prior, surprise = rng.uniform(0.1, 9, (3, 40, 2))
    A = np.array([[1, 1], [p, p - 1]])
    precision = np.einsum("ki,ck,kj->cij", A, 1 / variances, A)
    precision[:, [0, 1], [0, 1]] += 1 / prior
    covariance = np.linalg.inv(precision)
    mean, variance = _normal_posterior(surprise, variances, prior, p)
    assert mean == pytest.approx(np.einsum("cij,kj,ck->ci", covariance, A, surprise / variances))
    assert variance == pytest.approx(covariance[:, [0, 1], [0, 1]])
