"""Labels from what a passive party sees of vertical trees."""

from dataclasses import replace
from functools import cache

import columns
import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import v_measure_score

from fedtrees.attacks.labels import mixture
from fedtrees.attacks.labels.attack import FewShot, ID2Graph, LabelMixture, Spectral
from fedtrees.attacks.labels.communities import contract
from fedtrees.attacks.labels.endpoint import AskedLabels, RoutedRows
from fedtrees.attacks.labels.evidence import own_columns, seen_leaves, seen_trees, tree_weights
from fedtrees.attacks.labels.mixture import denoise_labels, mixture_of
from fedtrees.attacks.labels.split_likelihood import Candidates, log_probability
from fedtrees.core.claims import Labels, RoutedLabels
from fedtrees.core.composition import Composition
from fedtrees.core.errors import UsageError
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import Spec, parse_grid
from fedtrees.core.streams import Streams
from fedtrees.messages import vertical
from fedtrees.messages.vertical import replayed, visible_leaves
from fedtrees.metrics.labels import LabelScores, RoutedLabelScores
from fedtrees.metrics.metric import Case
from fedtrees.privacy.noise import Response
from fedtrees.privacy.randomised_response import odds_within, respond
from fedtrees.protocols.compatibility import KnownFacts, check_fit
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of

ALL = (
    "union", "union-cl", "id2graph", "id2graph-published", "merged-communities", "spectral",
    "label-mixture",
)  # fmt: skip


@cache
def world(protocol, seed=0, parties=2):
    """Return what the last party without labels has seen of breast cancer, and the labels."""
    table = load_breast_cancer()
    schema = Schema(tuple(Feature(f"x{i}") for i in range(30)), "y", ("0", "1"))
    held = columns.dealt(Table(table.data, table.target), parties, seed)
    made = register.make("protocol", parse_grid(protocol)[0])
    run = train(made, held, schema, seed=seed)
    return view_of(run, (f"passive-{parties - 1}",), held), table.target


def measure(attack, view, y):
    (claim,) = attack.run(view, np.random.default_rng(0)).all(Labels)
    np.testing.assert_array_equal(claim.ids, view.local_data[0].ids)
    return v_measure_score(y, claim.cluster)


@pytest.fixture
def few_restarts(monkeypatch):
    """Climb from fewer places than by default: what is asserted is reached without the others."""
    monkeypatch.setattr(mixture, "MOST_KICKS", 1)
    monkeypatch.setattr(mixture, "PATIENCE", 1)


def model_of(view):
    leaves, trees = seen_leaves(view, "drop")
    twins = contract(leaves, tree_weights(view, int(trees.max()) + 1, 0.6)[trees])
    return mixture_of(view, own_columns(view), twins, trees, len(view.schema.classes))


@pytest.mark.long
def test_targets_on_breast_cancer(few_restarts):
    """Means of two seeds, one for climbs; the paper prints .751 and .736 for ID2Graph."""
    seen = {p: [world(p, s) for s in (0, 1)] for p in ("vertical-forest", "secureboost")}

    def mean(attack, protocol):
        return np.mean([measure(attack, *w) for w in seen[protocol]])

    assert mean(ID2Graph(), "vertical-forest") > 0.6
    assert mean(Spectral(), "vertical-forest") > 0.8
    assert mean(Spectral(), "secureboost") > 0.84
    assert measure(LabelMixture(), *seen["secureboost"][0]) > 0.97


@pytest.mark.slow
def test_a_climb_reaches_its_target_on_a_forest(few_restarts):
    assert measure(LabelMixture(), *world("vertical-forest")) > 0.86


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["vertical-forest", "secureboost"])
def test_true_labels_explain_what_was_chosen(protocol):
    view, y = world(protocol)
    model = model_of(view)
    true = model.splits(np.eye(2)[y])[0]
    turned = np.where(np.arange(len(y)) % 10 == 0, 1 - y, y)
    assert true > -60
    assert model.splits(np.eye(2)[turned])[0] < true - 100
    assert model.splits(np.eye(2)[1 - y])[0] == pytest.approx(true, abs=1e-6)  # names are no matter


