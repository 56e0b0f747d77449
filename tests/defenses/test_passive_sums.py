"""Effects of `min-bin` and `laplace-hist` on sums of passive parties, honest and cheating."""

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


def opened_sums(defense=None, protocol=BOOST, **options):
    local_data, (_, schema) = sample_local_data(protocol), sample_table()
    parts = Composition((defense,) if defense else ())
    run = train(protocol, local_data, schema, defense=parts, seed=3, noise_from="seed", **options)
    view = view_of(run, ("active",), local_data)
    return [message for _, message in view.messages(OpenedBinSums)], view, run


DEEP = replace(BOOST, max_depth=5)
FOREST = VerticalForest(trees=2, max_depth=3, max_bin=8)


@pytest.mark.parametrize(("protocol", "k"), [(BOOST, 29), (FOREST, 24)])
def test_a_bin_of_few_rows_is_zeros_and_others_are_exact(protocol, k):
    (exact, *_), _, _ = opened_sums(protocol=protocol)
    (first, *_), view, run = opened_sums(MinBin(k=k), protocol)
    assert [type(c) for c in view.changes(OpenedBinSums, "sums")] == [FewRows]
    hidden = (first.sums == 0).all(axis=-1)
    assert 0 < hidden.mean() < 1
    assert (first.sums[~hidden] == exact.sums[~hidden]).all()
    assert {0} == run.transcript.acted


def test_nodes_of_few_rows_are_sent_as_zeros():
    (exact, *_), _, _ = opened_sums()
    messages, view, run = opened_sums(MinBin(k=2, node=80))
    trees = replayed(view)
    for message in messages:
        is_large = [len(trees[message.tree].rows_of(node)) >= 80 for node in message.nodes.tolist()]
        assert (message.sums != 0).any(axis=(1, 2)).tolist() == is_large
    assert {len(message.nodes) for message in messages} > {1}
    assert (messages[0].sums != 0).sum() > 0.9 * (exact.sums != 0).sum()
    assert 0 in run.transcript.acted


def test_noise_has_the_declared_scale_and_epsilon_is_infinite():
    (exact, *_), _, _ = opened_sums()
    (first, *_), view, run = opened_sums(LaplaceHistogram(epsilon=1.0))
    noise = (first.sums - exact.sums) / 2.0**30
    assert view.channel(OpenedBinSums, "sums") == Laplace(2.0)
    assert abs(np.abs(noise).mean() - 2.0) < 4 * 2 / math.sqrt(noise.size)
    (spent,) = run.defense.spent(run.transcript)
    n_passive_columns = max(
        len(columns) for party, columns in run.columns.items() if party != "active"
    )
    # In each tree and level, a row moves from one bin of a column to another: 2 (1 + 1/4) / 2.
    assert spent.epsilon == math.inf
    assert spent.unprotected == ("routes",)
    assert spent.histograms == pytest.approx(4 * 3 * n_passive_columns * 1.25)


def test_statistics_beyond_their_range_are_clipped():
    limits = Limits(1, 1, 0, 2, ranges=((-4, 4), (0, 1)))
    assert limits.clipped(np.array([[9, -2], [-9, 3]])).tolist() == [[4, 0], [-4, 1]]


def test_settings_without_a_bound_on_rows_do_not_fit():
    regression_schema = Schema((Feature("a"), Feature("b")), "y", classes=())
    _, schema = sample_table()
    noise, min_bin = LaplaceHistogram(epsilon=1.0), MinBin()
    encrypted_protocol = SecureBoost(crypto="real")
    assert {
        check_fit(encrypted_protocol, [part], facts=KnownFacts(schema)).code
        for part in (noise, min_bin)
    } == {"sums-encrypted"}
    assert check_fit(BOOST, [noise], facts=KnownFacts(regression_schema)).code == "unbounded-rows"
    assert check_fit(BOOST, [LaplaceHistogram(1.0, calibrated=True)]).code == "defense-message"
    assert check_fit(VerticalForest(), [noise]).code == "defense-stage"
    counting = register.make("defense", Spec("id-lmid", {"xi": 0.5}))
    assert check_fit(BOOST, [noise, counting], facts=KnownFacts(schema)).code == "unbounded-rows"
    assert check_fit(FedTreeHist(), [MinBin(node=9)]).code == "defense-message"
    assert check_fit(FedTreeHist(), [LaplaceHistogram(1.0, proven=False)]).code == "defense-message"
    with pytest.raises(Unfit, match="out of range"):
        opened_sums(min_bin, encrypted_protocol)


@pytest.mark.parametrize(("defense", "minimum", "maximum"), [
    (None, 0.99, 1.0), (MinBin(k=20), 0.3, 0.95), (LaplaceHistogram(16.0), 0.7, 0.9999),
    (LaplaceHistogram(0.5), 0.1, 0.6), (LaplaceHistogram(0.5, proven=False), 0.99, 1.0),
    (MinBin(k=5, node=100), 0.9, 1.0),
])  # fmt: skip
def test_a_cheating_active_party_reads_what_the_defense_leaves(defense, minimum, maximum):
    _, view, run = opened_sums(defense, DEEP, behaviours={"active": "cheating"})
    requests = [message for _, message in view.messages(NodeRows)]
    assert requests
    assert not run.refused
    guess = register.make("attack", Spec("powers-of-two")).run(view, np.random.default_rng(0))
    shares_right = [
        (claim.bin == run.bins_of_rows[claim.owner, claim.feature]).mean() for claim in guess.claims
    ]
    assert minimum <= np.mean(shares_right) <= maximum


def test_enough_noisy_sums_identify_the_bins():
    rng, channel = np.random.default_rng(0), Laplace(1.0)
    bin = rng.integers(0, 4, 40)
    is_in_bin = (bin == np.arange(4)[:, None]).astype(float)

    def right(nodes):
        node_sums = []
        for number in range(nodes):
            rows = np.sort(rng.permutation(40)[:10]).astype(np.int32)
            statistics = rng.choice([-1, 1], (10, 1)) << 30
            sums = is_in_bin[:, rows] @ statistics + channel.in_units_of(2.0**30, True).send(
                np.zeros((4, 1), dtype=np.int64), rng
            )
            node_sums.append(
                NodeSums(number, rows, statistics, np.vstack([sums, [[0]]]).astype(np.int64))
            )
        column = Column("passive", 0, tuple(node_sums), np.ones((40, 5), dtype=bool))
        return (shares_of_changed(column, [channel], 2.0**30).argmax(axis=1) == bin).mean()

    with_few, with_many = right(8), right(240)
    assert with_few < 0.8 < 0.95 < with_many
