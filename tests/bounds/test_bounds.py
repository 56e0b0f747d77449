"""Ceilings over enumerated tables are reached, and leaking protocols and dishonest attacks are
detected.
"""

import sys
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, permutations, product

import numpy as np
import pytest
from present import here

from fedtrees.bounds.ceilings import (
    attack_tables,
    best_of,
    ceiling,
    pool_types,
    rank_probability,
    recognise_members,
    recognition,
    splits,
    submit_attack,
    tiny,
)
from fedtrees.bounds.tables import AlignedTables, TinyTables
from fedtrees.bounds.views import Views, views
from fedtrees.conformance.defenses import _sums_alone
from fedtrees.core.claims import ColumnBins, Guess, Labels, Records
from fedtrees.core.errors import UsageError
from fedtrees.core.messages import Message
from fedtrees.core.party import handles
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec, parse_one
from fedtrees.defenses.secure_sum import SecureSum
from fedtrees.messages.horizontal import Histogram, HistogramRequest
from fedtrees.protocols.horizontal.dp_gbdt import DPGBDT
from fedtrees.protocols.horizontal.histogram_parties import HistogramClient
from fedtrees.protocols.horizontal.histogram_protocols import FedTreeHist

FEW = TinyTables(columns=1, rows=(1, 1))


def distinguish_same_tables(first, second):
    """Return whether two runs distinguish exactly the same tables."""
    pairs = np.unique(np.column_stack([first.of, second.of]), axis=0)
    return len(pairs) == int(first.of.max()) + 1 == int(second.of.max()) + 1


def make_cell(defense, protocol="fedtree-hist", tables=FEW):
    return tiny(tables, Spec(protocol, {"trees": 2, "max_depth": 1}), parse_one(defense))


@pytest.fixture(scope="module")
def server_view_of_sums():
    """Return the server's views of secure sums over public cut points."""
    (server_view,) = views(make_cell("secure-sum+public-cuts"), ["server"])
    return server_view


def test_probabilities_of_all_tables_add_up():
    for tables in (FEW, TinyTables()):
        assert tables.weight.sum() == pytest.approx(1, abs=1e-12)
    rows = np.einsum("t,tcv->v", FEW.weight, FEW.counts)
    assert rows == pytest.approx(2 * FEW.prior)


def test_the_ceiling_is_the_best_of_all_submissions():
    rng = np.random.default_rng(0)
    view_of_table, victims = rng.integers(0, 5, len(FEW.row_types)), FEW.victims(())
    all_submissions = [
        np.bincount(types, minlength=4) for types in combinations_with_replacement(range(4), 2)
    ]
    for view, best in enumerate(best_of(FEW, victims, view_of_table)):
        in_view = view_of_table == view
        expected_scores = [
            FEW.weight[in_view] @ np.minimum(victims[in_view], submission).sum(axis=1)
            for submission in all_submissions
        ]
        assert best == pytest.approx(max(expected_scores), abs=1e-12)


def test_without_messages_the_ceiling_equals_the_blind_score():
    _, local_index = np.unique(FEW.counts[:, 1], axis=0, return_inverse=True)
    blind_views = Views(
        "client", ("client-1",), local_index.ravel(), np.zeros(len(local_index), bool)
    )
    bound = ceiling(FEW, blind_views)
    assert bound.ceiling == pytest.approx(bound.blind, abs=1e-12)
    assert bound.share(bound.blind) is None


def test_sums_over_public_cut_points_reveal_only_the_pooled_table(server_view_of_sums):
    n_equal, n_different = splits(server_view_of_sums, pool_types(FEW))
    assert (n_equal, n_different) == (10, 0)
    bound = ceiling(FEW, server_view_of_sums)
    assert bound.blind < bound.ceiling <= 2 + 1e-12


def test_a_sketch_reveals_more_than_the_sum():
    (server_view,) = views(make_cell("secure-sum"), ["server"])
    assert splits(server_view, pool_types(FEW))[1] > 0


@pytest.mark.parametrize("masks", here("defense", ["masking"]))
def test_masked_sums_reveal_the_same_as_ideal_sums(masks, server_view_of_sums):
    table_indices = range(8)  # These include the same two rows in both orders.
    (masked,) = views(make_cell(f"{masks}[mode=ideal]+public-cuts"), ["server"], table_indices)
    ideal = replace(
        server_view_of_sums,
        of=np.unique(server_view_of_sums.of[table_indices], return_inverse=True)[1],
    )
    assert distinguish_same_tables(masked, ideal)
    (without_masks,) = views(make_cell("public-cuts"), ["server"], table_indices)
    assert not distinguish_same_tables(without_masks, ideal)


