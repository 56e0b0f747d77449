"""The noise that dp-gbdt and dp-forest declare is the noise that they draw."""

import numpy as np
import pytest
from scipy import stats

from fedtrees.conformance.samples import sample_local_data, sample_training
from fedtrees.core.channel import Mechanism, Share
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.messages.forests import LeafClassCounts, PrivateForest
from fedtrees.messages.horizontal import BaseScore, LeafSums, LeafValues
from fedtrees.protocols.views import view_of


def trained(name, **params):
    protocol = register.make("protocol", Spec(name, params))
    run, _ = sample_training(protocol)
    return run, view_of(run, ("server",), sample_local_data(protocol))


def messages(run, kind):
    return [d.message for d in run.transcript if type(d.message) is kind]


def test_released_leaf_sums_differ_from_the_exact_ones_by_the_declared_noise():
    run, view = trained("dp-gbdt", epsilon=1.0, trees=20, max_depth=4)
    (start,) = messages(run, BaseScore)
    exact = {}
    for message in messages(run, LeafSums):
        exact[message.tree] = exact.get(message.tree, 0) + message.sums / np.ldexp(
            1.0, [start.g_bits, start.h_bits]
        )
    for column, field in enumerate("gh"):
        channel = view.channel(LeafValues, field, "server")
        errors = [
            getattr(message, field) - exact[message.tree][:, column]
            for message in messages(run, LeafValues)
        ]
        errors = np.concatenate(errors)
        assert stats.kstest(errors / channel.scale, "norm").pvalue > 1e-3
        assert np.sqrt(channel.posterior_moments(np.zeros(1))[1][0]) == pytest.approx(
            np.std(errors), rel=0.15
        )
    assert view.changes(LeafSums, "sums") == []


def test_shared_noise_is_declared_for_the_complete_sum_only():
    _, view = trained("dp-gbdt", epsilon=1.0, trees=2, noise="distributed")
    (share,) = view.changes(LeafSums, "sums")
    assert isinstance(share, Share)
    assert view.channel(LeafSums, "sums") is None
    assert share.colluders == 1
    declared = view.channel(LeafSums, "sums", parties=3)
    # Two of three shares make up the claimed noise, so that the sum of three has 3/2 its variance.
    (_, variance), (_, claimed) = (
        channel.posterior_moments(np.zeros((1, 2))) for channel in (declared, share.total)
    )
    np.testing.assert_allclose(variance, 1.5 * claimed)
    assert trained("dp-gbdt", epsilon=float("inf"), trees=2)[1].protocol_changes == ()


@pytest.mark.parametrize("mechanism", ["geometric", "published"])
def test_released_counts_have_the_declared_noise(mechanism):
    run, view = trained("dp-forest", epsilon=5.0, trees=8, depth=4, mechanism=mechanism)
    exact = sum(message.counts for message in messages(run, LeafClassCounts))
    released = messages(run, PrivateForest)[0]
    noise = (released.counts - exact).ravel()
    channel = view.channel(PrivateForest, "counts", "server")
    values = np.arange(-8, 9)
    expected = np.exp(channel.log_likelihood(values[:, None], np.zeros((1, 1)))) * len(noise)
    counted = np.array([(noise == value).sum() for value in values])
    assert (np.abs(counted - expected) < 4 * np.sqrt(expected) + 2).all()
    _, labels = trained("dp-forest", epsilon=5.0, trees=2, depth=2, mechanism="majority")
    (change,) = labels.changes(PrivateForest, "counts")
    assert isinstance(change, Mechanism)