def test_no_own_candidate_gains_more_than_what_was_taken():
    """In the first tree of a forest, by true labels: exact, over all nodes with known children."""
    view, y = world("vertical-forest")
    model, one_hot = model_of(view), np.eye(2)[y]
    tree = model.trees[0]
    checked = 0
    for begin, middle, end in zip(tree.begin, tree.middle, tree.end, strict=True):
        if middle < 0:
            continue
        rows = tree.rows[begin:end]

        def gain(left, rows=rows):
            parts = (one_hot[rows[left]].sum(0), one_hot[rows[~left]].sum(0))
            return sum((p**2).sum() / p.sum() for p in parts if p.sum())

        taken = gain(np.arange(len(rows)) < middle - begin)
        for f in np.flatnonzero(tree.usable):
            for b in range(model.candidates.n_bins[f] - 1):
                assert gain(model.candidates.codes[rows, f] <= b) <= taken + 1e-9
                checked += 1
    assert checked > 1000


@pytest.mark.long
@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_the_slope_is_the_derivative(lam):
    view, _ = world("vertical-forest" if lam == 0 else "secureboost")
    model = model_of(view)
    rng = np.random.default_rng(0)
    N = len(model.leaf)
    G, H = rng.normal(size=(N, 2)), rng.uniform(0.5, 1, (N, 2))
    tree, way = model.trees[0], 1e-6 * rng.normal(size=(N, 2))

    def told(G):
        return log_probability(tree, model.candidates, G, H, lam, 0.1, 0.2)

    fit, slope = told(G)
    change = told(G + way)[0] - told(G - way)[0]
    assert fit < 0
    assert change == pytest.approx(2 * (slope * way).sum(), rel=1e-4)


def test_no_candidates_say_nothing():
    tree = model_of(world("secureboost")[0]).trees[0]
    N = len(world("secureboost")[1])
    own = Candidates(np.zeros((N, 15), np.int64), np.ones(15, np.int64))
    fit, slope = log_probability(tree, own, np.ones((N, 1)), np.ones((N, 1)), 1.0, 0.0, 0.0)
    assert fit == 0
    assert not slope.any()


def test_what_is_read_of_a_tree_is_what_was_seen():
    view, _ = world("vertical-forest")
    leaves = visible_leaves(view)
    own = own_columns(view)
    for tree in seen_trees(view, own.positions):
        assert sorted(tree.rows) == np.flatnonzero(leaves[:, tree.number] >= 0).tolist()
        inside = tree.leaf >= 0
        pairs = set(zip(tree.leaf[inside], leaves[inside, tree.number], strict=True))
        assert len(pairs) == len(set(tree.leaf[inside])) == len({b for _, b in pairs})
        assert tree.usable.sum() == 12  # 80% of 15 columns
        for begin, end in zip(tree.begin, tree.end, strict=True):
            here = leaves[tree.rows[begin:end], tree.number]
            outside = np.delete(tree.rows, np.s_[begin:end])
            assert not set(here) & set(leaves[outside, tree.number])  # a slice is a whole node


@pytest.mark.long
def test_nodes_without_rows_show_nothing_of_labels():
    """Noise on the sums of bins can make a tree split a node into all of its rows and none."""
    view, _ = world("vertical-forest")
    (number, known), *_ = sorted(replayed(view).items())
    last = int(known.partition.rows[-1])  # the node of the last row ends where the rows end
    (node,) = [n for n in known.leaves if last in known.rows_of(n)]
    left, every = 2 * node + 1, np.ones(len(known.rows_of(node)), dtype=bool)
    split = vertical.RoutedRows(number, *(np.array([n], np.int32) for n in (node, left)), every)
    item = replace(view.seen[-1], message=split)
    noisy = replace(view, seen=(*view.seen, item), parameters=view.parameters | {"max_depth": 99})
    tree, *_ = seen_trees(noisy, own_columns(view).positions)
    assert (tree.begin < tree.end).all()
    inner = tree.middle >= 0
    assert (tree.middle[inner] > tree.begin[inner]).all()
    assert (tree.middle[inner] < tree.end[inner]).all()
    assert len(np.unique(tree.leaf[tree.early])) == len(tree.early)  # a row of each leaf