def test_noise_has_no_ceiling_from_one_seed():
    with pytest.raises(UsageError, match="random draws"):
        views(make_cell("laplace-hist[epsilon=1]"), ["server"])


class MarkingClient(HistogramClient):
    """A client that writes its rows of class 1 into bits that no sum of gradients uses."""

    @handles(HistogramRequest)
    def histogram(self, message: HistogramRequest) -> Message:
        histogram_message = super().histogram(message)
        mark = int(self.data.y.sum()) << 40 if self.name == "client-0" else 0
        return replace(histogram_message, sums=histogram_message.sums + mark)


@dataclass(frozen=True, kw_only=True)
class Marking(FedTreeHist):
    """A protocol that leaks through its secure sum."""

    party_types = {**FedTreeHist.party_types, "client": MarkingClient}


def test_a_leaking_protocol_is_detected():
    honest = make_cell("secure-sum+public-cuts")
    (server_view,) = views(replace(honest, protocol=Marking(**vars(honest.protocol))), ["server"])
    assert splits(server_view, pool_types(FEW))[1] > 0
    assert Histogram in Marking.info.message_types


class UnsealedSum(SecureSum):
    """A defense that claims to seal sums, but sends every part in plain text."""

    summed_types = ()


def test_the_check_detects_an_unsealed_sum():
    protocol = make_cell("none").protocol
    (sealed_check,) = _sums_alone(SecureSum(), protocol)
    (unsealed_check,) = _sums_alone(UnsealedSum(), protocol)
    assert sealed_check.holds
    assert not unsealed_check.holds
    # This protocol adds noise, so no view contains only the sum.
    assert not [*_sums_alone(SecureSum(), DPGBDT())]


def test_an_attack_that_uses_more_than_its_view_is_detected():
    cell = make_cell("secure-sum+public-cuts")
    (public_view,) = views(cell, ["public"])
    bound = ceiling(FEW, public_view)

    def honest(view):
        return None

    def cheating(view):
        index = int(sys._getframe(1).f_locals["t"])  # The frame of the harness.
        rows = FEW.table_of([value for part in FEW.row_types[index] for value in part])
        return Guess((Records(rows),))

    honest_result, cheating_result = (
        attack_tables(cell, public_view, submits, draws=25) for submits in (honest, cheating)
    )
    assert honest_result.pure
    assert honest_result.score <= bound.ceiling
    assert not cheating_result.pure


@pytest.mark.long
@pytest.mark.parametrize("attack", here("attack", ["joint"]))
def test_the_joint_attack_reaches_most_of_the_possible_gain(attack):
    """An adversary that knows only that columns are 0 or 1, and not the prior of tables, is close
    to the ceiling.

    The figures are shares of the possible gain, averaged over all draws of one seed.
    """
    cell = make_cell("none", tables=TinyTables(columns=1, rows=(2, 2)))
    attack_object = register.make("attack", Spec(attack, {}))

    def submits(view):
        return attack_object.run(view, np.random.default_rng(0))

    for adversary_view, draws, least_share in zip(
        views(cell, ["client", "public"]), (60, 25), (0.75, 0.5), strict=True
    ):
        result = attack_tables(cell, adversary_view, submits, draws=draws)
        assert result.pure
        assert ceiling(cell.tables, adversary_view).share(result.score) > least_share


@pytest.mark.long
@pytest.mark.parametrize("attack", here("attack", ["joint"]))
@pytest.mark.parametrize(
    ("protocol", "threat", "least_share"),
    [("flower-bagging", "client", 0.75), ("flower-bagging", "public", 0.6),
     ("flower-cyclic", "public", 0.6), ("nvflare-hist", "client", 0.9)],
)  # fmt: skip
def test_the_joint_attack_reaches_most_of_the_possible_gain_from_trees_and_bins(
    attack, protocol, threat, least_share
):
    cell = make_cell("none", protocol, TinyTables(columns=1, rows=(2, 2)))
    (adversary_view,) = views(cell, [threat])
    result = attack_tables(cell, adversary_view, submit_attack(Spec(attack)), draws=25)
    assert result.pure
    assert ceiling(cell.tables, adversary_view).share(result.score) > least_share


