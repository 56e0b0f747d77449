"""What may stand before what adds noise: an order keeps its claims, or is refused."""

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


def made(name):
    """Return a registered defense with a budget that it tries, or 1, where it needs a value."""
    maker = register.get("defense", name)
    tries = maker.info.bench_grid
    needed = [k for k, p in signature(maker).parameters.items() if p.default is p.empty]
    return register.make("defense", Spec(name, {k: tries.get(k, (1,))[0] for k in needed}))


def refused(*parts):
    try:
        Composition(parts)
    except UsageError as err:
        return str(err)
    return None


@pytest.mark.parametrize(
    ("order", "right"),
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
def test_what_changes_sums_before_noise_is_refused_with_the_order_that_is_right(order, right):
    with pytest.raises(
        UsageError, match=r"so that the claim of the latter does not hold; write (\S+)$"
    ) as said:
        make_defense(parse_one(order))
    assert str(said.value).endswith(f"write {right}")
    params = {part.name: part for part in parse_one(order).parts}
    parts = tuple(register.make("defense", params[name]) for name in right.split("+"))
    assert refused(*parts) is None


# Every ordered pair that is refused because of a claim, by what acts before it.
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


def test_of_all_ordered_pairs_those_are_refused_whose_claim_would_not_hold():
    parts = {name: made(name) for name in register.names("defense")}
    found = {
        (a, b)
        for a, b in permutations(parts, 2)
        if "claim of the latter does not hold" in (refused(parts[a], parts[b]) or "")
    }
    assert found == {pair for pair in BEFORE if {*pair} <= parts.keys()}
    assert all(
        "claim of the latter" in refused(parts[n], parts[n]) for n in ("laplace-hist", "dp-sgd")
    )


def test_a_triple_is_refused_where_a_pair_in_it_is():
    parts = {name: made(name) for name in register.names("defense")}
    rng = np.random.default_rng(0)
    for _ in range(400):
        names = rng.choice(list(parts), 3, replace=False)
        pairs = [(names[i], names[j]) for i in range(3) for j in range(i + 1, 3)]
        worst = any(refused(parts[a], parts[b]) for a, b in pairs)
        assert bool(refused(*(parts[n] for n in names))) == worst


def test_a_server_that_suppresses_acts_after_clients_noise_wherever_it_is_written():
    both = make_defense(parse_one(f"min-bin[k=3,by=server]+{NOISE}"))
    assert both.parts[0].handled_types == (GlobalHistogram,)


@dataclass(frozen=True)
class Halving(Defense):
    """Halves sums: neighbours come closer, which nobody knows unless it says so."""

    name = "halving"
    roles = frozenset({"client"})
    handled_types = (Histogram, LeafSums)

    def transform_message(self, message, ctx):
        return replace(message, sums=message.sums // 2)


class Said(Halving):
    nonexpansive = (Histogram, LeafSums)


class Relabelling(Defense):
    name = "relabelling"
    example_stages = frozenset({"labels"})

    def transform_examples(self, stage, values, ctx):
        return values


def test_a_part_that_says_nothing_of_neighbours_may_not_act_before_noise():
    noise = made("laplace-hist")
    assert refused(Halving(), noise).endswith("write laplace-hist+halving")
    assert refused(noise, Halving()) is None
    assert refused(Said(), noise) is None
    assert refused(noise, Relabelling()).endswith("omit one of them")
    assert refused(made("dp-grid-cuts"), Relabelling()) is None  # columns alone are counted


@pytest.mark.parametrize("noise", ["central", "distributed"])
def test_a_protocol_with_noise_of_its_own_refuses_what_acts_before_it(noise):
    protocol = register.make("protocol", parse_grid(f"dp-gbdt[noise={noise}]")[0])
    said = str(check_fit(protocol, [Halving()]))
    assert said == (
        "'halving' changes LeafSums before 'dp-gbdt' adds its noise, so that the claim of the "
        "protocol does not hold; omit the defense"
    )
    assert "changes labels before 'dp-gbdt'" in str(check_fit(protocol, [Relabelling()]))
    for kept in (Said(), made("dp-quantile-cuts"), made("leaf-rounding"), made("secure-sum")):
        assert check_fit(protocol, [kept]).ok
    exact = register.make("protocol", Spec("dp-gbdt", {"epsilon": np.inf}))
    assert check_fit(exact, [Halving()]).ok  # it claims nothing


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


def test_what_reads_rows_says_so_and_needs_a_claim_beside_one():
    (*tables,), schema = sample_federation(rows=60)
    protocol = register.make("protocol", Spec("fedtree-hist", {"trees": 1, "max_depth": 1}))
    with pytest.raises(LocalDataError, match="'peeking' reads the local data of 'client-0'"):
        train(protocol, over_clients(tables), schema, defense=Composition((Peeking(),)))
    train(protocol, over_clients(tables), schema, defense=Composition((Open(),)))
    noise = made("laplace-hist")
    for parts in ((noise, Open()), (Open(), made("dp-grid-cuts"))):
        assert "uses the raw rows (reads_local_data)" in refused(*parts)
    assert refused(made("dp-grid-cuts"), OwnClaim()) is None
    private = register.make("protocol", Spec("dp-gbdt", {}))
    open_leaves = type("OpenLeaves", (Open,), {"handled_types": (LeafSums,)})()
    assert "uses the raw rows" in str(check_fit(private, [open_leaves]))


def test_a_part_forbids_and_hides_more_and_never_less():
    class Free(Defense):
        name = "free"

        def allowed_splits(self, mask, tree, ctx):
            return np.ones_like(mask)

        def visible_nodes(self, mask, tree, ctx):
            return np.ones_like(mask)

    (*tables,), schema = sample_federation(rows=60)
    protocol = register.make("protocol", Spec("fedtree-hist", {"trees": 1, "max_depth": 1}))
    free, done = Composition((Free(),)), train(protocol, over_clients(tables), schema)
    context, mask = done.net.context("server"), np.array([[True, False]])
    assert free.allowed_splits(mask, 0, context).tolist() == [[True, False]]
    assert free.visible_nodes(mask[0], 0, context).tolist() == [True, False]


def context_of(seed):
    """Return what a client's hooks may know."""
    schema = sample_federation(rows=30)[1]
    return Context("client-0", "client", schema, {}, Streams(seed, "seed"), [])


@pytest.mark.parametrize(
    "others", ["gradient-noise", "gradient-rounding", "top-k", "secure-sum", "top-k+secure-sum"]
)
@pytest.mark.parametrize("first", [True, False])
def test_a_step_of_dp_sgd_moves_by_its_clip_at_most_whatever_it_is_composed_with(
    others, first, monkeypatch
):
    monkeypatch.setattr(dp_sgd, "multiplier", lambda *_: 3.0)
    parts = [made(name) for name in others.split("+")]
    parts.insert(0 if first else len(parts), made("dp-sgd"))
    defense, stage = Composition(tuple(parts)), ExampleStage("example-gradients", rate=0.5, steps=2)
    gradients = np.random.default_rng(0).normal(0, 9, (6, 5)).astype(np.float32)
    contexts = [context_of(1), context_of(1)]
    sums = [
        defense.transform_examples(stage, rows, ctx).sum(axis=0)
        for rows, ctx in zip((gradients, gradients[:-1]), contexts, strict=True)
    ]
    assert np.linalg.norm(sums[0] - sums[1]) == pytest.approx(1.0, abs=1e-5)  # the clip
    (event,) = contexts[0].ledger
    assert (event.l2, event.scale, event.rate) == (1.0, 3.0, 0.5)
