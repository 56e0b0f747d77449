"""Sums only, coarse sums, no small bins."""

from fractions import Fraction

import numpy as np
import pytest
from federations import sample_federation
from present import here

from fedtrees.core.composition import Composition
from fedtrees.core.defense import Defense, Requirements
from fedtrees.core.errors import UsageError
from fedtrees.core.local_data import over_clients
from fedtrees.core.messages import has_sealed_field
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.core.transcript import Transcript
from fedtrees.messages.horizontal import CutPoints, GlobalHistogram, Histogram
from fedtrees.protocols.compatibility import check_fit
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.grower import TreeGrower


def run(defense=None, name="fedtree-hist", **params):
    clients, schema = sample_federation()
    settings = {"trees": 4, "max_depth": 3, "max_bin": 16, **params}
    parts = () if defense is None else (defense,)
    protocol = register.make("protocol", Spec(name, settings))
    return train(
        protocol, over_clients(clients), schema, defense=Composition(parts), seed=1
    ), clients


def make(name, **params):
    return register.make("defense", Spec(name, params))


def same_model(a, b):
    return all(
        np.array_equal(s.feature, t.feature) and np.array_equal(s.value, t.value)
        for s, t in zip(a.model.trees, b.model.trees, strict=True)
    )


@pytest.mark.parametrize("name", ["fedtree-hist", "nvflare-hist"])
def test_a_secure_sum_changes_no_model_and_hides_every_client(name):
    plain, clients = run(name=name)
    summed, _ = run(make("secure-sum"), name=name)
    assert same_model(plain, summed)
    view = view_of(summed, ("server",), over_clients(clients))
    opened = {s.sender for s, _ in view.messages(Histogram)}
    assert opened == {"server"}
    sealed = [s for s in view.seen if has_sealed_field(s.message)]
    assert {s.sender for s in sealed} == {f"client-{i}" for i in range(len(clients))}
    before = view_of(plain, ("server",), over_clients(clients))
    assert {s.sender for s, _ in before.messages(Histogram)} == {s.sender for s in sealed}


def test_a_secure_sum_of_sketches_is_exempt_with_a_reason():
    kinds = {type(d.message).__name__ for d in run(make("secure-sum"))[0].transcript}
    assert "FeatureSketch" in kinds
    kinds = {
        type(d.message).__name__ for d in run(make("secure-sum"), cuts="equal-width")[0].transcript
    }
    assert "FeatureRanges" in kinds


def histograms(done, sender="client-0"):
    return [
        d.message
        for d in done.transcript
        if isinstance(d.message, Histogram) and d.sender == sender
    ]


@pytest.mark.parametrize("step", [0.25, 1e-4])
def test_rounded_sums_lie_on_the_grid_and_near_the_truth(step):
    rounded = histograms(run(make("hist-rounding", step=step), trees=1)[0])
    plain = histograms(run(trees=1)[0])
    grid = round(step * 2**30)
    for message in rounded:
        assert (message.sums % grid == 0).all()
        assert (message.totals % grid == 0).all()
    assert np.abs(rounded[0].sums - plain[0].sums).max() <= grid // 2 + 1
    assert (rounded[0].sums != plain[0].sums).any()
    law = make("hist-rounding", step=step).channels(None, {})[Histogram, "sums"]
    law = law.in_units_of(*plain[0].unit_of("sums"))
    np.testing.assert_array_equal(law.send(plain[0].sums), rounded[0].sums)
    low, high = law.bounds(rounded[0].sums)
    assert ((low <= plain[0].sums) & (plain[0].sums <= high)).all()


def test_a_step_below_the_unit_changes_nothing():
    assert same_model(run()[0], run(make("hist-rounding", step=1e-12))[0])


@pytest.mark.parametrize(
    ("by", "kind", "k"), [("client", Histogram, 6), ("server", GlobalHistogram, 25)]
)
def test_small_bins_are_sent_as_zero_and_no_other(by, kind, k):
    name = "fedtree-hist" if by == "client" else "nvflare-hist"
    done, _ = run(make("min-bin", k=k, by=by), name=name)
    plain, _ = run(name=name)
    sent = [d.message for d in done.transcript if isinstance(d.message, kind)]
    for message in sent:
        kept = message.sums[..., 1] > 0
        assert (message.sums[kept][:, 1] >= k / 4 * 2**30).all()
        assert (message.sums[~kept] == 0).all()
    first = next(d.message for d in plain.transcript if isinstance(d.message, kind))
    small = first.sums[..., 1] < k / 4 * 2**30
    assert 0 < small.mean() < 1
    np.testing.assert_array_equal(sent[0].sums[~small], first.sums[~small])


def test_a_visible_bin_holds_k_rows():
    k = 6
    done, clients = run(make("min-bin", k=k), trees=1, max_depth=1)
    (message, *_) = histograms(done)
    cuts = next(d.message for d in done.transcript if type(d.message).__name__ == "CutPoints")
    X = clients[0].X
    for f in range(X.shape[1]):
        a, b = cuts.offsets[f], cuts.offsets[f + 1]
        bins = np.minimum(np.searchsorted(cuts.values[a:b], X[:, f], side="right"), b - a - 1)
        count = np.bincount(bins, minlength=b - a)
        visible = message.sums[0, a:b, 1] > 0
        assert (count[visible] >= k).all()


