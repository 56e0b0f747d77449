"""Ceilings over enumerated tables: attained, and broken protocols and attacks caught."""

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


def equal_views(one, other):
    """Return whether two runs distinguish exactly the same tables."""
    pairs = np.unique(np.column_stack([one.of, other.of]), axis=0)
    return len(pairs) == int(one.of.max()) + 1 == int(other.of.max()) + 1


def made(defense, protocol="fedtree-hist", tables=FEW):
    return tiny(tables, Spec(protocol, {"trees": 2, "max_depth": 1}), parse_one(defense))


@pytest.fixture(scope="module")
def summed():
    """A server's views of secure sums over public cut points."""
    (found,) = views(made("secure-sum+public-cuts"), ["server"])
    return found


def test_probabilities_of_all_tables_add_up():
    for tables in (FEW, TinyTables()):
        assert tables.weight.sum() == pytest.approx(1, abs=1e-12)
    rows = np.einsum("t,tcv->v", FEW.weight, FEW.counts)
    assert rows == pytest.approx(2 * FEW.prior)


def test_ceiling_is_the_best_of_all_that_can_be_submitted():
    rng = np.random.default_rng(0)
    at, victims = rng.integers(0, 5, len(FEW.row_types)), FEW.victims(())
    every = [np.bincount(c, minlength=4) for c in combinations_with_replacement(range(4), 2)]
    for view, best in enumerate(best_of(FEW, victims, at)):
        of = at == view
        right = [FEW.weight[of] @ np.minimum(victims[of], s).sum(axis=1) for s in every]
        assert best == pytest.approx(max(right), abs=1e-12)


def test_who_sees_nothing_but_its_rows_has_no_more_than_blind():
    _, own = np.unique(FEW.counts[:, 1], axis=0, return_inverse=True)
    nothing = Views("client", ("client-1",), own.ravel(), np.zeros(len(own), bool))
    top = ceiling(FEW, nothing)
    assert top.ceiling == pytest.approx(top.blind, abs=1e-12)
    assert top.share(top.blind) is None


def test_sums_over_public_cut_points_tell_pooled_tables_alone(summed):
    alike, apart = splits(summed, pool_types(FEW))
    assert (alike, apart) == (10, 0)
    top = ceiling(FEW, summed)
    assert top.blind < top.ceiling <= 2 + 1e-12


def test_a_sketch_undoes_the_sum():
    (found,) = views(made("secure-sum"), ["server"])
    assert splits(found, pool_types(FEW))[1] > 0


@pytest.mark.parametrize("masks", here("defense", ["masking"]))
def test_masks_tell_what_an_ideal_sum_tells(masks, summed):
    some = range(8)  # among them the same two rows either way round
    (masked,) = views(made(f"{masks}[mode=ideal]+public-cuts"), ["server"], some)
    same = replace(summed, of=np.unique(summed.of[some], return_inverse=True)[1])
    assert equal_views(masked, same)
    (bare,) = views(made("public-cuts"), ["server"], some)
    assert not equal_views(bare, same)


def test_noise_has_no_ceiling_from_one_seed():
    with pytest.raises(UsageError, match="random draws"):
        views(made("laplace-hist[epsilon=1]"), ["server"])


class MarkingClient(HistogramClient):
    """One client writes its rows of class 1 where no sum of gradients reaches."""

    @handles(HistogramRequest)
    def histogram(self, message: HistogramRequest) -> Message:
        sent = super().histogram(message)
        mark = int(self.data.y.sum()) << 40 if self.name == "client-0" else 0
        return replace(sent, sums=sent.sums + mark)


@dataclass(frozen=True, kw_only=True)
class Marking(FedTreeHist):
    """A protocol that leaks through its secure sum."""

    party_types = {**FedTreeHist.party_types, "client": MarkingClient}


def test_a_leaking_protocol_is_caught():
    honest = made("secure-sum+public-cuts")
    (found,) = views(replace(honest, protocol=Marking(**vars(honest.protocol))), ["server"])
    assert splits(found, pool_types(FEW))[1] > 0
    assert Histogram in Marking.info.message_types


class Open(SecureSum):
    """Says that it seals sums, and lets every part cross as it is."""

    summed_types = ()


def test_check_sees_a_sum_that_is_none():
    protocol = made("none").protocol
    (kept,) = _sums_alone(SecureSum(), protocol)
    (broken,) = _sums_alone(Open(), protocol)
    assert kept.holds
    assert not broken.holds
    assert not [*_sums_alone(SecureSum(), DPGBDT())]  # it adds noise: no view is of the sum alone


def test_an_attack_that_knows_more_than_its_view_is_caught():
    cell = made("secure-sum+public-cuts")
    (seen,) = views(cell, ["public"])
    top = ceiling(FEW, seen)

    def honest(view):
        return None

    def cheating(view):
        at = int(sys._getframe(1).f_locals["t"])  # the harness's own frame
        rows = FEW.table_of([v for part in FEW.row_types[at] for v in part])
        return Guess((Records(rows),))

    blind, cheat = (attack_tables(cell, seen, submits, draws=25) for submits in (honest, cheating))
    assert blind.pure
    assert blind.score <= top.ceiling
    assert not cheat.pure


