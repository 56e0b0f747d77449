"""FedSGD and FedAvg on networks: encoding, updates, defenses, what they refuse."""

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


def run(name="fedsgd-mlp", defense="none", held=HELD, schema=SCHEMA, **params):
    by = make_defense(parse_composed([defense])[0])
    return train(protocol(name, **params), held, schema, defense=by, seed=1)


def sent(trained, kind=NetworkUpdate):
    return [d for d in trained.transcript if isinstance(d.message, kind)]


def test_columns_are_one_hot_and_standardised_as_all_rows_say():
    trained = run()
    told = sent(trained, Standardisation)[0].message
    raw = Encoding.of(SCHEMA).raw(np.concatenate([t.X for t in CLIENTS]))
    assert raw.shape[1] == 4 + 3
    np.testing.assert_allclose(told.mean, raw.mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(told.std, raw.std(axis=0, ddof=1), rtol=1e-5)
    assert [d.receivers for d in sent(run(statistics="public"), Standardisation)]


def test_an_update_is_the_gradient_of_the_rows_that_the_round_used():
    trained = run()
    made, weights = (
        trained.protocol,
        {m.message.round: m.message.weights for m in sent(trained, NetworkWeights)},
    )
    encoding = trained.model.encoding
    for delivery in sent(trained):
        table = HELD[delivery.sender].table
        streams = Streams(1).child(delivery.sender)
        used = made.training_rows(len(table), streams, delivery.message.round)
        assert used.sum() == 4
        rows = table.take(used)
        layers = made.layers(SCHEMA)
        whole = training.mean_gradient(
            layers, weights[delivery.message.round], encoding.encode(rows.X), rows.y
        )
        np.testing.assert_allclose(delivery.message.update, 4 * whole, rtol=1e-4, atol=1e-7)


def test_local_training_is_what_torch_s_optimiser_does():
    import torch

    trained = run("fedavg-mlp", epochs=2, local_rows=10, rounds=1)
    made, encoding = trained.protocol, trained.model.encoding
    start = sent(trained, NetworkWeights)[0].message.weights
    name = "client-1"
    table, streams = HELD[name].table, Streams(1).child(name)
    steps = made.batches(len(table), streams, 0, Composition())
    assert [len(s) for s in steps] == [4, 4, 2, 4, 4, 2]
    layers = made.layers(SCHEMA)
    parts = [torch.nn.Parameter(torch.tensor(p)) for layer in layers.split(start) for p in layer]
    descent = torch.optim.SGD(parts, lr=made.lr)
    for rows in steps:
        descent.zero_grad()
        A = torch.tensor(encoding.encode(table.X[rows]))
        for k in range(0, 6, 2):
            A = torch.nn.functional.linear(A, parts[k], parts[k + 1])
            A = torch.relu(A) if k < 4 else A
        torch.nn.functional.cross_entropy(A, torch.tensor(table.y[rows])).backward()
        descent.step()
    end = np.concatenate([p.detach().numpy().ravel() for p in parts])
    (mine,) = (d.message for d in sent(trained) if d.sender == name)
    np.testing.assert_allclose(mine.update / 10, end - start, atol=1e-6)


def test_networks_learn_and_their_message_predicts_the_same():
    trained = run(rounds=30, batch=16, units=32, lr=0.3)
    table = Table.concat(CLIENTS)
    assert utility_scores(table.y, trained.predict(table.X))["auc"] > 0.85
    again = as_message(trained.model).model()
    assert np.array_equal(again.predict(table.X), trained.model.predict(table.X))


def test_who_is_not_drawn_for_a_round_sends_zeros():
    trained = run("fedavg-mlp", clients_per_round=1, local_rows=4)
    for round in (0, 1):
        rows = [d.message.rows[0] for d in sent(trained) if d.message.round == round]
        assert sorted(rows) == [0, 0, 4]


def test_under_a_secure_sum_the_model_is_the_same_but_for_rounding():
    plain, summed = run(), run(defense="secure-sum")
    np.testing.assert_allclose(summed.model.weights, plain.model.weights, atol=1e-6)
    readable = [d for d in sent(summed) if not has_sealed_field(d.message)]
    assert [(d.sender, d.receivers) for d in readable] == 2 * [("server", ("server",))]


def test_dp_sgd_cuts_rows_to_the_norm_and_leaves_shorter_ones():
    gradients = np.random.default_rng(0).normal(size=(50, 20)).astype(np.float32)
    norms, kept = np.linalg.norm(gradients, axis=1), clipped(gradients, 4.0)
    long = norms > 4
    assert 5 < long.sum() < 45
    assert np.array_equal(kept[~long], gradients[~long])
    np.testing.assert_allclose(kept[long], 4 * gradients[long] / norms[long, None], rtol=1e-5)
    assert (np.linalg.norm(kept.astype(np.float64), axis=1) <= 4).all()


@pytest.mark.extra("dp_accounting")
@pytest.mark.extra("torch")
def test_dp_sgd_spends_what_it_claims():
    exact, covered = (
        run(defense="dp-sgd[epsilon=2]"),
        run(defense="dp-sgd[epsilon=2]", statistics="public"),
    )
    assert exact.spent[1].epsilon == np.inf
    assert exact.spent[1].unprotected == ("columns", "rows")
    assert exact.spent[1].updates == pytest.approx(2, rel=0.02)
    assert covered.spent[1].epsilon == pytest.approx(2, rel=0.02)
    # and says that the number of rows is public: rate, steps and noise depend on it
    told = run("fedavg-mlp", defense="dp-sgd[epsilon=2]", statistics="public")
    rows = {d.sender: int(d.message.rows[0]) for d in sent(told)}
    assert rows == {name: len(held) for name, held in HELD.items()}
    for one in (covered, told):
        assert one.claims[1].unprotected == one.spent[1].unprotected == ("rows",)
    assert "unprotected=rows" in join(told.claims)
    # every row by itself: batches of another size, and the harness knows which
    training_rows = covered.protocol.training_rows
    sizes = {
        int(training_rows(30, Streams(1, "seed").child(n), r, covered.defense).sum())
        for n in HELD for r in (0, 1)
    }  # fmt: skip
    assert len(sizes) > 1


@pytest.mark.extra("dp_accounting")
def test_of_declared_rows_nothing_that_crosses_follows_from_how_many_there_are():
    defense, told = "dp-sgd[epsilon=2,declared_rows=40]", []
    for more in (0, 1):
        held = over_clients([t.take(np.arange(len(t) - more)) for t in CLIENTS])
        one = run("fedavg-mlp", defense, held, statistics="public")
        assert one.claims[1].unprotected == one.spent[1].unprotected == ()
        assert one.spent[1].epsilon == pytest.approx(2, rel=0.02)
        noise = {(e.scale, e.rate, e.count) for e in one.transcript.events}
        told.append((noise, len(one.transcript.events), [d.message.rows[0] for d in sent(one)]))
    assert told[0] == told[1]
    assert told[0][0].pop()[1] == 4 / 40
    # each row is drawn at the rate that is accounted for
    n, streams = 20_000, Streams(0)
    rows = one.protocol.batches(n, streams, 0, one.defense)[0]
    assert abs(len(rows) / n - 0.1) < 0.02
    # trees that cross tell more than any number declared
    made = register.make("protocol", Spec("fedxgbllr", {"trees": 1}))
    with pytest.raises(UsageError, match="declared_rows, a step that no party of 'fedxgbllr'"):
        train(made, HELD, SCHEMA, defense=one.defense)


@pytest.mark.extra("dp_accounting")
def test_noise_of_dp_sgd_has_the_scale_that_the_accountant_asks_for():
    loud = run(defense="dp-sgd[epsilon=1,clip=1e-9]", statistics="public", units=50)
    sigma = {e.scale for e in loud.transcript.events}
    values = np.concatenate([d.message.update for d in sent(loud)])
    assert len(sigma) == 1
    assert values.std() == pytest.approx(sigma.pop(), rel=0.05)


@pytest.mark.extra("dp_accounting")
def test_an_epsilon_that_no_noise_buys_is_refused():
    with pytest.raises(UsageError, match="give a larger epsilon or delta"):
        run(defense="dp-sgd[epsilon=1e-9,delta=1e-12]")


@pytest.mark.parametrize(
    ("defense", "holds"),
    [
        ("gradient-noise[scale=0.5]", lambda a, b: (a - b).std() == pytest.approx(0.5, rel=0.15)),
        ("gradient-rounding[step=0.01]", lambda a, b: np.abs(a * 100 % 1 - 0.5).min() > 0.49),
        ("top-k[share=0.1]", lambda a, b: (a != 0).sum() == int(0.1 * len(a))),
    ],
    ids=["noise", "rounding", "top-k"],
)  # fmt: skip
def test_updates_leave_as_the_defense_says(defense, holds):
    changed, plain = sent(run(defense=defense, rounds=1)), sent(run(rounds=1))
    for a, b in zip(changed, plain, strict=True):
        assert holds(a.message.update / 4, b.message.update / 4)


def test_what_cannot_be_trained_on_is_refused(monkeypatch):
    with pytest.raises(DataError, match="has 30 rows, fewer than the 31"):
        run(batch=31)
    number = [Table(t.X, t.X[:, 0].astype(np.float64)) for t in CLIENTS]
    with pytest.raises(UsageError, match="'label' is a number"):
        run(held=over_clients(number), schema=replace(SCHEMA, classes=()))
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


def test_a_category_nobody_declared_is_refused_at_test_time_and_a_missing_one_is_not():
    model = run().model
    row = CLIENTS[0].X[:1].copy()
    row[0, 4] = 3
    with pytest.raises(DataError, match="column 4 has the code 3; its 3 categories are 0 to 2"):
        model.predict(row)
    row[0, :] = np.nan
    assert 0 < model.predict(row)[0] < 1


def test_constant_columns_and_batches_of_one_class_train():
    tables = [Table(np.where(np.arange(5) == 1, 7, t.X), np.zeros_like(t.y)) for t in CLIENTS]
    trained = run(held=over_clients(tables))
    assert trained.model.encoding.std[1] == 1
    assert np.isfinite(trained.model.weights).all()
