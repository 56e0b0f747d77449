"""Histogram defenses: only sums are opened, sums are rounded, and small bins are suppressed."""

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
def test_a_secure_sum_changes_no_model_and_hides_the_sums_of_single_clients(name):
    plain, clients = run(name=name)
    summed, _ = run(make("secure-sum"), name=name)
    assert same_model(plain, summed)
    view = view_of(summed, ("server",), over_clients(clients))
    opened = {item.sender for item, _ in view.messages(Histogram)}
    assert opened == {"server"}
    sealed = [item for item in view.seen if has_sealed_field(item.message)]
    assert {item.sender for item in sealed} == {
        f"client-{number}" for number in range(len(clients))
    }
    undefended_view = view_of(plain, ("server",), over_clients(clients))
    assert {item.sender for item, _ in undefended_view.messages(Histogram)} == {
        item.sender for item in sealed
    }


def test_a_secure_sum_of_sketches_is_exempt_with_a_reason():
    kinds = {type(d.message).__name__ for d in run(make("secure-sum"))[0].transcript}
    assert "FeatureSketch" in kinds
    kinds = {
        type(d.message).__name__ for d in run(make("secure-sum"), cuts="equal-width")[0].transcript
    }
    assert "FeatureRanges" in kinds


def histograms(training, sender="client-0"):
    return [
        delivery.message
        for delivery in training.transcript
        if isinstance(delivery.message, Histogram) and delivery.sender == sender
    ]


@pytest.mark.parametrize("step", [0.25, 1e-4])
def test_rounded_sums_lie_on_the_grid_and_near_the_exact_sums(step):
    rounded = histograms(run(make("hist-rounding", step=step), trees=1)[0])
    plain = histograms(run(trees=1)[0])
    grid = round(step * 2**30)
    for message in rounded:
        assert (message.sums % grid == 0).all()
        assert (message.totals % grid == 0).all()
    assert np.abs(rounded[0].sums - plain[0].sums).max() <= grid // 2 + 1
    assert (rounded[0].sums != plain[0].sums).any()
    channel = make("hist-rounding", step=step).channels(None, {})[Histogram, "sums"]
    channel = channel.in_units_of(*plain[0].unit_of("sums"))
    np.testing.assert_array_equal(channel.send(plain[0].sums), rounded[0].sums)
    low, high = channel.bounds(rounded[0].sums)
    assert ((low <= plain[0].sums) & (plain[0].sums <= high)).all()


def test_a_step_below_the_unit_changes_nothing():
    assert same_model(run()[0], run(make("hist-rounding", step=1e-12))[0])


@pytest.mark.parametrize(
    ("by", "message_type", "k"), [("client", Histogram, 6), ("server", GlobalHistogram, 25)]
)
def test_small_bins_are_sent_as_zero_and_no_others(by, message_type, k):
    name = "fedtree-hist" if by == "client" else "nvflare-hist"
    training, _ = run(make("min-bin", k=k, by=by), name=name)
    plain, _ = run(name=name)
    sent = [
        delivery.message
        for delivery in training.transcript
        if isinstance(delivery.message, message_type)
    ]
    for message in sent:
        is_visible = message.sums[..., 1] > 0
        assert (message.sums[is_visible][:, 1] >= k / 4 * 2**30).all()
        assert (message.sums[~is_visible] == 0).all()
    first = next(
        delivery.message
        for delivery in plain.transcript
        if isinstance(delivery.message, message_type)
    )
    is_small = first.sums[..., 1] < k / 4 * 2**30
    assert 0 < is_small.mean() < 1
    np.testing.assert_array_equal(sent[0].sums[~is_small], first.sums[~is_small])


def test_a_visible_bin_contains_at_least_k_rows():
    k = 6
    training, clients = run(make("min-bin", k=k), trees=1, max_depth=1)
    (message, *_) = histograms(training)
    cuts = next(
        delivery.message
        for delivery in training.transcript
        if type(delivery.message).__name__ == "CutPoints"
    )
    X = clients[0].X
    for feature in range(X.shape[1]):
        begin, end = cuts.offsets[feature], cuts.offsets[feature + 1]
        bins = np.minimum(
            np.searchsorted(cuts.values[begin:end], X[:, feature], side="right"), end - begin - 1
        )
        count = np.bincount(bins, minlength=end - begin)
        visible = message.sums[0, begin:end, 1] > 0
        assert (count[visible] >= k).all()


