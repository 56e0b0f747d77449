"""Training with clients that drop out: sums over who stays, and errors that name who does not."""

from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from federations import sample_federation
from scipy.stats import nbinom

from fedtrees.core.composition import Composition
from fedtrees.core.errors import UsageError
from fedtrees.core.guarantee import Computational
from fedtrees.core.local_data import over_clients
from fedtrees.core.messages import without_payload
from fedtrees.core.registry import register
from fedtrees.core.specs import parse_grid, parse_one
from fedtrees.core.wire import encode
from fedtrees.crypto.masking import MaskedAggregation
from fedtrees.crypto.primitives import ExposureError, MissingPartyError, TooFewPartiesError
from fedtrees.defenses.masking import Masking
from fedtrees.experiments.evaluate import make_defense
from fedtrees.messages.aggregation import MaskSurvivors
from fedtrees.messages.horizontal import Histogram
from fedtrees.messages.models import as_message
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of

ALL = ("client-0", "client-1", "client-2", "client-3")
RUNS = {
    "boosted": "fedtree-hist[trees=4,max_depth=2,max_bin=6,early_stopping_rounds=3]",
    "all-reduce": "nvflare-hist[trees=4,max_depth=2,max_bin=6]",
    "forest": "forest-hist[trees=4,max_depth=2,max_bin=6]",
    "grid": "fedtree-hist[trees=3,max_depth=2,max_bin=6]",
}
KINDS = pytest.mark.parametrize("real", [True, False], ids=["real", "ideal"])


@dataclass(frozen=True)
class Losing(Masking):
    """Masks over a network that loses what a test says."""

    lost: object = None
    real: bool = True
    name = "masking"

    def secure_aggregation(self):
        made = MaskedAggregation(
            self.threshold, ideal=not self.real, dropout=0.0, exposing=self.exposing
        )
        made.loses = self.lost or made.loses
        return made


def run(protocol, defense="", clients=4, federation=None, seed=1):
    tables, schema = federation or sample_federation(rows=96, clients=4)
    tables = tables[:clients]
    if isinstance(defense, str):
        grid = ["grid-cuts"] if protocol == "grid" else []
        defense = make_defense(parse_one("+".join([*grid, *filter(None, [defense])]) or "none"))
    made = register.make("protocol", parse_grid(RUNS.get(protocol, protocol))[0])
    held = over_clients(tables)
    return train(made, held, schema, defense=defense, seed=seed), held


def survivors(training):
    return [d.message.parties for d in training.transcript if isinstance(d.message, MaskSurvivors)]


@pytest.fixture(scope="module", params=RUNS)
def dropped(request):
    """One protocol with dropout, computed and ideal, of a seed by which somebody misses a tree."""
    text, modes = "masking[threshold=3,dropout=0.1,exposing=true,mode={}]", ("real", "ideal")
    for seed in range(1, 9):
        try:
            made = [run(request.param, text.format(mode), seed=seed) for mode in modes]
        except TooFewPartiesError:
            continue
        if len({*survivors(made[0][0])}) > 1:
            return made[0][0], made[1][0], made[0][1]
    raise AssertionError("no seed with a dropout that can be borne")


def test_dropout_is_the_same_real_and_ideal(dropped):
    real, ideal, held = dropped
    assert encode(as_message(real.model)) == encode(as_message(ideal.model))
    assert survivors(real) == survivors(ideal)
    assert real.transcript.traffic() == ideal.transcript.traffic()
    costs, others = real.transcript.costs, ideal.transcript.costs
    assert costs.keys() == others.keys()
    assert all(costs[name] == others[name] for name in costs if "cpu" not in name)
    for who in ("server", *ALL):
        views = [view_of(t, (who,), held).seen for t in (real, ideal)]
        assert [encode(without_payload(s.message)) for s in views[0]] == [
            encode(without_payload(s.message)) for s in views[1]
        ]


def test_who_survived_is_in_the_view_of_server_and_clients(dropped):
    real, _, held = dropped
    told = survivors(real)
    for who in ("server", *ALL):
        seen = [s.message for s in view_of(real, (who,), held).seen]
        assert [m.parties for m in seen if isinstance(m, MaskSurvivors)] == told
    sent = []  # sealed values that came since the sum before
    for d in real.transcript:
        if isinstance(d.message, MaskSurvivors):
            assert d.message.parties == ",".join(sent)
            sent = []
        elif d.sender in ALL and any(f.metadata.get("summed") for f in fields(d.message)):
            sent.append(d.sender)


