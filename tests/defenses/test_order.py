"""Order of defenses: a composition keeps its claims, or it is refused."""

from dataclasses import dataclass, replace
from inspect import signature
from itertools import permutations

import numpy as np
import pytest
from federations import sample_federation

from fedtrees.core.composition import Composition
from fedtrees.core.defense import Context, Defense, ExampleStage, Requirements
from fedtrees.core.errors import LocalDataError, UsageError
from fedtrees.core.guarantee import PureDP
from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec, parse_grid, parse_one
from fedtrees.core.streams import Streams
from fedtrees.defenses import dp_sgd
from fedtrees.experiments.evaluate import make_defense
from fedtrees.messages.horizontal import GlobalHistogram, Histogram, LeafSums
from fedtrees.protocols.compatibility import check_fit
from fedtrees.protocols.training import train

NOISE = "laplace-hist[epsilon=1,calibrated=true]"


def defense_with_budget(name):
    """Return a registered defense with the first tried value, or 1, for each required parameter."""
    defense_class = register.get("defense", name)
    tried_values = defense_class.info.bench_grid
    required = [
        k
        for k, parameter in signature(defense_class).parameters.items()
        if parameter.default is parameter.empty
    ]
    return register.make("defense", Spec(name, {k: tried_values.get(k, (1,))[0] for k in required}))


def refused(*parts):
    try:
        Composition(parts)
    except UsageError as err:
        return str(err)
    return None


@pytest.mark.parametrize(
    ("wrong_order", "right_order"),
    [
        (f"hist-rounding[step=100]+{NOISE}", "laplace-hist+hist-rounding"),
        (f"min-bin[k=100]+{NOISE}", "laplace-hist+min-bin"),
        (
            f"split-only+min-bin+hist-rounding+{NOISE}",
            "laplace-hist+split-only+min-bin+hist-rounding",
        ),
        ("sketch-rounding+dp-quantile-cuts[epsilon=1]", "dp-quantile-cuts+sketch-rounding"),
    ],
)
def test_changing_sums_before_noise_is_refused_with_the_correct_order(wrong_order, right_order):
    with pytest.raises(
        UsageError, match=r"so that the claim of the latter does not hold; write (\S+)$"
    ) as error_info:
        make_defense(parse_one(wrong_order))
    assert str(error_info.value).endswith(f"write {right_order}")
    params = {part.name: part for part in parse_one(wrong_order).parts}
    parts = tuple(register.make("defense", params[name]) for name in right_order.split("+"))
    assert refused(*parts) is None


# All ordered pairs that are refused because of a claim, grouped by the first defense.
_LABELS = ("lp-1st", "lp-mst", "grafting-ldp")
_COUNT_ON_LABELS = ("id-lmid", "laplace-hist", "laplace-gradient", "dp-sgd")
BEFORE = {
    *((first, "laplace-hist") for first in ("hist-rounding", "min-bin")),
    ("sketch-rounding", "dp-quantile-cuts"),
    *((a, b) for a in _LABELS for b in _COUNT_ON_LABELS),
    *((b, a) for a in _LABELS for b in _COUNT_ON_LABELS),
    ("dp-sgd", "laplace-hist"),  # no protocol has both
    ("laplace-hist", "dp-sgd"),
    *((a, "dp-gd") for a in (*_LABELS, "dp-sgd", "laplace-gradient", "decrypted-precision")),
    *(("dp-gd", b) for b in (*_LABELS, "dp-sgd", "laplace-gradient")),
}


def test_exactly_the_ordered_pairs_whose_claim_would_not_hold_are_refused():
    parts = {name: defense_with_budget(name) for name in register.names("defense")}
    refused_pairs = {
        (first, second)
        for first, second in permutations(parts, 2)
        if "claim of the latter does not hold" in (refused(parts[first], parts[second]) or "")
    }
    assert refused_pairs == {pair for pair in BEFORE if {*pair} <= parts.keys()}
    assert all(
        "claim of the latter" in refused(parts[n], parts[n]) for n in ("laplace-hist", "dp-sgd")
    )


def test_a_triple_is_refused_if_and_only_if_one_of_its_pairs_is():
    parts = {name: defense_with_budget(name) for name in register.names("defense")}
    rng = np.random.default_rng(0)
    for _ in range(400):
        names = rng.choice(list(parts), 3, replace=False)
        pairs = [(names[i], names[j]) for i in range(3) for j in range(i + 1, 3)]
        any_pair_refused = any(refused(parts[first], parts[second]) for first, second in pairs)
        assert bool(refused(*(parts[n] for n in names))) == any_pair_refused


def test_suppression_by_the_server_follows_the_noise_of_clients_in_either_order():
    composition = make_defense(parse_one(f"min-bin[k=3,by=server]+{NOISE}"))
    assert composition.parts[0].handled_types == (GlobalHistogram,)