def test_the_ceiling_is_the_best_order_of_types(server_view_of_sums):
    """The best order of four types in every view adds up to the ceiling. The blind guess is
    chance.
    """
    victims, bound = (
        FEW.victims(server_view_of_sums.principals),
        recognition(FEW, server_view_of_sums),
    )
    orders = [np.array(order, dtype=float) for order in permutations(range(4))]
    total = 0.0
    for view in range(int(server_view_of_sums.of.max()) + 1):
        in_view = server_view_of_sums.of == view
        expected_victims = FEW.weight[in_view] @ victims[in_view]
        total += FEW.weight[in_view].sum() * max(
            rank_probability(order, expected_victims, FEW.prior) for order in orders
        )
    assert bound.ceiling == pytest.approx(total, abs=1e-12)
    assert bound.blind == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize("attack", here("attack", ["membership"]))
def test_recognition_of_members_stays_below_the_ceiling(attack):
    cell = make_cell("none")
    (server_view,) = views(cell, ["server"])
    result = recognise_members(cell, server_view, Spec(attack, {"models": 2}), draws=8)
    assert result.pure
    assert 0.55 < result.score < recognition(FEW, server_view).ceiling + 3 * result.error


def aligned(rows=2):
    return AlignedTables(1, (rows,), names=("labels", "columns"))


def test_the_ceiling_for_aligned_rows_is_the_best_of_all_guesses():
    """The best guess about two rows in every view adds up to the ceiling."""
    tables, rng = aligned(), np.random.default_rng(0)
    assert tables.weight.sum() == pytest.approx(1, abs=1e-12)
    view_of_table = rng.integers(0, 5, len(tables.row_types))
    for principals in (("labels",), ("columns",)):
        victims = tables.victims(principals)
        all_guesses = [
            np.eye(2, dtype=int)[list(labels)].ravel() for labels in product((0, 1), repeat=2)
        ]
        for view, best in enumerate(
            best_of(tables, victims, view_of_table, tables.places(principals))
        ):
            in_view = view_of_table == view
            expected_scores = [
                tables.weight[in_view] @ np.minimum(victims[in_view], guess).sum(axis=1)
                for guess in all_guesses
            ]
            assert best == pytest.approx(max(expected_scores), abs=1e-12)


def test_unclaimed_values_of_rows_are_the_most_likely_ones():
    tables, ids = aligned(3), np.arange(3)
    blind = np.array([[0.35, 0.65], [0.65, 0.35], [0.35, 0.65]]).ravel()

    def encoded(principal, *claims):
        return (
            tables.encode_claims((principal,), Guess(claims), blind)
            .reshape(3, 2)
            .argmax(axis=1)
            .tolist()
        )

    assert encoded("columns") == [1, 0, 1]
    assert encoded("columns", Labels(ids[:1], ids[:1], np.array([[0.9, 0.1]]))) == [0, 0, 1]
    # A cluster has no name.
    assert encoded("columns", Labels(ids, np.array([7, 7, 7]))) == [1, 1, 1]
    assert encoded("labels", ColumnBins("columns", 0, ids, np.array([0, 1, -1]))) == [0, 1, 1]


@pytest.mark.parametrize("protocol", here("protocol", ["xgboost-vertical"]))
def test_gradients_in_plain_text_reveal_every_label(protocol):
    """A run that stops because all labels are equal does not reveal the class."""
    cell = tiny(TinyTables(2, (1, 1)), Spec(protocol, {"trees": 1}), parse_one("none"))
    (passive_view,) = views(cell, ["passive"])
    labels, trained = cell.tables.victims(passive_view.principals), ~passive_view.refused
    views_and_labels = np.unique(np.column_stack([passive_view.of, labels])[trained], axis=0)
    assert len(views_and_labels) == len(np.unique(passive_view.of[trained]))
    views_of_stopped, labels_of_stopped = (
        passive_view.of[passive_view.refused],
        labels[passive_view.refused],
    )
    assert len(
        np.unique(np.column_stack([views_of_stopped, labels_of_stopped]), axis=0)
    ) == 2 * len(np.unique(views_of_stopped))
    result = attack_tables(cell, passive_view, submit_attack(Spec("clear-gradients")), 12)
    assert result.pure
    assert result.score == pytest.approx(
        ceiling(cell.tables, passive_view).ceiling, abs=4 * result.error
    )
