"""The attack of the audit receives only the data that its adversary has, and nothing of the
attacked rows.
"""

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

N = 240  # number of training rows
# Chains differ only in their random draws, so one chain shows the input of all.
ONE_CHAIN = Options(chains=1)
SCHEMA = Schema(tuple(Feature(f"c{k}") for k in range(30)), "ill")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Train a central, a bagging and a cyclic model of one table. The audits need no declared
    eta and lambda.
    """
    folder = tmp_path_factory.mktemp("attack")
    X, y = (part[:N] for part in trained.table())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trained, "table", lambda: (X, y))
        model_files = {
            "one": trained.central(folder / "one.json", 4),
            "bagging": trained.bagging(folder / "bagging.json", 3),
            "turns": trained.cyclic(folder / "turns.json", 18),
        }
    reports = {kind: audit(read_model(one_file.path)) for kind, one_file in model_files.items()}
    assert {kind: one_report.sources.kind for kind, one_report in reports.items()} == {
        kind_of_model: kind_of_model for kind_of_model in model_files
    }
    return {kind: (model_files[kind], reports[kind]) for kind in model_files}


def dataset_of_clients(model_file, *clients):
    """Return the rows of some clients, or all rows if no client is given."""
    selected = (
        np.concatenate([model_file.parts[client] for client in clients])
        if clients
        else np.arange(len(model_file.y))
    )
    return Dataset("rows", SCHEMA, Table(model_file.X[selected], model_file.y[selected]))


def record_attacks(monkeypatch, *arguments):
    """Run the attack; return the bytes of its input and of its output for each reconstruction."""
    calls = []

    def spy(evidence, local_rows, schema, options, rng):
        guess = module_reconstruct(evidence, local_rows, schema, options, rng)
        trees = tuple(array.tobytes() for tree in evidence.trees for array in (tree.value, tree.h))
        records = (guessed.rows(guess).X.tobytes(), guessed.rows(guess).y.tobytes())
        counts = tuple(
            (counts_of_tree.n0.tobytes(), counts_of_tree.n1.tobytes())
            for counts_of_tree in guessed.counts(guess)
        )
        known_facts = (
            evidence.row_counts.n_rows,
            evidence.observed.own_inside,
            evidence.foreign,
            local_rows.X.tobytes(),
        )
        calls.append((trees, known_facts, records, counts))
        return guess

    module_reconstruct = module.reconstruct
    with monkeypatch.context() as patched:
        patched.setattr(module, "reconstruct", spy)
        attack(*arguments, options=ONE_CHAIN)
    return calls


def permute_rows(data, selected, seed=1):
    """Return a copy of a dataset in which the values of some rows are permuted in each column,
    and the labels.
    """
    rng = np.random.default_rng(seed)
    X, y = data.table.X.copy(), data.table.y.copy()
    for k in range(X.shape[1]):
        X[selected, k] = X[rng.permutation(selected), k]
    y[selected] = y[rng.permutation(selected)]
    return Dataset(data.name, data.schema, Table(X, y))


def attacked_rows(data):
    """Return the attacked rows of a table if the adversary has a fifth of the rows."""
    order = Streams(0).child("audit").rng("own-rows").permutation(len(data.table))
    return order[round(OWN_SHARE * len(order)) :]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "clients", "option"),
    [
        ("one", (), "own"), ("bagging", (), "own"), ("bagging", (0,), "own"), ("turns", (), "own"),
        ("turns", (0,), "own"), ("one", (), "truth"), ("turns", (0,), "truth"),
    ],
)  # fmt: skip
def test_permuting_the_attacked_rows_does_not_change_the_attack(
    models, monkeypatch, kind, clients, option
):
    model_file, report = models[kind]
    data = dataset_of_clients(model_file, *clients)
    permuted = permute_rows(data, attacked_rows(data))
    assert not np.array_equal(data.table.X, permuted.table.X)
    before, after = (
        record_attacks(
            monkeypatch, report, *((dataset, None) if option == "own" else (None, dataset))
        )
        for dataset in (data, permuted)
    )
    assert before
    assert before == after


@pytest.mark.long
def test_permuting_the_true_rows_does_not_change_an_attack_with_local_rows(models, monkeypatch):
    model_file, report = models["bagging"]
    local_rows, truth = dataset_of_clients(model_file, 1), dataset_of_clients(model_file, 0, 2)
    permuted = permute_rows(truth, np.arange(len(truth.table)))
    before, after = (
        record_attacks(monkeypatch, report, local_rows, true_rows)
        for true_rows in (truth, permuted)
    )
    assert len(before) == 2  # The client of the adversary is not attacked.
    assert before == after


@pytest.mark.long
@pytest.mark.parametrize("client", [0, 1, 2])
def test_a_fifth_of_the_rows_of_a_client_identifies_the_client(models, monkeypatch, client):
    model_file, report = models["bagging"]
    calls = record_attacks(monkeypatch, report, dataset_of_clients(model_file, client), None)
    assert [known_facts[:2] for _, known_facts, _, _ in calls] == [
        (len(model_file.parts[client]), True)
    ]


@pytest.mark.long
def test_leaf_counts_are_scored_if_the_rows_of_the_first_tree_are_known(models):
    """In a cyclic training, the first tree counts only the rows of the first client."""
    model_file, report = models["turns"]
    attack_on_all, attack_on_first = (
        attack(report, *data, options=ONE_CHAIN)
        for data in (
            (None, dataset_of_clients(model_file)),
            (dataset_of_clients(model_file, 0), None),
        )
    )
    assert [score.metric for score in attack_on_all.scores] == ["ra", "exact_rows"]
    assert (attack_on_all.rebuilt, attack_on_all.targets) == (len(model_file.parts[0]), N - N // 5)
    scores = {score.metric: score.score for score in attack_on_first.scores}
    assert scores["leaf_mass_exact"] == 1.0
    assert attack_on_first.rebuilt == attack_on_first.targets


@pytest.mark.long
def test_a_client_is_not_attacked_with_its_local_rows(models):
    model_file, report = models["turns"]
    assert (
        attack(
            report, dataset_of_clients(model_file, 0), dataset_of_clients(model_file, 1, 2)
        ).reason.code
        == "audited-own-rows"
    )
    assert (
        attack(
            report,
            dataset_of_clients(model_file, 1),
            dataset_of_clients(model_file, 0),
            options=ONE_CHAIN,
        ).reason
        is None
    )


def test_leaf_counts_of_one_other_client_are_scored(models):
    model_file, report = models["turns"]
    result = attack(
        report,
        dataset_of_clients(model_file, 1),
        dataset_of_clients(model_file, 0),
        options=ONE_CHAIN,
    )
    scores = {score.metric: score.score for score in result.scores}
    assert scores["leaf_mass_exact"] == 1.0


def test_an_attack_without_rows_of_any_kind_is_refused(models):
    _, report = models["one"]
    with pytest.raises(UsageError, match="no rows to attack with"):
        attack(report, None, None)
