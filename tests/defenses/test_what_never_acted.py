"""Training refuses defenses that do not fit, and a defense that never acted guarantees nothing."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from federations import sample_federation

from fedtrees.conformance.checks import check
from fedtrees.core.composition import Composition
from fedtrees.core.defense import Defense, Requirements
from fedtrees.core.deterministic_channels import Decimals
from fedtrees.core.errors import LocalDataError, UsageError
from fedtrees.core.guarantee import ActedOnNothing, Structural
from fedtrees.core.local_data import over_clients
from fedtrees.core.messages import Reveal
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.messages.horizontal import Histogram, LeafValues
from fedtrees.protocols.training import train


def run(*defenses, name="fedtree-hist", **params):
    tables, schema = sample_federation()
    protocol = register.make("protocol", Spec(name, {"trees": 1, "max_depth": 2, **params}))
    return train(protocol, over_clients(tables), schema, defense=Composition(defenses))


def make(name, **params):
    return register.make("defense", Spec(name, params))


@pytest.mark.parametrize(
    ("defense", "protocol_name", "error_message"),
    [
        (
            ("min-leaf", {"k": 50}),
            "fedtree-hist",
            "min_leaf_rows, a step that no party of 'fedtree-",
        ),
        (
            ("min-leaf", {"k": 50}),
            "forest-hist",
            "min_leaf_rows, a step that no party of 'forest-h",
        ),
        (("laplace-gradient", {"epsilon": 1.0}), "flower-bagging", "Histogram, which '"),
        (("split-only", {}), "nvflare-hist", "which 'nvflare-hist' does not send"),
        (("secure-sum", {}), "local-forests", "which 'local-forests' does not send"),
    ],
)
def test_training_refuses_a_defense_that_does_not_fit(defense, protocol_name, error_message):
    name, params = defense
    with pytest.raises(UsageError, match=error_message):
        run(make(name, **params), name=protocol_name)


def test_one_misfit_among_several_is_named():
    with pytest.raises(UsageError, match="'min-leaf' acts through"):
        run(make("split-only"), make("min-leaf", k=9))


@dataclass(frozen=True)
class OddRows(Defense):
    """Change an input that no party of the tree-sharing protocols passes to it."""

    def transform_examples(self, stage, values, ctx):
        return values + 1

    def claim(self):
        return Structural()


def test_hooks_that_no_party_serves_are_refused():
    with pytest.raises(
        UsageError,
        match="acts through transform_examples, a step that no party of 'flower-bagging'",
    ):
        run(OddRows(), name="flower-bagging")


@pytest.mark.parametrize(
    ("spec", "protocol_name"),
    [
        (("split-only", {}), "fedtree-hist"),
        (("leaf-rounding", {"decimals": 1}), "forest-hist"),
        (("laplace-hist", {"epsilon": 4.0}), "fedtree-hist"),
        (("laplace-gradient", {"epsilon": 4.0}), "fedtree-hist"),
        (("hist-rounding", {"step": 0.5}), "nvflare-hist"),
        (("min-bin", {"k": 9}), "fedtree-hist"),
        (("secure-sum", {}), "forest-hist"),
        (("mask-sum-hessian", {}), "flower-cyclic"),
        (("min-leaf", {"k": 9}), "local-ensembles"),
    ],
)
def test_a_defense_that_acted_spends_its_guarantee(spec, protocol_name):
    part = make(spec[0], **spec[1])
    training = run(part, name=protocol_name)
    assert training.transcript.acted == {0}
    assert training.defense.spent(training.transcript) == [part.spent(training.transcript)]
    assert training.defense.spent(training.transcript) != [ActedOnNothing()]


def test_only_the_defense_that_never_acted_is_marked():
    plain = run()
    values = np.concatenate([tree.value for tree in plain.model.trees])
    assert np.array_equal(values, np.float32(values))
    training = run(make("hist-rounding", step=1e-12), make("split-only"))
    assert training.transcript.acted == {1}
    assert training.defense.spent(training.transcript) == [ActedOnNothing(), Structural()]
    assert str(ActedOnNothing()) == "acted-on-nothing"


@dataclass(frozen=True)
class Copying(Defense):
    """Gives everything back, but never the very same array."""

    roles = frozenset({"client", "server"})
    handled_types = (Histogram, LeafValues)

    def transform_examples(self, stage, values, ctx):
        return values.copy()

    def transform_message(self, message, ctx):
        return replace(message)

    def allowed_splits(self, mask, tree, ctx):
        return mask.copy()

    def audience(self, message, receivers, ctx):
        return tuple(receivers)

    def transform_answer(self, scores, ctx):
        return scores.copy()

    def claim(self):
        return Structural()


def test_returning_an_equal_copy_does_not_count_as_acting():
    training = run(Copying())
    training.predict(sample_federation()[0][0].X)
    assert training.defense.spent(training.transcript) == [ActedOnNothing()]


@dataclass(frozen=True)
class RoundedAnswers(Copying):
    """Act on predictions only."""

    def channels(self, schema, parameters):
        return {("answers", "scores"): Decimals(1)}

    def transform_answer(self, scores, ctx):
        return Decimals(1).send(scores)


def test_changing_predictions_counts_as_acting():
    training = run(RoundedAnswers())
    assert training.defense.spent(training.transcript) == [ActedOnNothing()]
    scores = training.predict(sample_federation()[0][0].X)
    assert np.array_equal(scores, np.round(scores, 1))
    assert training.defense.spent(training.transcript) == [Structural()]


@pytest.fixture
def scratch(monkeypatch):
    """Registrations of the test end with it."""
    monkeypatch.setattr(register, "_known", {k: dict(v) for k, v in register._known.items()})
    monkeypatch.setattr(register, "_origin", dict(register._origin))


def broken(name):
    return [f.rule for f in check("defense", Spec(name)) if not f.holds]


def test_plugin_check_fails_a_defense_that_never_acts_and_passes_one_that_does(
    scratch, monkeypatch
):
    monkeypatch.setattr(register, "names", lambda kind: ["fedtree-hist"])
    register.defense("copying")(Copying)
    register.defense("rounded-answers")(RoundedAnswers)
    assert broken("copying") == ["fedtree-hist: it acts on something"]
    assert broken("rounded-answers") == []


@dataclass(frozen=True)
class Reading(Defense):
    """Record the local data that its hooks may read."""

    visits: list
    roles = frozenset({"client", "server"})
    handled_types = (Histogram,)
    protects = frozenset[Reveal]()
    requirements = Requirements(reads_local_data=True)

    def transform_examples(self, stage, values, ctx):
        self.visits.append(
            (stage.kind, ctx.party, None if ctx.local_data is None else len(ctx.local_data))
        )
        return values

    def transform_message(self, message, ctx):
        self.visits.append(("outgoing", ctx.party, len(ctx.local_data)))
        return message

    def audience(self, message, receivers, ctx):
        self.visits.append(("audience", ctx.party, ctx.local_data))
        return receivers


def test_a_hook_reads_only_the_local_data_of_its_party():
    tables, schema = sample_federation(rows=90)
    sizes = {f"client-{number}": len(table) for number, table in enumerate(tables)}
    protocol = register.make("protocol", Spec("fedtree-hist", {"trees": 1, "max_depth": 1}))
    reading = Reading([])
    training = train(protocol, over_clients(tables), schema, defense=Composition((reading,)))
    kinds = {kind for kind, *_ in reading.visits}
    assert kinds == {"labels", "gradients", "outgoing", "audience"}
    for kind, party, n_rows in reading.visits:
        assert n_rows == (None if kind == "audience" else sizes[party])
    context = training.net.hosts["client-0"].context
    with pytest.raises(
        LocalDataError, match="local data of 'client-0' may be read only by the hooks of this party"
    ):
        _ = context.local_data


@dataclass(frozen=True)
class Peeping(Defense):
    """Read the local data of another party."""

    others: list

    def transform_examples(self, stage, values, ctx):
        self.others.append(ctx)
        for other in self.others[:-1]:
            _ = other.local_data
        return values


def test_a_hook_that_kept_another_partys_context_is_stopped():
    with pytest.raises(LocalDataError, match="the local data of 'client-0'"):
        run(Peeping([]))