@pytest.mark.long
def test_clusters_are_named_after_classes_that_have_trees():
    run, held = columns.run("secureboost[trees=2]", classes=3)
    view, y = columns.seen_by(run, held, "passive-1"), held["active"].y
    model = model_of(view)
    for names in ([0, 1, 2], [1, 2, 0], [2, 1, 0]):
        np.testing.assert_array_equal(model.name_clusters(np.array(names)[y]), y)


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "protocol", ["vertical-forest[trees=2]", "secureboost[trees=2,multi_output=true]"]
)
def test_classes_missing_values_and_several_parties(few_restarts, name, protocol):
    """Three classes, a tenth of the cells missing, two of three parties together."""
    run, held = columns.run(protocol, parties=3, classes=3)
    view = columns.seen_by(run, held, "passive-1", "passive-2")
    attack = register.make("attack", Spec(name, {}))
    assert attack.inapplicable(view) is None
    assert measure(attack, view, held["active"].y) >= 0


@pytest.mark.parametrize("name", ALL)
def test_who_sees_no_ids_or_has_labels_has_nothing_to_read(name):
    attack = register.make("attack", Spec(name, {}))
    run, held = columns.run("secureboost[trees=1]")
    assert "no record ids" in str(
        attack.inapplicable(columns.seen_by(run, held, "passive-1").blinded())
    )
    assert "have no rows without labels" in str(
        attack.inapplicable(columns.seen_by(run, held, "active"))
    )
    assert attack.run(columns.seen_by(run, held, "active"), np.random.default_rng(0)).claims == ()


def test_trees_of_one_visible_leaf_tell_who_was_drawn(monkeypatch):
    view, _ = world("vertical-forest")
    leaves = visible_leaves(view)
    leaves[:, 1] = np.where(leaves[:, 1] >= 0, 0, -1)
    leaves[:, 3] = -1
    monkeypatch.setattr("fedtrees.attacks.labels.evidence.visible_leaves", lambda _: leaves)
    assert seen_leaves(view, "drop")[1].tolist() == [0, 2, 4]
    assert seen_leaves(view, "keep")[1].tolist() == [0, 1, 2, 4]


@pytest.mark.long
def test_a_sample_of_rows_stands_for_all(few_restarts):
    view, y = world("secureboost")
    assert measure(LabelMixture(rows=250), view, y) > 0.6


def test_the_published_attack_refuses_what_it_would_walk_through_for_hours():
    def of(name, rows):
        return check_fit(attack=Spec(name), facts=KnownFacts(rows=rows))

    assert of("id2graph-published", 20_001) == Reason("too-many-rows", rows=20_001, most=20_000)
    assert "20,001 training rows" in str(of("id2graph-published", 20_001))
    assert of("id2graph-published", 20_000).ok
    assert of("id2graph", 20_001).ok