def test_all_sums_of_a_tree_are_over_the_same_clients(dropped):
    real, _, _ = dropped
    by_tree, opened = {}, None
    for d in real.transcript:
        if isinstance(d.message, MaskSurvivors):
            opened = d.message.parties
        elif d.receivers == (d.sender,) and hasattr(d.message, "tree"):
            by_tree.setdefault(d.message.series, set()).add(opened)
    assert len(by_tree) >= 3
    assert {len(found) for found in by_tree.values()} == {1}


def test_exposed_sums_are_in_the_claim(dropped):
    real, _, _ = dropped
    claim, spent = real.defense.claims()[-1], real.defense.spent(real.transcript)[-1]
    assert isinstance(claim, Computational)
    assert claim.uncovered[-1] == "differing-survivors"
    assert spent.uncovered[-1] == "differing-survivors"


@KINDS
def test_who_is_never_there_might_as_well_have_no_part_in_it(real):
    lost = Losing(3, lost=lambda name, reply, wire: name == "client-3", real=real)
    cuts = make_defense(parse_one("public-cuts"))
    for protocol in ("boosted", "all-reduce", "forest"):
        without, _ = run(protocol, cuts, clients=3)
        found, _ = run(protocol, Composition((*cuts.parts, lost)))
        assert {*survivors(found)} == {"client-0,client-1,client-2"}
        assert encode(as_message(found.model)) == encode(as_message(without.model))
        assert "differing-survivors" not in found.defense.spent(found.transcript)[-1].uncovered


@KINDS
@pytest.mark.parametrize("exposing", [False, True])
def test_who_drops_out_in_the_middle_of_a_tree_stops_the_run_by_name(real, exposing):
    def lost(name, reply, wire):
        below = isinstance(reply, Histogram) and reply.tree == 1 and reply.nodes[0] != 0
        return below and name == "client-1"

    losing = Losing(3, exposing=exposing, lost=lost, real=real)
    with pytest.raises(MissingPartyError, match="client-1: in some sums of tree 1 and missing in"):
        run("all-reduce", Composition((losing,)))


@KINDS
def test_too_few_stop_the_run_by_name(real):
    lost = Losing(3, lost=lambda name, reply, wire: name in ("client-0", "client-2"), real=real)
    with pytest.raises(TooFewPartiesError, match=r"2 parties sent .*missing: client-0, client-2\."):
        run("forest", Composition((lost,)))


@KINDS
def test_sums_that_differ_by_one_client_are_refused_by_default_and_tell_it_if_allowed(real):
    """Constant hessians count the same rows in every tree: the difference is one client's."""

    def lost(name, reply, wire):
        return name == "client-2" and getattr(reply, "tree", 0) == 1

    tables, schema = sample_federation(rows=96, clients=4)
    numbers = [replace(t, y=t.X[:, 0].astype(float)) for t in tables], replace(schema, classes=())
    name = "fedtree-hist[trees=2,max_depth=1,max_bin=6]"
    with pytest.raises(ExposureError, match="would reveal the array of client-2"):
        run(name, Composition((Losing(3, lost=lost, real=real),)), federation=numbers)
    allowed = Losing(3, exposing=True, lost=lost, real=real)
    found, held = run(name, Composition((allowed,)), federation=numbers)
    plain, _ = run(name, federation=numbers)
    sums = [m.sums for _, m in view_of(found, ("server",), held).messages(Histogram)
            if isinstance(m.sums, np.ndarray) and m.nodes[0] == 0]  # fmt: skip
    (own,) = [d.message for d in plain.transcript
              if isinstance(d.message, Histogram) and d.sender == "client-2"
              and d.message.tree == 0 and d.message.nodes[0] == 0]  # fmt: skip
    assert own.sums[..., 1].any()
    assert np.array_equal((sums[0] - sums[1])[..., 1], own.sums[..., 1])


