"""FedSGD and FedAvg on neural networks: encoding, updates, defenses and refusals."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from federations import sample_federation

from fedtrees.core.composition import Composition
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.guarantee import join
from fedtrees.core.local_data import over_clients
from fedtrees.core.messages import has_sealed_field
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.specs import Spec, parse_composed
from fedtrees.core.streams import Streams
from fedtrees.defenses.dp_sgd import clipped
from fedtrees.experiments.evaluate import make_defense
from fedtrees.messages.models import as_message
from fedtrees.messages.networks import NetworkUpdate, NetworkWeights, Standardisation
from fedtrees.metrics.utility import utility_scores
from fedtrees.neural import training
from fedtrees.neural.encoding import Encoding
from fedtrees.neural.torch_module import torch_module
from fedtrees.protocols.training import train

pytestmark = pytest.mark.extra("torch")
CLIENTS, SCHEMA = sample_federation(rows=90)
HELD = over_clients(CLIENTS)


def protocol(name="fedsgd-mlp", **params):
    return register.make("protocol", Spec(name, {"batch": 4, "rounds": 2, "units": 8, **params}))


def run(name="fedsgd-mlp", defense="none", local_data=HELD, schema=SCHEMA, **params):
    composition = make_defense(parse_composed([defense])[0])
    return train(protocol(name, **params), local_data, schema, defense=composition, seed=1)


def sent(trained, kind=NetworkUpdate):
    return [d for d in trained.transcript if isinstance(d.message, kind)]


def test_columns_are_one_hot_encoded_and_standardised_with_pooled_moments():
    trained = run()
    standardisation = sent(trained, Standardisation)[0].message
    encoded = Encoding.of(SCHEMA).raw(np.concatenate([table.X for table in CLIENTS]))
    assert encoded.shape[1] == 4 + 3
    np.testing.assert_allclose(standardisation.mean, encoded.mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(standardisation.std, encoded.std(axis=0, ddof=1), rtol=1e-5)
    assert [delivery.receivers for delivery in sent(run(statistics="public"), Standardisation)]


def test_an_update_is_the_gradient_of_the_rows_that_the_round_used():
    trained = run()
    protocol_object, weights = (
        trained.protocol,
        {m.message.round: m.message.weights for m in sent(trained, NetworkWeights)},
    )
    encoding = trained.model.encoding
    for delivery in sent(trained):
        table = HELD[delivery.sender].table
        streams = Streams(1).child(delivery.sender)
        is_used = protocol_object.training_rows(len(table), streams, delivery.message.round)
        assert is_used.sum() == 4
        rows = table.take(is_used)
        layers = protocol_object.layers(SCHEMA)
        expected = training.mean_gradient(
            layers, weights[delivery.message.round], encoding.encode(rows.X), rows.y
        )
        np.testing.assert_allclose(delivery.message.update, 4 * expected, rtol=1e-4, atol=1e-7)


def test_local_training_equals_torchs_sgd():
    import torch

    trained = run("fedavg-mlp", epochs=2, local_rows=10, rounds=1)
    protocol_object, encoding = trained.protocol, trained.model.encoding
    start = sent(trained, NetworkWeights)[0].message.weights
    name = "client-1"
    table, streams = HELD[name].table, Streams(1).child(name)
    steps = protocol_object.batches(len(table), streams, 0, Composition())
    assert [len(rows_of_step) for rows_of_step in steps] == [4, 4, 2, 4, 4, 2]
    layers = protocol_object.layers(SCHEMA)
    parts = [
        torch.nn.Parameter(torch.tensor(array)) for layer in layers.split(start) for array in layer
    ]
    descent = torch.optim.SGD(parts, lr=protocol_object.lr)
    for rows in steps:
        descent.zero_grad()
        A = torch.tensor(encoding.encode(table.X[rows]))
        for k in range(0, 6, 2):
            A = torch.nn.functional.linear(A, parts[k], parts[k + 1])
            A = torch.relu(A) if k < 4 else A
        torch.nn.functional.cross_entropy(A, torch.tensor(table.y[rows])).backward()
        descent.step()
    final_weights = np.concatenate([parameter.detach().numpy().ravel() for parameter in parts])
    (sent_update,) = (delivery.message for delivery in sent(trained) if delivery.sender == name)
    np.testing.assert_allclose(sent_update.update / 10, final_weights - start, atol=1e-6)


def test_networks_learn_and_their_encoded_message_predicts_the_same():
    trained = run(rounds=30, batch=16, units=32, lr=0.3)
    table = Table.concat(CLIENTS)
    assert utility_scores(table.y, trained.predict(table.X))["auc"] > 0.85
    decoded = as_message(trained.model).model()
    assert np.array_equal(decoded.predict(table.X), trained.model.predict(table.X))


def test_clients_that_are_not_drawn_for_a_round_send_zeros():
    trained = run("fedavg-mlp", clients_per_round=1, local_rows=4)
    for round in (0, 1):
        rows = [
            delivery.message.rows[0]
            for delivery in sent(trained)
            if delivery.message.round == round
        ]
        assert sorted(rows) == [0, 0, 4]


def test_a_secure_sum_changes_the_model_only_by_rounding():
    undefended, secure = run(), run(defense="secure-sum")
    np.testing.assert_allclose(secure.model.weights, undefended.model.weights, atol=1e-6)
    unsealed = [delivery for delivery in sent(secure) if not has_sealed_field(delivery.message)]
    assert [(delivery.sender, delivery.receivers) for delivery in unsealed] == 2 * [
        ("server", ("server",))
    ]


def test_dp_sgd_clips_long_gradients_and_leaves_short_ones():
    gradients = np.random.default_rng(0).normal(size=(50, 20)).astype(np.float32)
    norms, clipped_gradients = np.linalg.norm(gradients, axis=1), clipped(gradients, 4.0)
    is_long = norms > 4
    assert 5 < is_long.sum() < 45
    assert np.array_equal(clipped_gradients[~is_long], gradients[~is_long])
    np.testing.assert_allclose(
        clipped_gradients[is_long], 4 * gradients[is_long] / norms[is_long, None], rtol=1e-5
    )
    assert (np.linalg.norm(clipped_gradients.astype(np.float64), axis=1) <= 4).all()


@pytest.mark.extra("dp_accounting")
@pytest.mark.extra("torch")
def test_dp_sgd_spends_the_claimed_epsilon():
    exact_statistics, public_statistics = (
        run(defense="dp-sgd[epsilon=2]"),
        run(defense="dp-sgd[epsilon=2]", statistics="public"),
    )
    assert exact_statistics.spent[1].epsilon == np.inf
    assert exact_statistics.spent[1].unprotected == ("columns", "rows")
    assert exact_statistics.spent[1].updates == pytest.approx(2, rel=0.02)
    assert public_statistics.spent[1].epsilon == pytest.approx(2, rel=0.02)
    # The number of rows is declared public, because rate, steps and noise depend on it.
    averaged = run("fedavg-mlp", defense="dp-sgd[epsilon=2]", statistics="public")
    rows = {delivery.sender: int(delivery.message.rows[0]) for delivery in sent(averaged)}
    assert rows == {name: len(data) for name, data in HELD.items()}
    for result in (public_statistics, averaged):
        assert result.claims[1].unprotected == result.spent[1].unprotected == ("rows",)
    assert "unprotected=rows" in join(averaged.claims)
    # Each row is sampled independently, so batch sizes vary, and `training_rows` knows the rows.
    training_rows = public_statistics.protocol.training_rows
    sizes = {
        int(
            training_rows(
                30, Streams(1, "seed").child(client), round_number, public_statistics.defense
            ).sum()
        )
        for client in HELD
        for round_number in (0, 1)
    }
    assert len(sizes) > 1


@pytest.mark.extra("dp_accounting")
def test_with_declared_rows_no_message_depends_on_the_number_of_rows():
    defense, runs_facts = "dp-sgd[epsilon=2,declared_rows=40]", []
    for n_removed in (0, 1):
        local_data = over_clients(
            [table.take(np.arange(len(table) - n_removed)) for table in CLIENTS]
        )
        result = run("fedavg-mlp", defense, local_data, statistics="public")
        assert result.claims[1].unprotected == result.spent[1].unprotected == ()
        assert result.spent[1].epsilon == pytest.approx(2, rel=0.02)
        noise = {(event.scale, event.rate, event.count) for event in result.transcript.events}
        runs_facts.append(
            (
                noise,
                len(result.transcript.events),
                [delivery.message.rows[0] for delivery in sent(result)],
            )
        )
    assert runs_facts[0] == runs_facts[1]
    assert runs_facts[0][0].pop()[1] == 4 / 40
    # Each row is drawn with the probability that the accountant assumes.
    n_rows, streams = 20_000, Streams(0)
    rows = result.protocol.batches(n_rows, streams, 0, result.defense)[0]
    assert abs(len(rows) / n_rows - 0.1) < 0.02
    # Shared trees reveal more than the number of rows, so declared_rows is refused.
    protocol_object = register.make("protocol", Spec("fedxgbllr", {"trees": 1}))
    with pytest.raises(UsageError, match="declared_rows, a step that no party of 'fedxgbllr'"):
        train(protocol_object, HELD, SCHEMA, defense=result.defense)


@pytest.mark.extra("dp_accounting")
def test_the_noise_of_dp_sgd_has_the_scale_in_the_ledger():
    noisy_run = run(defense="dp-sgd[epsilon=1,clip=1e-9]", statistics="public", units=50)
    sigma = {event.scale for event in noisy_run.transcript.events}
    values = np.concatenate([delivery.message.update for delivery in sent(noisy_run)])
    assert len(sigma) == 1
    assert values.std() == pytest.approx(sigma.pop(), rel=0.05)


@pytest.mark.extra("dp_accounting")
def test_an_epsilon_that_no_noise_buys_is_refused():
    with pytest.raises(UsageError, match="give a larger epsilon or delta"):
        run(defense="dp-sgd[epsilon=1e-9,delta=1e-12]")


@pytest.mark.parametrize(
    ("defense", "is_as_declared"),
    [
        (
            "gradient-noise[scale=0.5]",
            lambda changed_delivery, plain_delivery: (
                (changed_delivery - plain_delivery).std() == pytest.approx(0.5, rel=0.15)
            ),
        ),
        (
            "gradient-rounding[step=0.01]",
            lambda changed_delivery, plain_delivery: (
                np.abs(changed_delivery * 100 % 1 - 0.5).min() > 0.49
            ),
        ),
        (
            "top-k[share=0.1]",
            lambda changed_delivery, plain_delivery: (
                (changed_delivery != 0).sum() == int(0.1 * len(changed_delivery))
            ),
        ),
    ],
    ids=["noise", "rounding", "top-k"],
)
def test_updates_are_changed_as_the_defense_declares(defense, is_as_declared):
    changed, plain = sent(run(defense=defense, rounds=1)), sent(run(rounds=1))
    for changed_delivery, plain_delivery in zip(changed, plain, strict=True):
        assert is_as_declared(
            changed_delivery.message.update / 4, plain_delivery.message.update / 4
        )


def test_data_and_parameters_that_prevent_training_are_refused(monkeypatch):
    with pytest.raises(DataError, match="has 30 rows, fewer than the 31"):
        run(batch=31)
    regression_tables = [Table(table.X, table.X[:, 0].astype(np.float64)) for table in CLIENTS]
    with pytest.raises(UsageError, match="'label' is a number"):
        run(local_data=over_clients(regression_tables), schema=replace(SCHEMA, classes=()))
    with pytest.raises(DataError, match="diverges at lr=1e\\+30"):
        run(lr=1e30)
    with pytest.raises(UsageError, match="batch=0"):
        protocol(batch=0)
    unnamed = replace(
        SCHEMA, features=(*SCHEMA.features[:4], replace(SCHEMA.features[4], categories=()))
    )
    with pytest.raises(DataError, match="declares no categories"):
        run(schema=unnamed)
    open_ends = replace(
        SCHEMA, features=(replace(SCHEMA.features[0], low=None), *SCHEMA.features[1:])
    )
    with pytest.raises(DataError, match="'a' declares no range"):
        run(schema=open_ends, statistics="public")
    torch_module.cache_clear()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match="fedtrees\\[neural\\]"):
        run()
    torch_module.cache_clear()


def test_an_undeclared_category_is_refused_in_prediction_but_a_missing_value_is_not():
    model = run().model
    row = CLIENTS[0].X[:1].copy()
    row[0, 4] = 3
    with pytest.raises(DataError, match="column 4 has the code 3; its 3 categories are 0 to 2"):
        model.predict(row)
    row[0, :] = np.nan
    assert 0 < model.predict(row)[0] < 1


def test_constant_columns_and_batches_of_one_class_train():
    tables = [Table(np.where(np.arange(5) == 1, 7, t.X), np.zeros_like(t.y)) for t in CLIENTS]
    trained = run(local_data=over_clients(tables))
    assert trained.model.encoding.std[1] == 1
    assert np.isfinite(trained.model.weights).all()
