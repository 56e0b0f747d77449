"""The attack of the audit is given what its attacker holds, and nothing of the rows it seeks."""

import guessed
import numpy as np
import pytest
import trained_models as trained

import fedtrees.model_audit.attack as module
from fedtrees.attacks.timberstrike import Options
from fedtrees.core.errors import UsageError
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.streams import Streams
from fedtrees.data.dataset import Dataset
from fedtrees.model_audit import audit, read_model
from fedtrees.model_audit.attack import attack
from fedtrees.model_audit.rows import OWN_SHARE

N = 240  # rows that models are trained on
ONE_CHAIN = Options(chains=1)  # chains differ in their draws alone: what one is given, all are
SCHEMA = Schema(tuple(Feature(f"c{k}") for k in range(30)), "ill")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Models of one table, of clients side by side and in turns; no eta and lambda are asked."""
    folder = tmp_path_factory.mktemp("attack")
    X, y = (whole[:N] for whole in trained.table())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trained, "table", lambda: (X, y))
        made = {
            "one": trained.central(folder / "one.json", 4),
            "bagging": trained.bagging(folder / "bagging.json", 3),
            "turns": trained.cyclic(folder / "turns.json", 18),
        }
    found = {kind: audit(read_model(m.path)) for kind, m in made.items()}
    assert {kind: a.sources.kind for kind, a in found.items()} == {k: k for k in made}
    return {kind: (made[kind], found[kind]) for kind in made}


def rows(made, *clients):
    """The rows of some clients; of none, all rows."""
    at = np.concatenate([made.parts[c] for c in clients]) if clients else np.arange(len(made.y))
    return Dataset("rows", SCHEMA, Table(made.X[at], made.y[at]))


def seen(monkeypatch, *arguments):
    """What an attack was given and what it returned, in bytes."""
    out = []

    def spy(evidence, own, schema, options, rng):
        guess = module_reconstruct(evidence, own, schema, options, rng)
        trees = tuple(array.tobytes() for t in evidence.trees for array in (t.value, t.h))
        records = (guessed.rows(guess).X.tobytes(), guessed.rows(guess).y.tobytes())
        counts = tuple((c.n0.tobytes(), c.n1.tobytes()) for c in guessed.counts(guess))
        known = (
            evidence.row_counts.n_rows,
            evidence.observed.own_inside,
            evidence.foreign,
            own.X.tobytes(),
        )
        out.append((trees, known, records, counts))
        return guess

    module_reconstruct = module.reconstruct
    with monkeypatch.context() as patched:
        patched.setattr(module, "reconstruct", spy)
        attack(*arguments, options=ONE_CHAIN)
    return out


def permuted(data, at, seed=1):
    """The same dataset with the values of some rows exchanged, column by column, and labels."""
    rng = np.random.default_rng(seed)
    X, y = data.table.X.copy(), data.table.y.copy()
    for k in range(X.shape[1]):
        X[at, k] = X[rng.permutation(at), k]
    y[at] = y[rng.permutation(at)]
    return Dataset(data.name, data.schema, Table(X, y))


def sought_of_a_part(data):
    """Which rows of a table are sought where a fifth of them is held."""
    order = Streams(0).child("audit").rng("own-rows").permutation(len(data.table))
    return order[round(OWN_SHARE * len(order)) :]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "whose", "option"),
    [
        ("one", (), "own"), ("bagging", (), "own"), ("bagging", (0,), "own"), ("turns", (), "own"),
        ("turns", (0,), "own"), ("one", (), "truth"), ("turns", (0,), "truth"),
    ],
)  # fmt: skip
def test_permuting_the_rows_sought_changes_nothing(models, monkeypatch, kind, whose, option):
    made, found = models[kind]
    data = rows(made, *whose)
    other = permuted(data, sought_of_a_part(data))
    assert not np.array_equal(data.table.X, other.table.X)
    before, after = (
        seen(monkeypatch, found, *((d, None) if option == "own" else (None, d)))
        for d in (data, other)
    )
    assert before
    assert before == after


@pytest.mark.long
def test_permuting_the_truth_beside_own_rows_changes_nothing(models, monkeypatch):
    made, found = models["bagging"]
    own, truth = rows(made, 1), rows(made, 0, 2)
    other = permuted(truth, np.arange(len(truth.table)))
    before, after = (seen(monkeypatch, found, own, t) for t in (truth, other))
    assert len(before) == 2  # not the attacker's own client
    assert before == after


@pytest.mark.long
@pytest.mark.parametrize("client", [0, 1, 2])
def test_a_fifth_of_a_client_s_rows_tells_which_client_it_is(models, monkeypatch, client):
    made, found = models["bagging"]
    given = seen(monkeypatch, found, rows(made, client), None)
    assert [known[:2] for _, known, _, _ in given] == [(len(made.parts[client]), True)]


@pytest.mark.long
def test_leaves_are_scored_where_their_rows_are_known(models):
    """Of clients in turns the first tree counts the rows of the first alone."""
    made, found = models["turns"]
    whole, first = (
        attack(found, *given, options=ONE_CHAIN)
        for given in ((None, rows(made)), (rows(made, 0), None))
    )
    assert [s.metric for s in whole.scores] == ["ra", "exact_rows"]
    assert (whole.rebuilt, whole.targets) == (len(made.parts[0]), N - N // 5)
    scores = {s.metric: s.score for s in first.scores}
    assert scores["leaf_mass_exact"] == 1.0
    assert first.rebuilt == first.targets


@pytest.mark.long
def test_nobody_attacks_his_own_rows(models):
    made, found = models["turns"]
    assert attack(found, rows(made, 0), rows(made, 1, 2)).reason.code == "audited-own-rows"
    assert attack(found, rows(made, 1), rows(made, 0), options=ONE_CHAIN).reason is None


def test_rows_of_one_other_client_are_scored_by_leaf(models):
    made, found = models["turns"]
    done = attack(found, rows(made, 1), rows(made, 0), options=ONE_CHAIN)
    scores = {s.metric: s.score for s in done.scores}
    assert scores["leaf_mass_exact"] == 1.0


def test_an_attack_without_rows_of_any_kind_is_refused(models):
    _, found = models["one"]
    with pytest.raises(UsageError, match="no rows to attack with"):
        attack(found, None, None)