@dataclass(frozen=True)
class Halving(Defense):
    """Halve sums, which moves neighbouring tables closer without declaring it."""

    name = "halving"
    roles = frozenset({"client"})
    handled_types = (Histogram, LeafSums)

    def transform_message(self, message, ctx):
        return replace(message, sums=message.sums // 2)


class DeclaredHalving(Halving):
    nonexpansive = (Histogram, LeafSums)


class Relabelling(Defense):
    name = "relabelling"
    example_stages = frozenset({"labels"})

    def transform_examples(self, stage, values, ctx):
        return values


def test_a_defense_that_does_not_declare_nonexpansive_may_not_precede_noise():
    noise = defense_with_budget("laplace-hist")
    assert refused(Halving(), noise).endswith("write laplace-hist+halving")
    assert refused(noise, Halving()) is None
    assert refused(DeclaredHalving(), noise) is None
    assert refused(noise, Relabelling()).endswith("omit one of them")
    # Only columns are counted, so changed labels do not matter.
    assert refused(defense_with_budget("dp-grid-cuts"), Relabelling()) is None


@pytest.mark.parametrize("noise", ["central", "distributed"])
def test_a_protocol_with_its_own_noise_refuses_defenses_that_act_before_it(noise):
    protocol = register.make("protocol", parse_grid(f"dp-gbdt[noise={noise}]")[0])
    reason = str(check_fit(protocol, [Halving()]))
    assert reason == (
        "'halving' changes LeafSums before 'dp-gbdt' adds its noise, so that the claim of the "
        "protocol does not hold; omit the defense"
    )
    assert "changes labels before 'dp-gbdt'" in str(check_fit(protocol, [Relabelling()]))
    for defense in (
        DeclaredHalving(),
        defense_with_budget("dp-quantile-cuts"),
        defense_with_budget("leaf-rounding"),
        defense_with_budget("secure-sum"),
    ):
        assert check_fit(protocol, [defense]).ok
    exact = register.make("protocol", Spec("dp-gbdt", {"epsilon": np.inf}))
    # Without noise, the protocol claims nothing.
    assert check_fit(exact, [Halving()]).ok


@dataclass(frozen=True)
class Peeking(Defense):
    """Reads its party's rows after the noise."""

    name = "peeking"
    roles = frozenset({"client"})
    handled_types = (Histogram,)

    def transform_message(self, message, ctx):
        return replace(message, sums=message.sums + len(ctx.local_data))


class Open(Peeking):
    requirements = Requirements(reads_local_data=True)


class OwnClaim(Open):
    def claim(self):
        return PureDP(1.0)


def test_a_defense_that_reads_rows_must_declare_it_and_may_not_precede_noise():
    (*tables,), schema = sample_federation(rows=60)
    protocol = register.make("protocol", Spec("fedtree-hist", {"trees": 1, "max_depth": 1}))
    with pytest.raises(LocalDataError, match="'peeking' reads the local data of 'client-0'"):
        train(protocol, over_clients(tables), schema, defense=Composition((Peeking(),)))
    train(protocol, over_clients(tables), schema, defense=Composition((Open(),)))
    noise = defense_with_budget("laplace-hist")
    for parts in ((noise, Open()), (Open(), defense_with_budget("dp-grid-cuts"))):
        assert "uses the raw rows (reads_local_data)" in refused(*parts)
    assert refused(defense_with_budget("dp-grid-cuts"), OwnClaim()) is None
    private = register.make("protocol", Spec("dp-gbdt", {}))
    open_leaves = type("OpenLeaves", (Open,), {"handled_types": (LeafSums,)})()
    assert "uses the raw rows" in str(check_fit(private, [open_leaves]))


def test_a_defense_can_only_forbid_and_hide_more():
    class Free(Defense):
        name = "free"

        def allowed_splits(self, mask, tree, ctx):
            return np.ones_like(mask)

        def visible_nodes(self, mask, tree, ctx):
            return np.ones_like(mask)

    (*tables,), schema = sample_federation(rows=60)
    protocol = register.make("protocol", Spec("fedtree-hist", {"trees": 1, "max_depth": 1}))
    composition, training = Composition((Free(),)), train(protocol, over_clients(tables), schema)
    context, mask = training.net.hosts["server"].context, np.array([[True, False]])
    assert composition.allowed_splits(mask, 0, context).tolist() == [[True, False]]
    assert composition.visible_nodes(mask[0], 0, context).tolist() == [True, False]


def context_of(seed):
    """Return the context that the hooks of a client receive."""
    schema = sample_federation(rows=30)[1]
    return Context("client-0", "client", schema, {}, Streams(seed, "seed"), [])


@pytest.mark.parametrize(
    "other_defenses",
    ["gradient-noise", "gradient-rounding", "top-k", "secure-sum", "top-k+secure-sum"],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_row_moves_a_step_of_dp_sgd_by_at_most_the_clip_in_any_composition(
    other_defenses, is_first, monkeypatch
):
    monkeypatch.setattr(dp_sgd, "multiplier", lambda *_: 3.0)
    parts = [defense_with_budget(name) for name in other_defenses.split("+")]
    parts.insert(0 if is_first else len(parts), defense_with_budget("dp-sgd"))
    defense, stage = Composition(tuple(parts)), ExampleStage("example-gradients", rate=0.5, steps=2)
    gradients = np.random.default_rng(0).normal(0, 9, (6, 5)).astype(np.float32)
    contexts = [context_of(1), context_of(1)]
    sums = [
        defense.transform_examples(stage, rows, context).sum(axis=0)
        for rows, context in zip((gradients, gradients[:-1]), contexts, strict=True)
    ]
    assert np.linalg.norm(sums[0] - sums[1]) == pytest.approx(1.0, abs=1e-5)  # the clip
    (event,) = contexts[0].ledger
    assert (event.l2, event.scale, event.rate) == (1.0, 3.0, 0.5)