@pytest.mark.long
def test_few_known_labels_are_drawn_declared_spread_and_not_scored(few_restarts):
    table = load_breast_cancer()
    schema = Schema(tuple(Feature(f"x{i}") for i in range(30)), "y", ("0", "1"))
    held = columns.dealt(Table(table.data, table.target), 2)
    made = register.make("protocol", parse_grid("vertical-forest")[0])
    roles = dict(made.roles(2))
    case = Case(held, roles, ("passive-1",), schema, Streams(1), "passive[labels=20]")
    assert len(case.known_labels) == 20
    np.testing.assert_array_equal(case.known_labels.y, table.target[case.known_labels.ids])
    truth = LabelScores().truth(case)
    assert len(truth.ids) == len(table.target) - 20
    assert not np.isin(truth.ids, case.known_labels.ids).any()
    run = train(made, held, schema, seed=1)
    view = view_of(run, ("passive-1",), held, known_rows=case.known_labels)
    guess = FewShot().run(view, np.random.default_rng(0))
    scores = {s.name: s.value for s in LabelScores().score(guess.claims, truth)}
    assert LabelScores().refuses(guess.claims, case) is None
    blind = LabelScores().blind(case, truth)
    assert {"cl", "cl-few-shot"} <= set(blind)
    line = {s.name: s.value for s in LabelScores().score(blind["cl-few-shot"], truth)}
    assert scores["v_measure"] > line["v_measure"] > 0.3
    assert "knows no labels" in str(FewShot().inapplicable(view_of(run, ("passive-1",), held)))
    assert "have no rows without labels" in str(
        FewShot().inapplicable(view_of(run, ("active",), held))
    )


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        ("id2graph", {"single": "foo"}, "unknown single 'foo'; known: drop, keep"),
        ("union", {"decay": 0}, "decay=0: give a number above 0, at most 1"),
        ("label-mixture", {"rows": 0}, "rows=0: give a whole number, 2 or more"),
        ("label-mixture", {"single": "dorp"}, "did you mean 'drop'"),
    ],
)
def test_parameters_out_of_range_are_refused_before_anything_is_trained(name, parameters, said):
    with pytest.raises(UsageError, match=said):
        register.make("attack", Spec(name, parameters))