def test_a_server_that_suppresses_bins_grows_the_trees_that_its_clients_see():
    training, _ = run(make("min-bin", k=25, by="server"), name="nvflare-hist")
    plain, _ = run(name="nvflare-hist")
    assert not same_model(training, plain)
    messages = [
        delivery.message
        for delivery in training.transcript
        if isinstance(delivery.message, GlobalHistogram)
    ]
    cut_points = next(
        delivery.message
        for delivery in training.transcript
        if isinstance(delivery.message, CutPoints)
    )
    cuts = Cuts(cut_points.values, cut_points.offsets, cut_points.minimum)
    for number, tree in enumerate(training.model.trees):
        levels = [message for message in messages if message.tree == number]
        grower = TreeGrower(cuts, training.protocol, levels[0].totals[0])
        for level in levels:
            grower.choose_splits(level.sums, level.allowed)
        np.testing.assert_array_equal(grower.finish().value, tree.value)


def test_a_server_that_sends_no_sums_has_nothing_to_suppress():
    protocol = register.make("protocol", Spec("fedtree-hist"))
    by_server = Composition((make("min-bin", by="server"),))
    assert "GlobalHistogram, which '" in str(check_fit(protocol, by_server))
    assert check_fit(protocol, [make("min-bin", by="client")]).ok


@pytest.mark.parametrize(
    ("name", "params", "error_message"),
    [
        ("hist-rounding", {"step": 0}, "step must be"),
        ("hist-rounding", {"step": float("nan")}, "step must be"),
        ("min-bin", {"k": 1}, "give a whole number, 2 or more"),
        ("min-bin", {"k": 2.5}, "give a whole number, 2 or more"),
        ("min-bin", {"by": "anyone"}, "unknown by 'anyone'"),
    ],
)
def test_invalid_parameters_are_refused(name, params, error_message):
    with pytest.raises(UsageError, match=error_message):
        make(name, **params)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("hist-rounding", {"step": 1e9}),
        ("hist-rounding", {"step": 1e3, "random": True}),
        ("min-bin", {"k": 10**6}),
    ],
)
def test_defenses_that_suppress_every_sum_are_refused_before_training(name, params):
    with pytest.raises(UsageError, match=r"sends all sums alike: over 240 rows, gradients add up"):
        run(make(name, **params))
    # The sums are coarse, but not all equal.
    run(make("hist-rounding", step=20.0), trees=1)


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


@pytest.mark.parametrize("secure_sum", here("defense", ["secure-sum", "masking"]))
def test_a_view_contains_what_its_principals_sent_in_the_clear_and_nothing_of_others(
    secure_sum, tmp_path
):
    params = {"mode": "ideal"} if secure_sum == "masking" else {}
    rounding = make("hist-rounding", step=0.1)
    parts = (rounding, make(secure_sum, **params))
    clients, schema = sample_federation()
    protocol = register.make("protocol", Spec("nvflare-hist", {"trees": 1, "max_depth": 2}))
    local_data = over_clients(clients)
    sealed_run = train(protocol, local_data, schema, defense=Composition(parts), seed=1)
    open_run = train(protocol, local_data, schema, defense=Composition((rounding,)), seed=1)
    view = view_of(sealed_run, ("client-1",), local_data)
    own_histograms = [
        message for item, message in view.messages(Histogram) if item.sender == "client-1"
    ]
    sent = histograms(open_run, "client-1")
    assert len(own_histograms) == len(sent) > 0
    for viewed, expected in zip(own_histograms, sent, strict=True):
        np.testing.assert_array_equal(viewed.sums, expected.sums)
    assert {item.sender for item, _ in view.messages(Histogram)} == {"client-1"}
    assert not [
        message
        for item, message in view_of(sealed_run, ("server",), local_data).messages(Histogram)
        if not item.opened
    ]
    sealed_run.transcript.save(tmp_path / "run.npz")
    # Plain replies are stored in no file.
    assert Transcript.load(tmp_path / "run.npz").plain_replies == {}


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