@KINDS
def test_who_missed_a_sum_heard_of_it(real):
    """Sums over 0 and 1, 1 and 2, 0 and 2 tell all three; nobody is in more than two of them."""

    def lost(name, reply, wire):
        return name == f"client-{(2, 0, 1)[getattr(reply, 'tree', 0)]}"

    with pytest.raises(
        ExposureError, match="would reveal the array of client-0, client-1, client-2"
    ):
        run(
            "forest-hist[trees=3,max_depth=1,max_bin=6]",
            Composition((Losing(2, lost=lost, real=real),)),
            clients=3,
        )


def test_dropout_of_nobody_is_masking_as_it_was():
    texts = ("masking[mode=ideal]", "masking[mode=ideal,dropout=0.0]")
    bare, zero = (run("all-reduce", text)[0] for text in texts)
    assert [encode(d.message) for d in bare.transcript] == [
        encode(d.message) for d in zero.transcript
    ]


@pytest.mark.parametrize("wrong", ["dropout=1.0", "dropout=-0.1", "dropout=yes", "exposing=2"])
def test_options_that_are_none_are_refused(wrong):
    with pytest.raises(UsageError, match="give"):
        run("forest", f"masking[{wrong}]")


SHARED = {
    "dp-gbdt": ("dp-gbdt[noise=distributed,trees=2,max_depth=1]", ""),
    "dp-forest": ("dp-forest[noise=distributed,trees=2,depth=1,mechanism=geometric]", ""),
    "dp-grid-cuts": ("fedtree-hist[trees=1,max_depth=1]", "dp-grid-cuts[epsilon=1]+"),
}


@KINDS
@pytest.mark.parametrize("name", SHARED)
def test_sums_that_lack_a_share_of_the_noise_are_not_opened(name, real):
    protocol, parts = SHARED[name]
    tables, schema = sample_federation(rows=96, clients=4)
    made = register.make("protocol", parse_grid(protocol)[0])
    others = make_defense(parse_one(parts.rstrip("+") or "none")).parts

    def trained(lost):
        defense = Composition((*others, Losing(3, lost=lost, real=real)))
        return train(made, over_clients(tables), schema, defense=defense, seed=1)

    trained(lambda *_: False)
    opened = []

    def misses(who, reply, wire):
        opened.append(reply)
        return who == "client-2"

    with pytest.raises(TooFewPartiesError, match=r"3 of 4 .* calibrated for 4; missing: client-2"):
        trained(misses)
    assert len({type(reply) for reply in opened}) == 1  # nothing came after


def test_shares_are_calibrated_for_as_many_survivors_as_are_declared():
    tables, schema = sample_federation(rows=90, clients=5)
    made = register.make("protocol", parse_grid("fedtree-hist[trees=1,max_depth=1]")[0])

    def trained(survivors, *missing):
        cuts = make_defense(parse_one(f"dp-grid-cuts[epsilon=1,survivors={survivors}]")).parts
        masks = Losing(3, lost=lambda who, *_: who in missing, real=False)
        done = train(made, over_clients(tables), schema, defense=Composition((*cuts, masks)))
        return str(replace(done.spent[1], coalition=0.0))

    said = "pure-dp[epsilon=1,unit=cuts,trusted=clients,colluders=1]"
    assert trained(4) == trained(4, "client-1") == said
    with pytest.raises(TooFewPartiesError, match=r"3 of 5 .* calibrated for 4; missing: client-1"):
        trained(4, "client-1", "client-3")
    with pytest.raises(UsageError, match="survivors=6 of 5 clients"):
        trained(6)
    with pytest.raises(UsageError, match="survivors=0: give a whole number"):
        trained(0)


@pytest.mark.parametrize(
    ("d", "rounds", "left", "exact"),
    [(8, 1, 3, 3.80), (20, 1, 3, 6.61), (8, 2, 3, 5.75), (8, 1, 5, 1.0)],
)
def test_what_sums_without_all_shares_would_cost(d, rounds, left, exact):
    """A row is in one cell of each feature and round; five clients share noise of epsilon 1."""
    share = np.exp(nbinom.logpmf(np.arange(4096), left / 5, -np.expm1(-1 / (rounds * d))))
    noise = np.correlate(share, share, "full")[2048:-2048]  # of all who are left
    worst = np.abs(np.diff(np.log(noise))).max()
    assert rounds * d * worst == pytest.approx(exact, abs=0.01)