def test_true_labels_are_guessed_from_noisy_ones_and_own_columns():
    """Three classes on a line, with the noise of one stage of LP-MST."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 2)).astype(np.float32)
    y = np.digitize(X[:, 0], [-0.4, 0.4])
    said = respond(y, np.full((900, 3), 1 / 3), odds_within(1.0), rng)
    assert (said == y).mean() < 0.65
    assert (denoise_labels(said, X, 3, Response(1.0, 3), rng) == y).mean() > 0.9


@pytest.mark.long
def test_noisy_labels_are_what_splits_give_away(few_restarts, monkeypatch):
    """At epsilon 2 splits tell nearly all noisy labels, and these the true ones."""
    table, found = load_breast_cancer(), []
    schema = Schema(tuple(Feature(f"x{i}") for i in range(30)), "y", ("0", "1"))
    held = columns.dealt(Table(table.data, table.target), 2, 0)
    by = Composition((register.make("defense", parse_grid("lp-1st[epsilon=2]")[0]),))
    run = train(register.make("protocol", Spec("secureboost", {})), held, schema, defense=by)
    view = view_of(run, ("passive-1",), held)
    monkeypatch.setattr(
        "fedtrees.attacks.labels.attack.denoise_labels",
        lambda said, *rest: found.append(said) or denoise_labels(said, *rest),
    )
    v = measure(LabelMixture(), view, table.target)
    (said,) = found
    assert v_measure_score(run.model.y, said) > 0.85
    assert v > v_measure_score(table.target, said) + 0.1


def asked(answers, queries):
    """Return the V-measure of what an endpoint answers of so many training rows of 569."""
    table = load_breast_cancer()
    schema = Schema(tuple(Feature(f"x{i}") for i in range(30)), "y", ("0", "1"))
    held = columns.dealt(Table(table.data, table.target), 2, 0)
    run = train(register.make("protocol", Spec("secureboost")), held, schema, seed=0)
    view = view_of(run, ("passive-1",), held, queries, answers, "held")
    assert AskedLabels().inapplicable(view) is None
    claim = AskedLabels().run(view, np.random.default_rng(0)).first(Labels)
    assert sum(view.oracle.log) == min(queries, len(table.target))
    return v_measure_score(table.target, claim.cluster)


@pytest.mark.parametrize("answers", ["score", "label"])
def test_an_endpoint_that_looks_rows_up_gives_their_labels_away(answers):
    assert asked(answers, 10_000) > 0.9


@pytest.mark.long
def test_rows_that_were_not_asked_for_follow_from_record_ids_and_splits(few_restarts):
    assert asked("score", 40) > 0.97


def test_labels_are_asked_for_by_id_alone():
    view, _ = world("secureboost")
    assert "no inference endpoint" in str(AskedLabels().inapplicable(view))


@pytest.mark.long
def test_restarts_never_lose_and_leave_known_labels_as_they_are(few_restarts):
    view, y = world("vertical-forest")
    model = model_of(view)
    start = np.random.default_rng(2).integers(2, size=len(y))
    climbed = model.fit(start)
    found = model.restart([climbed], np.random.default_rng(0))
    assert model.score(found) > climbed[0]  # of a start by chance there is always better
    assert v_measure_score(y, found) > v_measure_score(y, climbed[1])
    known = np.full(len(y), -1)
    known[:30] = 1 - y[:30]
    fixed = replace(model, known_labels=known)
    assert (fixed.restart([fixed.fit(start)], np.random.default_rng(0))[:30] == known[:30]).all()


@pytest.mark.long
def test_rows_to_predict_are_told_by_where_they_are_routed():
    table = load_breast_cancer()
    schema = Schema(tuple(Feature(f"x{i}") for i in range(30)), "y", ("0", "1"))
    rows = Table(table.data, table.target)
    train_on, asked = rows.take(np.arange(0, 569, 2)), rows.take(np.arange(1, 569, 2))
    held = columns.dealt(train_on, 3)
    run = train(register.make("protocol", parse_grid("secureboost")[0]), held, schema, seed=1)
    attack, nobody = RoutedRows(), np.random.default_rng(0)
    assert "were not asked to route rows" in str(
        attack.inapplicable(view_of(run, ("passive-1",), held))
    )
    run.predict(asked.X)
    case = Case(held, run.transcript.roles, ("passive-1",), schema, Streams(1), queried_rows=asked)
    metric = RoutedLabelScores()
    truth = metric.truth(case)
    (claim,) = attack.run(view_of(run, ("passive-1",), held), nobody).all(RoutedLabels)
    assert metric.refuses([claim], case) is None
    assert "more than once" in metric.refuses([claim, claim], case)
    far = RoutedLabels(np.array([len(asked.y)]), np.ones((1, 2)))
    assert "there are 284" in metric.refuses([far], case)
    auc, accuracy = (s.value for s in metric.score([claim], truth))
    blind = metric.blind(case, truth)
    baseline = {how: [s.value for s in metric.score(made, truth)] for how, made in blind.items()}
    assert 0.5 < max(of_auc for of_auc, _ in baseline.values()) < auc
    # clusters of the own columns almost are the two classes of this table: no better accuracy
    assert max(baseline["even"][1], baseline["columns-of-passive-1"][1]) < accuracy
    perfect = RoutedLabels(np.arange(284), np.eye(2)[1 - asked.y])  # under whatever names
    assert [s.value for s in metric.score([perfect], truth)] == [1, 1]
    assert metric.truth(replace(case, principals=("active",))) is None


@pytest.mark.long
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("settings", ["multi_output=true", "multi_output=false"])
def test_true_labels_explain_splits_of_trees_for_all_classes_and_of_missing_values(
    classes, missing, settings
):
    run, held = columns.run(f"secureboost[trees=3,{settings}]", 2, classes, missing=missing)
    model = model_of(columns.seen_by(run, held, "passive-1"))
    y = held["active"].y
    assert model.lost(y) < 0.3
    assert model.lost(np.random.default_rng(0).permutation(y)) > 1.2