@pytest.mark.long
@pytest.mark.parametrize("attack", here("attack", ["joint"]))
def test_all_tables_tried_give_most_of_the_possible_gain(attack):
    """Who is not told the prior of these tables, but that columns are 0 or 1, is near the ceiling.

    Shares of the possible gain, as means over all draws of one seed.
    """
    cell = made("none", tables=TinyTables(columns=1, rows=(2, 2)))
    tried = register.make("attack", Spec(attack, {}))

    def submits(view):
        return tried.run(view, np.random.default_rng(0))

    for seen, draws, least in zip(
        views(cell, ["client", "public"]), (60, 25), (0.75, 0.5), strict=True
    ):
        got = attack_tables(cell, seen, submits, draws=draws)
        assert got.pure
        assert ceiling(cell.tables, seen).share(got.score) > least


@pytest.mark.long
@pytest.mark.parametrize("attack", here("attack", ["joint"]))
@pytest.mark.parametrize(
    ("protocol", "threat", "least"),
    [("flower-bagging", "client", 0.75), ("flower-bagging", "public", 0.6),
     ("flower-cyclic", "public", 0.6), ("nvflare-hist", "client", 0.9)],
)  # fmt: skip
def test_all_tables_are_tried_against_clients_trees_and_bins(attack, protocol, threat, least):
    cell = made("none", protocol, TinyTables(columns=1, rows=(2, 2)))
    (seen,) = views(cell, [threat])
    got = attack_tables(cell, seen, submit_attack(Spec(attack)), draws=25)
    assert got.pure
    assert ceiling(cell.tables, seen).share(got.score) > least


def test_no_order_of_types_recognises_more_than_the_ceiling(summed):
    """The best of all orders of four types, of every view, adds up to it; blind is chance."""
    victims, top = FEW.victims(summed.principals), recognition(FEW, summed)
    orders = [np.array(o, dtype=float) for o in permutations(range(4))]
    total = 0.0
    for view in range(int(summed.of.max()) + 1):
        of = summed.of == view
        held = FEW.weight[of] @ victims[of]
        total += FEW.weight[of].sum() * max(rank_probability(o, held, FEW.prior) for o in orders)
    assert top.ceiling == pytest.approx(total, abs=1e-12)
    assert top.blind == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize("attack", here("attack", ["membership"]))
def test_members_are_recognised_beneath_the_ceiling(attack):
    cell = made("none")
    (seen,) = views(cell, ["server"])
    got = recognise_members(cell, seen, Spec(attack, {"models": 2}), draws=8)
    assert got.pure
    assert 0.55 < got.score < recognition(FEW, seen).ceiling + 3 * got.error


def aligned(rows=2):
    return AlignedTables(1, (rows,), names=("labels", "columns"))


def test_rows_known_by_id_have_one_guess_each():
    """The best of all that can be said of two rows, of every view, adds up to the ceiling."""
    tables, rng = aligned(), np.random.default_rng(0)
    assert tables.weight.sum() == pytest.approx(1, abs=1e-12)
    at = rng.integers(0, 5, len(tables.row_types))
    for who in (("labels",), ("columns",)):
        victims = tables.victims(who)
        every = [np.eye(2, dtype=int)[list(said)].ravel() for said in product((0, 1), repeat=2)]
        for view, best in enumerate(best_of(tables, victims, at, tables.places(who))):
            of = at == view
            right = [tables.weight[of] @ np.minimum(victims[of], s).sum(axis=1) for s in every]
            assert best == pytest.approx(max(right), abs=1e-12)


def test_what_an_attack_leaves_out_of_rows_is_what_is_likeliest():
    tables, ids = aligned(3), np.arange(3)
    blind = np.array([[0.35, 0.65], [0.65, 0.35], [0.35, 0.65]]).ravel()

    def said(who, *claims):
        return (
            tables.encode_claims((who,), Guess(claims), blind).reshape(3, 2).argmax(axis=1).tolist()
        )

    assert said("columns") == [1, 0, 1]
    assert said("columns", Labels(ids[:1], ids[:1], np.array([[0.9, 0.1]]))) == [0, 0, 1]
    assert said("columns", Labels(ids, np.array([7, 7, 7]))) == [1, 1, 1]  # a cluster has no name
    assert said("labels", ColumnBins("columns", 0, ids, np.array([0, 1, -1]))) == [0, 1, 1]


@pytest.mark.parametrize("protocol", here("protocol", ["xgboost-vertical"]))
def test_gradients_in_the_clear_tell_every_label(protocol):
    """And where a run stops as all labels are of one class, not of which."""
    cell = tiny(TinyTables(2, (1, 1)), Spec(protocol, {"trees": 1}), parse_one("none"))
    (seen,) = views(cell, ["passive"])
    labels, trained = cell.tables.victims(seen.principals), ~seen.refused
    told = np.unique(np.column_stack([seen.of, labels])[trained], axis=0)
    assert len(told) == len(np.unique(seen.of[trained]))
    stopped, both = seen.of[seen.refused], labels[seen.refused]
    assert len(np.unique(np.column_stack([stopped, both]), axis=0)) == 2 * len(np.unique(stopped))
    got = attack_tables(cell, seen, submit_attack(Spec("clear-gradients")), 12)
    assert got.pure
    assert got.score == pytest.approx(ceiling(cell.tables, seen).ceiling, abs=4 * got.error)
