"""Boosting stops when held-out rows gain nothing more, and pays for looking at them."""

import math

import numpy as np
import pytest
from federations import sample_federation

from fedtrees.core.composition import Composition
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.local_data import over_clients
from fedtrees.core.messages import Sealed, has_sealed_field
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import Spec
from fedtrees.messages.horizontal import Histogram, StopBoosting, ValidationLoss
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.boosted.losses import LOSS_BOUND


def run(name="fedtree-hist", defense=None, clients=None, seed=1, **params):
    tables, schema = sample_federation()
    settings = {"trees": 60, "max_depth": 4, "max_bin": 16, "learning_rate": 1.0}
    settings |= {"early_stopping_rounds": 3, "validation_fraction": 0.3, **params}
    protocol = register.make("protocol", Spec(name, settings))
    parts = () if defense is None else (register.make("defense", defense),)
    return train(
        protocol, over_clients(clients or tables), schema, defense=Composition(parts), seed=seed
    )


def losses(done):
    """Mean validation loss of every round, as the server learned it."""
    totals = [
        d.message.sums
        for d in done.transcript
        if isinstance(d.message, ValidationLoss) and not has_sealed_field(d.message)
    ]
    return [loss / rows for loss, rows in totals]


@pytest.mark.parametrize("name", ["fedtree-hist", "nvflare-hist"])
def test_the_model_ends_with_the_best_round(name):
    done = run(name)
    found = losses(done)
    best = int(np.argmin(found))
    assert len(found) < 60
    assert len(found) == best + 1 + 3
    assert done.model.rounds == best + 1
    (stop,) = (d.message for d in done.transcript if isinstance(d.message, StopBoosting))
    assert stop.rounds == best + 1


def test_the_server_learns_sums_alone():
    done = run()
    alone = [
        d
        for d in done.transcript
        if isinstance(d.message, ValidationLoss) and d.sender.startswith("client")
    ]
    assert alone
    assert all(d.message.sums == Sealed((), (2,), "<f8", 16) for d in alone)


def held_out(seed, clients, fraction):
    from fedtrees.core.streams import Streams

    return [
        Streams(seed).child(f"client-{i}").rng("validation").random(len(c)) < fraction
        for i, c in enumerate(clients)
    ]


def test_the_loss_is_that_of_held_out_rows():
    tables, _ = sample_federation()
    done = run(trees=2, early_stopping_rounds=9)
    masks = held_out(1, tables, 0.3)
    rows = Table.concat([t.take(m) for t, m in zip(tables, masks, strict=True)])
    for k, found in enumerate(losses(done), start=1):
        p = done.model.first(k).predict(rows.X) if k <= done.model.rounds else None
        if p is not None:
            expected = -np.mean(np.log(np.where(rows.y == 1, p, 1 - p)))
            assert found == pytest.approx(expected, abs=1e-5)


def test_trees_never_see_held_out_rows():
    """Labels of held-out rows change nothing but when to stop."""
    tables, _ = sample_federation()
    masks = held_out(1, tables, 0.3)
    flipped = [Table(t.X, np.where(m, 1 - t.y, t.y)) for t, m in zip(tables, masks, strict=True)]
    honest, other = run(trees=3), run(trees=3, clients=flipped)
    rounds = min(honest.model.rounds, other.model.rounds)
    X = tables[0].X
    np.testing.assert_array_equal(
        honest.model.first(rounds).margin(X), other.model.first(rounds).margin(X)
    )
    assert losses(honest) != losses(other)


def test_zero_rounds_of_patience_is_the_plain_run():
    plain = run(early_stopping_rounds=0, trees=3)
    assert not losses(plain)
    assert plain.model.rounds == 3


def test_noise_is_paid_for():
    spec = Spec("laplace-hist", {"epsilon": 2.0})
    done = run(defense=spec, cuts="public", base_score=0.5, trees=8)
    events = [e for e in done.transcript.events if e.what == "ValidationLoss"]
    rounds = len({e.party for e in events})
    assert {e.l1 for e in events} == {LOSS_BOUND + 1}
    assert {e.scale for e in events} == {(LOSS_BOUND + 1) / 2.0}
    assert len(events) % rounds == 0
    totals = [
        d.message.sums[1]
        for d in done.transcript
        if isinstance(d.message, ValidationLoss) and not has_sealed_field(d.message)
    ]
    assert any(n != round(n) for n in totals)


def test_a_row_pays_for_training_or_for_validation():
    defense = register.make("defense", Spec("laplace-hist", {"epsilon": 2.0, "calibrated": True}))
    done = run(
        defense=Spec("laplace-hist", {"epsilon": 2.0, "calibrated": True}),
        cuts="public",
        base_score=0.5,
        trees=5,
        early_stopping_rounds=9,
    )
    assert any(isinstance(d.message, Histogram) for d in done.transcript)
    assert defense.spent(done.transcript).epsilon == pytest.approx(2.0)


def test_attacks_apply_whether_rows_are_held_out_or_not():
    attack = register.make("attack", Spec("timberstrike"))
    tables, _ = sample_federation()
    held = over_clients(tables)
    for training in (run(trees=2, early_stopping_rounds=n) for n in (0, 2)):
        assert attack.inapplicable(view_of(training, ("client-2",), held)) is None


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"early_stopping_rounds": -1}, "early_stopping_rounds=-1"),
        ({"early_stopping_rounds": 2.5}, "early_stopping_rounds=2.5"),
        ({"validation_fraction": 0.0}, "validation_fraction=0.0"),
        ({"validation_fraction": math.nan}, "validation_fraction=nan"),
    ],
)
def test_parameters_are_checked(params, said):
    with pytest.raises(UsageError, match=said):
        run(**params)


def test_a_federation_too_small_to_hold_out_a_row_is_told():
    tables = [Table(np.array([[0.0], [1.0]]), np.array([0, 1]))]
    protocol = register.make(
        "protocol",
        Spec("fedtree-hist", {"early_stopping_rounds": 1, "validation_fraction": 1e-9}),
    )
    with pytest.raises(DataError, match="selects no row"):
        train(protocol, over_clients(tables), Schema((Feature("a"),), "y"))
