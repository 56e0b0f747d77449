"""Boosting stops when the validation loss no longer improves, and noisy losses cost epsilon."""

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


def losses(training):
    """Return the mean validation loss of every round, as the server received it."""
    totals = [
        delivery.message.sums
        for delivery in training.transcript
        if isinstance(delivery.message, ValidationLoss) and not has_sealed_field(delivery.message)
    ]
    return [loss / rows for loss, rows in totals]


@pytest.mark.parametrize("name", ["fedtree-hist", "nvflare-hist"])
def test_the_model_ends_with_the_best_round(name):
    training = run(name)
    round_losses = losses(training)
    best = int(np.argmin(round_losses))
    assert len(round_losses) < 60
    assert len(round_losses) == best + 1 + 3
    assert training.model.rounds == best + 1
    (stop,) = (
        delivery.message
        for delivery in training.transcript
        if isinstance(delivery.message, StopBoosting)
    )
    assert stop.rounds == best + 1


def test_the_server_learns_only_sums_of_losses():
    training = run()
    client_losses = [
        delivery
        for delivery in training.transcript
        if isinstance(delivery.message, ValidationLoss) and delivery.sender.startswith("client")
    ]
    assert client_losses
    assert all(delivery.message.sums == Sealed((), (2,), "<f8", 16) for delivery in client_losses)


def held_out(seed, clients, fraction):
    from fedtrees.core.streams import Streams

    return [
        Streams(seed).child(f"client-{client}").rng("validation").random(len(table)) < fraction
        for client, table in enumerate(clients)
    ]


def test_the_loss_is_the_mean_over_held_out_rows():
    tables, _ = sample_federation()
    training = run(trees=2, early_stopping_rounds=9)
    masks = held_out(1, tables, 0.3)
    rows = Table.concat([table.take(mask) for table, mask in zip(tables, masks, strict=True)])
    for rounds, loss in enumerate(losses(training), start=1):
        probabilities = (
            training.model.first(rounds).predict(rows.X)
            if rounds <= training.model.rounds
            else None
        )
        if probabilities is not None:
            expected = -np.mean(np.log(np.where(rows.y == 1, probabilities, 1 - probabilities)))
            assert loss == pytest.approx(expected, abs=1e-5)


def test_labels_of_held_out_rows_do_not_change_the_trees():
    """Labels of held-out rows influence only the round in which boosting stops."""
    tables, _ = sample_federation()
    masks = held_out(1, tables, 0.3)
    flipped = [Table(t.X, np.where(m, 1 - t.y, t.y)) for t, m in zip(tables, masks, strict=True)]
    honest, flipped_run = run(trees=3), run(trees=3, clients=flipped)
    rounds = min(honest.model.rounds, flipped_run.model.rounds)
    X = tables[0].X
    np.testing.assert_array_equal(
        honest.model.first(rounds).margin(X), flipped_run.model.first(rounds).margin(X)
    )
    assert losses(honest) != losses(flipped_run)


def test_zero_rounds_of_patience_disables_early_stopping():
    plain = run(early_stopping_rounds=0, trees=3)
    assert not losses(plain)
    assert plain.model.rounds == 3


def test_noisy_losses_are_in_the_ledger():
    spec = Spec("laplace-hist", {"epsilon": 2.0})
    training = run(defense=spec, cuts="public", base_score=0.5, trees=8)
    events = [event for event in training.transcript.events if event.what == "ValidationLoss"]
    rounds = len({event.party for event in events})
    assert {event.l1 for event in events} == {LOSS_BOUND + 1}
    assert {event.scale for event in events} == {(LOSS_BOUND + 1) / 2.0}
    assert len(events) % rounds == 0
    totals = [
        d.message.sums[1]
        for d in training.transcript
        if isinstance(d.message, ValidationLoss) and not has_sealed_field(d.message)
    ]
    assert any(n != round(n) for n in totals)


def test_a_row_spends_its_budget_either_in_training_or_in_validation():
    defense = register.make("defense", Spec("laplace-hist", {"epsilon": 2.0, "calibrated": True}))
    training = run(
        defense=Spec("laplace-hist", {"epsilon": 2.0, "calibrated": True}),
        cuts="public",
        base_score=0.5,
        trees=5,
        early_stopping_rounds=9,
    )
    assert any(isinstance(delivery.message, Histogram) for delivery in training.transcript)
    assert defense.spent(training.transcript).epsilon == pytest.approx(2.0)


def test_attacks_apply_with_and_without_held_out_rows():
    attack = register.make("attack", Spec("timberstrike"))
    tables, _ = sample_federation()
    local_data = over_clients(tables)
    for training in (run(trees=2, early_stopping_rounds=patience) for patience in (0, 2)):
        assert attack.inapplicable(view_of(training, ("client-2",), local_data)) is None


@pytest.mark.parametrize(
    ("params", "error_message"),
    [
        ({"early_stopping_rounds": -1}, "early_stopping_rounds=-1"),
        ({"early_stopping_rounds": 2.5}, "early_stopping_rounds=2.5"),
        ({"validation_fraction": 0.0}, "validation_fraction=0.0"),
        ({"validation_fraction": math.nan}, "validation_fraction=nan"),
    ],
)
def test_parameters_are_checked(params, error_message):
    with pytest.raises(UsageError, match=error_message):
        run(**params)


def test_a_federation_too_small_for_a_validation_row_is_refused():
    tables = [Table(np.array([[0.0], [1.0]]), np.array([0, 1]))]
    protocol = register.make(
        "protocol",
        Spec("fedtree-hist", {"early_stopping_rounds": 1, "validation_fraction": 1e-9}),
    )
    with pytest.raises(DataError, match="selects no row"):
        train(protocol, over_clients(tables), Schema((Feature("a"),), "y"))