def test_the_server_of_an_all_reduce_grows_what_its_clients_see():
    done, _ = run(make("min-bin", k=25, by="server"), name="nvflare-hist")
    plain, _ = run(name="nvflare-hist")
    assert not same_model(done, plain)
    messages = [d.message for d in done.transcript if isinstance(d.message, GlobalHistogram)]
    cut_points = next(d.message for d in done.transcript if isinstance(d.message, CutPoints))
    cuts = Cuts(cut_points.values, cut_points.offsets, cut_points.minimum)
    for number, tree in enumerate(done.model.trees):
        levels = [m for m in messages if m.tree == number]
        grower = TreeGrower(cuts, done.protocol, levels[0].totals[0])
        for level in levels:
            grower.choose_splits(level.sums, level.allowed)
        np.testing.assert_array_equal(grower.finish().value, tree.value)


def test_a_server_that_sends_no_sums_has_nothing_to_suppress():
    protocol = register.make("protocol", Spec("fedtree-hist"))
    by_server = Composition((make("min-bin", by="server"),))
    assert "GlobalHistogram, which '" in str(check_fit(protocol, by_server))
    assert check_fit(protocol, [make("min-bin", by="client")]).ok


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("hist-rounding", {"step": 0}, "step must be"),
        ("hist-rounding", {"step": float("nan")}, "step must be"),
        ("min-bin", {"k": 1}, "give a whole number, 2 or more"),
        ("min-bin", {"k": 2.5}, "give a whole number, 2 or more"),
        ("min-bin", {"by": "anyone"}, "unknown by 'anyone'"),
    ],
)
def test_parameters_are_checked(name, params, said):
    with pytest.raises(UsageError, match=said):
        make(name, **params)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("hist-rounding", {"step": 1e9}),
        ("hist-rounding", {"step": 1e3, "random": True}),
        ("min-bin", {"k": 10**6}),
    ],
)
def test_what_leaves_nothing_of_any_sum_is_refused_before_training(name, params):
    with pytest.raises(UsageError, match=r"sends all sums alike: over 240 rows, gradients add up"):
        run(make(name, **params))
    run(make("hist-rounding", step=20.0), trees=1)  # coarse, and something is left


def test_sums_are_exact_where_no_part_touches_them():
    parts = {
        ("secure-sum",): True,
        ("leaf-rounding", "split-only"): True,
        ("grid-cuts",): True,
        ("hist-rounding",): False,
        ("min-bin",): False,
    }
    for names, exact in parts.items():
        assert Composition(tuple(map(make, names))).sums_exactly is exact
    assert not Composition((make("laplace-gradient", epsilon=1.0),)).sums_exactly

    class Handmade(type(make("secure-sum"))):
        def transform_message(self, message, ctx):
            return message

    assert not Composition((Handmade(),)).sums_exactly


@pytest.mark.parametrize("seals", here("defense", ["secure-sum", "masking"]))
def test_a_view_holds_what_its_principals_sent_open_and_nothing_of_others(seals, tmp_path):
    params = {"mode": "ideal"} if seals == "masking" else {}
    rounding = make("hist-rounding", step=0.1)
    parts = (rounding, make(seals, **params))
    clients, schema = sample_federation()
    protocol = register.make("protocol", Spec("nvflare-hist", {"trees": 1, "max_depth": 2}))
    held = over_clients(clients)
    done = train(protocol, held, schema, defense=Composition(parts), seed=1)
    alone = train(protocol, held, schema, defense=Composition((rounding,)), seed=1)
    view = view_of(done, ("client-1",), held)
    mine = [m for s, m in view.messages(Histogram) if s.sender == "client-1"]
    sent = histograms(alone, "client-1")
    assert len(mine) == len(sent) > 0
    for a, b in zip(mine, sent, strict=True):
        np.testing.assert_array_equal(a.sums, b.sums)
    assert {s.sender for s, _ in view.messages(Histogram)} == {"client-1"}
    assert not [m for s, m in view_of(done, ("server",), held).messages(Histogram) if not s.opened]
    done.transcript.save(tmp_path / "run.npz")
    assert Transcript.load(tmp_path / "run.npz").plain_replies == {}  # in no file


@pytest.mark.parametrize("clip", [0.3, 0.1, 1 / 3])
def test_no_clipped_gradient_exceeds_a_bound_that_is_no_multiple_of_the_unit(clip):
    largest = []

    class Clipping(Defense):
        example_stages = frozenset({"gradients"})
        requirements = Requirements(gradient_clip=clip)

        def transform_examples(self, stage, values, ctx):
            if stage.kind == "gradients":
                largest.append(np.abs(values).max(axis=(0, 1)).tolist())
            return values

    run(Clipping(), trees=1)
    gradient, hessian = np.max(largest, axis=0).tolist()
    # The largest gradient reaches the bound, rounded down to whole units.
    assert gradient == int(Fraction(clip) * 2**30)
    assert hessian <= min(2 * Fraction(clip), Fraction(1, 4)) * 2**30
