"""Computations that do not depend on messages that defenses change are shared by all defenses."""

from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from fedtrees.attacks.membership.attack import MembershipInference
from fedtrees.attacks.timberstrike.attack import TimberStrike
from fedtrees.blind_baselines import recipes
from fedtrees.conformance.samples import sample_table, sample_training
from fedtrees.core.claims import Records
from fedtrees.core.errors import ProtocolError
from fedtrees.core.registry import register
from fedtrees.core.repeated import MOST_KEPT, Computed
from fedtrees.core.specs import Spec, parse_one
from fedtrees.experiments.evaluate import make_defense
from fedtrees.isolation import transfer
from fedtrees.isolation.process import AttackProcess
from fedtrees.protocols.views import view_of

PROTOCOL = Spec("fedtree-hist", {"trees": 3, "max_depth": 3, "max_bin": 16})
ATTACK = Spec("timberstrike")


def view_under(defense):
    protocol = register.make("protocol", PROTOCOL)
    training, local_data = sample_training(protocol, make_defense(parse_one(defense)))
    return view_of(training, ("client-2",), local_data)


def request_of(view, seed=0):
    state = np.random.default_rng(seed).bit_generator.state
    name = "fedtrees.blind_baselines.recipes:_recipe_and_pool"
    return {"compute": name, "arguments": (view.rows, view.schema), "state": dict(state)}


@pytest.fixture
def server():
    process = AttackProcess()
    yield process
    process.end()


@pytest.mark.long
def test_a_guess_does_not_depend_on_where_a_part_of_it_is_computed(server):
    for defense in ("none", "split-only"):
        view = view_under(defense)
        (remote,) = server.run(ATTACK, view).guess.all(Records)
        rng = transfer.generator(transfer.randomness(view, ATTACK.name))
        (local,) = TimberStrike().run(view, rng).all(Records)
        assert np.array_equal(remote.table.X, local.table.X)
        assert np.array_equal(remote.table.y, local.table.y)
    assert len(server._computed.results) == 1  # the same rows and random state under both defenses


@pytest.mark.long
def test_reference_models_are_trained_once_for_several_defenses(server):
    table, _ = sample_table()
    for defense in ("none", "split-only", "secure-sum"):
        view = replace(view_under(defense), candidates=table)
        attack = Spec("membership", {"models": 4})
        remote = server.run(attack, view).guess
        rng = transfer.generator(transfer.randomness(view, attack.name))
        with threadpool_limits(1):  # as in the process of an attack
            local = MembershipInference(models=4).run(view, rng)
        for claim, expected in zip(remote.claims, local.claims, strict=True):
            assert np.array_equal(claim.score, expected.score)
    assert len(server._computed.results) == 1


def test_a_cached_result_is_reused_for_equal_rows_and_random_state_only(monkeypatch):
    calls = []

    def counting(rows, schema, rng):
        calls.append(len(rows))
        return 0.1, "bootstrap+consensus", "", rows.take(rng.permutation(len(rows)))

    monkeypatch.setattr(recipes._recipe_and_pool, "__computed_once__", counting)
    view, computed = view_under("none"), Computed()
    first, second = (computed.reply(request_of(view)) for _ in range(2))
    assert len(calls) == 1
    assert first is second
    other_seed = computed.reply(request_of(view, seed=1))
    assert len(calls) == 2
    assert other_seed["state"] != first["state"]
    rng = np.random.default_rng(0)
    assert np.array_equal(first["value"][3].X, view.rows.X[rng.permutation(len(view.rows))])
    assert first["state"] == rng.bit_generator.state
    for seed in range(2, MOST_KEPT + 5):
        computed.reply(request_of(view, seed))
    assert len(computed.results) == MOST_KEPT


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "fedtrees.blind_baselines.guesses:blind_guesses",
        "fedtrees.blind_baselines.no:thing",
        5,
    ],
)
def test_only_marked_functions_are_computed_for_attacks(name):
    with pytest.raises(ProtocolError):
        Computed().reply({**request_of(view_under("none")), "compute": name})
