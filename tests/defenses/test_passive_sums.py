"""What passive parties' sums lose to `min-bin` and `laplace-hist`, honest and cheated."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedtrees.attacks.bins.column_shares import shares_of_changed
from fedtrees.attacks.solvers.subset_sum import Column, NodeSums
from fedtrees.conformance.samples import sample_local_data, sample_table
from fedtrees.core.composition import Composition
from fedtrees.core.deterministic_channels import FewRows
from fedtrees.core.reasons import Unfit
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema
from fedtrees.core.specs import Spec
from fedtrees.defenses.laplace import LaplaceHistogram
from fedtrees.defenses.suppression import MinBin
from fedtrees.messages.vertical import NodeRows, OpenedBinSums, replayed
from fedtrees.privacy.noise import Laplace
from fedtrees.protocols.compatibility import KnownFacts, check_fit
from fedtrees.protocols.horizontal.histogram_protocols import FedTreeHist
from fedtrees.protocols.training import train
from fedtrees.protocols.vertical.passive import Limits
from fedtrees.protocols.vertical.secureboost import SecureBoost
from fedtrees.protocols.vertical.vertical_forest import VerticalForest
from fedtrees.protocols.views import view_of

BOOST = SecureBoost(trees=4, max_depth=3, max_bin=8, colsample_bytree=1.0)


def opened(defense=None, protocol=BOOST, **options):
    held, (_, schema) = sample_local_data(protocol), sample_table()
    parts = Composition((defense,) if defense else ())
    run = train(protocol, held, schema, defense=parts, seed=3, noise_from="seed", **options)
    view = view_of(run, ("active",), held)
    return [m for _, m in view.messages(OpenedBinSums)], view, run


DEEP = replace(BOOST, max_depth=5)
FOREST = VerticalForest(trees=2, max_depth=3, max_bin=8)


@pytest.mark.parametrize(("protocol", "k"), [(BOOST, 29), (FOREST, 24)])
def test_a_bin_of_few_rows_is_zeros_and_others_are_exact(protocol, k):
    (exact, *_), _, _ = opened(protocol=protocol)
    (first, *_), view, run = opened(MinBin(k=k), protocol)
    assert [type(c) for c in view.changes(OpenedBinSums, "sums")] == [FewRows]
    hidden = (first.sums == 0).all(axis=-1)
    assert 0 < hidden.mean() < 1
    assert (first.sums[~hidden] == exact.sums[~hidden]).all()
    assert {0} == run.transcript.acted


def test_nodes_of_few_rows_are_zeros_and_cost_no_more_than_their_bins():
    (exact, *_), _, _ = opened()
    told, view, run = opened(MinBin(k=2, node=80))
    trees = replayed(view)
    for m in told:
        large = [len(trees[m.tree].rows_of(node)) >= 80 for node in m.nodes.tolist()]
        assert (m.sums != 0).any(axis=(1, 2)).tolist() == large
    assert {len(m.nodes) for m in told} > {1}
    assert (told[0].sums != 0).sum() > 0.9 * (exact.sums != 0).sum()
    assert 0 in run.transcript.acted


def test_noise_has_the_scale_that_is_stated_and_no_run_has_an_epsilon():
    (exact, *_), _, _ = opened()
    (first, *_), view, run = opened(LaplaceHistogram(epsilon=1.0))
    noise = (first.sums - exact.sums) / 2.0**30
    assert view.channel(OpenedBinSums, "sums") == Laplace(2.0)
    assert abs(np.abs(noise).mean() - 2.0) < 4 * 2 / math.sqrt(noise.size)
    (spent,) = run.defense.spent(run.transcript)
    passive = max(len(c) for n, c in run.columns.items() if n != "active")
    # of every tree and level a row moves from one bin of a column to another: 2 (1 + 1/4) / 2
    assert spent.epsilon == math.inf
    assert spent.unprotected == ("routes",)
    assert spent.histograms == pytest.approx(4 * 3 * passive * 1.25)


def test_statistics_beyond_their_range_are_clipped():
    limits = Limits(1, 1, 0, 2, ranges=((-4, 4), (0, 1)))
    assert limits.clipped(np.array([[9, -2], [-9, 3]])).tolist() == [[4, 0], [-4, 1]]


def test_what_cannot_be_clipped_does_not_fit():
    number = Schema((Feature("a"), Feature("b")), "y", classes=())
    _, schema = sample_table()
    noise, least = LaplaceHistogram(epsilon=1.0), MinBin()
    real = SecureBoost(crypto="real")
    assert {check_fit(real, [p], facts=KnownFacts(schema)).code for p in (noise, least)} == {
        "sums-encrypted"
    }
    assert check_fit(BOOST, [noise], facts=KnownFacts(number)).code == "unbounded-rows"
    assert check_fit(BOOST, [LaplaceHistogram(1.0, calibrated=True)]).code == "defense-message"
    assert check_fit(VerticalForest(), [noise]).code == "defense-stage"
    counting = register.make("defense", Spec("id-lmid", {"xi": 0.5}))
    assert check_fit(BOOST, [noise, counting], facts=KnownFacts(schema)).code == "unbounded-rows"
    assert check_fit(FedTreeHist(), [MinBin(node=9)]).code == "defense-message"
    assert check_fit(FedTreeHist(), [LaplaceHistogram(1.0, proven=False)]).code == "defense-message"
    with pytest.raises(Unfit, match="out of range"):
        opened(least, real)


@pytest.mark.parametrize(("defense", "least", "most"), [
    (None, 0.99, 1.0), (MinBin(k=20), 0.3, 0.95), (LaplaceHistogram(16.0), 0.7, 0.9999),
    (LaplaceHistogram(0.5), 0.1, 0.6), (LaplaceHistogram(0.5, proven=False), 0.99, 1.0),
    (MinBin(k=5, node=100), 0.9, 1.0),
])  # fmt: skip
def test_a_cheating_active_party_reads_what_its_defense_leaves(defense, least, most):
    _, view, run = opened(defense, DEEP, behaviours={"active": "cheating"})
    asked = [m for _, m in view.messages(NodeRows)]
    assert asked
    assert not run.refused
    guess = register.make("attack", Spec("powers-of-two")).run(view, np.random.default_rng(0))
    right = [(c.bin == run.bins_of_rows[c.owner, c.feature]).mean() for c in guess.claims]
    assert least <= np.mean(right) <= most


def test_noisy_sums_name_bins_once_there_are_enough_of_them():
    rng, law = np.random.default_rng(0), Laplace(1.0)
    bin = rng.integers(0, 4, 40)
    inside = (bin == np.arange(4)[:, None]).astype(float)

    def right(nodes):
        seen = []
        for t in range(nodes):
            rows = np.sort(rng.permutation(40)[:10]).astype(np.int32)
            brings = rng.choice([-1, 1], (10, 1)) << 30
            sums = inside[:, rows] @ brings + law.in_units_of(2.0**30, True).send(
                np.zeros((4, 1), dtype=np.int64), rng
            )
            seen.append(NodeSums(t, rows, brings, np.vstack([sums, [[0]]]).astype(np.int64)))
        column = Column("passive", 0, tuple(seen), np.ones((40, 5), dtype=bool))
        return (shares_of_changed(column, [law], 2.0**30).argmax(axis=1) == bin).mean()

    few, many = right(8), right(240)
    assert few < 0.8 < 0.95 < many
