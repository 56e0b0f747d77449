"""An attack that returns nothing gives a reason: in the guess, through its process, and in the
report.
"""

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtrees.conformance.samples import sample_training
from fedtrees.core.attack import claims_of
from fedtrees.core.claims import ColumnValues, Guess, Labels, LeafCounts, Records
from fedtrees.core.errors import ProtocolError
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.specs import Spec
from fedtrees.experiments.evaluate import score_guess
from fedtrees.isolation import transfer
from fedtrees.isolation.process import attack_process
from fedtrees.protocols.views import view_of

ROOT = Path(__file__).parents[2]
ROWS = Table(np.ones((2, 3), np.float32), np.array([0, 1]))
NO_ROWS = Records(Table(np.ones((0, 3), np.float32), np.zeros(0, np.int64)), np.zeros(0))
SCORED = {"fedtrees.core.claims:Records", "fedtrees.core.claims:LeafCounts"}


def transfer_guess(guess):
    return transfer.guess_of(transfer.guess_as_value(guess, "mine", SCORED))


def test_a_guess_without_claims_has_a_reason_and_one_with_claims_has_none():
    assert Guess.of([Records(ROWS)], otherwise=Reason("no-trees")).reason is None
    assert Guess.of([], {"a": 1.0}, otherwise=Reason("no-trees")).reason == Reason("no-trees")
    assert Guess.of([NO_ROWS], otherwise="nothing fits").claims == ()
    assert str(Guess.none("nothing fits").reason) == "nothing fits"
    assert Guess.none("nothing fits").reason.state == "no-claim"
    with pytest.raises(ProtocolError, match="2 claims and a reason for having none"):
        Guess((Records(ROWS), Records(ROWS)), {}, Reason("no-trees"))
    for nothing in (None, ""):
        with pytest.raises(ProtocolError, match=r"gives no reason; write Guess.none"):
            Guess.none(nothing)


def test_an_empty_guess_without_a_reason_is_refused_by_name():
    for refuse in (
        lambda: transfer.guess_as_value(Guess(), "mine", SCORED),
        lambda: [*score_guess("mine", Guess(), None, None)],
    ):
        message = "attack 'mine' returned a guess without claims and without a reason; return Guess"
        with pytest.raises(ProtocolError, match=message):
            refuse()
    with pytest.raises(ProtocolError, match="without claims and without a reason"):
        transfer.guess_of({"claims": (), "notes": {}, "reason": None})


def test_a_reason_is_transferred_from_the_process_of_an_attack():
    guess = transfer_guess(Guess.none(Reason("budget-exhausted", records=7), {"asked": 7.0}))
    assert guess.reason == Reason("budget-exhausted", records=7)
    assert guess.notes == {"asked": 7.0}


def test_claims_without_a_single_entry_are_no_claim():
    guess = transfer_guess(Guess((NO_ROWS, LeafCounts(0, np.zeros(0, int), np.zeros((0, 2), int)))))
    assert guess.claims == ()
    assert guess.reason == Reason("empty-claims")
    assert len(transfer_guess(Guess((NO_ROWS, Records(ROWS)))).claims) == 2
    no_values = np.zeros(0, np.float32)
    assert ColumnValues("a", 0, no_values, no_values.astype(int), exact=False).empty
    # The statement that a column has no values is a claim.
    assert not ColumnValues("a", 0, no_values, no_values.astype(int), exact=True).empty
    assert Labels(np.zeros(0, int), np.zeros(0, int)).empty


@given(st.lists(st.booleans(), min_size=1, max_size=6))
def test_leaf_counts_are_certain_if_all_leaves_are_certified(certified):
    n = len(certified)
    claim = LeafCounts(0, np.arange(n), np.ones((n, 2), int), np.array(certified))
    assert claim.certain == all(certified)
    assert not LeafCounts(0, np.arange(n), np.ones((n, 2), int)).certain


@pytest.mark.parametrize(
    ("certified", "message"),
    [(np.ones(2, bool), r"shape \(2,\); give one of shape \(l=1\)"), (np.ones(1), "give booleans")],
)
def test_certified_is_one_boolean_per_leaf(certified, message):
    with pytest.raises(ProtocolError, match=message):
        LeafCounts(0, np.arange(1), np.ones((1, 2), int), certified)


def test_no_attack_returns_a_guess_without_a_reason():
    """Neither ``Guess()`` nor ``Guess(tuple(...))`` occurs, because the tuple may be empty."""
    calls = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in ("attacks", "docs/examples", "fedtrees/cli/templates")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Guess"
        and (not node.args or may_be_empty(node.args[0]))
    ]  # fmt: skip
    assert {place.partition(":")[0] for place in calls} <= ALLOWED


# The combined claim of all membership tests is always present.
ALLOWED = {"attacks/membership/base.py"}


def may_be_empty(claims):
    """Return whether an expression can be a tuple without elements."""
    if isinstance(claims, ast.Tuple):
        return all(isinstance(part, ast.Starred) for part in claims.elts)
    return True


@pytest.mark.parametrize("name", register.names("attack"))
def test_every_attack_declares_its_claims(name):
    """If an attack returns nothing, the report lists the measures that are not settled."""
    assert claims_of(register.get("attack", name))


@pytest.mark.parametrize("name", ["lattice", "timberstrike", "histogram-peeling", "joint"])
def test_attacks_on_an_empty_transcript_give_a_reason(name):
    training, local_data = sample_training(
        register.make("protocol", Spec("fedtree-hist", {"trees": 2}))
    )
    view = view_of(training, ("server",), local_data).blinded()
    guess = attack_process().run(Spec(name), view, anyway=True).guess
    assert guess.claims == ()
    assert guess.reason is not None
