"""Attack a model file with rows at hand, and score the attack beside the blind baseline."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence import Evidence, Moments
from fedtrees.attacks.evidence import evidence_of as evidence_of_view
from fedtrees.attacks.timberstrike import Options, reconstruct, reconstruct_numbers
from fedtrees.audit.audit import Audit
from fedtrees.audit.exposure import TreeExposure
from fedtrees.audit.forest_attack import attack_on, view_of_file, with_groups
from fedtrees.audit.recover import sums_of
from fedtrees.audit.rows import MOST_TARGETS, OWN_SHARE
from fedtrees.core.errors import DataError
from fedtrees.core.guess import LeafCounts, Records
from fedtrees.core.reasons import Reason
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.streams import Streams
from fedtrees.data.dataset import Dataset
from fedtrees.guessing.blind import blind_guesses
from fedtrees.messages.models import public_view
from fedtrees.metrics.advantage import advantage
from fedtrees.metrics.leaf_counts import (
    LeafCountMetric,
    blind_leaf_counts,
    score_leaf_counts,
    true_leaf_counts,
)
from fedtrees.metrics.victims_rows import RecordMetric, VictimsRows
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.boosted.losses import LOGISTIC, SQUARED_ERROR
from fedtrees.trees.files.categories import by_thresholds
from fedtrees.trees.forest.random_forest import RandomForest


@dataclass(frozen=True)
class Score:
    """One metric of an attack, beside the best guess of somebody who never saw the model."""

    metric: str
    score: float
    blind: float
    advantage: float | None


@dataclass(frozen=True, eq=False)
class AttackResult:
    """An attack on the model, or the reason why there is none; then there are no scores."""

    reason: Reason | None
    threat: str = ""  # who is taken to attack, in words
    targets: int = 0  # rows sought
    own: int = 0  # rows the attacker holds
    scores: tuple[Score, ...] = ()
    trees: int = 0  # that the attack read
    seconds: float = 0.0
    rebuilt: int = 0  # of more rows that are sought the rest is guessed without the model
    name: str = "TimberStrike"


def attack(
    audit: Audit,
    own: Dataset | None,
    truth: Dataset | None,
    seed: int = 0,
    options: Options | None = None,
) -> AttackResult:
    """Attack the model and score the rows that are returned.

    Boosted trees meet TimberStrike, random forests `forest-boxes`, private ones `draft-dp`.

    Of one table alone the attacker holds a random fifth and looks for the other rows.

    Raises `DataError` if no rows are left to look for, or too many to be matched.

    `own, truth`: Training rows the attacker holds, and those to look for: one of them at least.
    `options`: Options, optional. How TimberStrike attacks.
    """
    if isinstance(audit.model.forest, RandomForest):
        return _forest_attack(audit, own, truth, Streams(seed).child("audit"))
    evidence = evidence_of(audit)
    if isinstance(evidence, Reason):
        return AttackResult(evidence)
    streams = Streams(seed).child("audit")
    given = truth or own
    schema = given.schema
    held, sought, threat = _parts(own, truth, streams.rng("own-rows"))
    if audit.sources.kind != "one":
        clients = _victims(evidence, audit, held, part=own is None or truth is None)
    else:
        rows = audit.rows.total or len(held) + len(sought)
        threat += "" if audit.rows.total else ", and who knows how many rows there are"
        clients = [(replace(evidence[0], n_rows=rows), audit.trees[0])]
    if not clients:
        return AttackResult(Reason("audited-own-rows"))
    began = time.perf_counter()
    rng = streams.rng("attack")
    options = options or Options()
    if schema.classes:
        guesses = [reconstruct(e, held, schema, options, rng) for e, _ in clients]
    else:
        parts = (held, schema, Moments(), options, rng)
        guesses = [reconstruct_numbers(e, *parts) for e, _ in clients]
    seconds = time.perf_counter() - began
    found = Table.concat([r.table for g in guesses for r in g.all(Records)])
    if len(found) > len(sought):  # more rows were rebuilt than are known here
        found = found.take(np.sort(rng.choice(len(found), len(sought), replace=False)))
    scores = _row_scores(found, held, sought, schema, streams.rng("blind"))
    counts = guesses[0].first(LeafCounts)
    alone = len(clients) == 1 and len(schema.classes) == 2
    if alone and counts is not None and _grown_on(*clients[0], held, sought):
        scores.append(_leaf_score(clients[0][0].trees[0], counts, held, sought))
    trees = max(int(g.notes["trees_read"]) for g in guesses)
    return AttackResult(
        None, threat, len(sought), len(held), tuple(scores), trees, seconds, rebuilt=len(found)
    )


def _forest_attack(
    audit: Audit, own: Dataset | None, truth: Dataset | None, streams: Streams
) -> AttackResult:
    """Attack a random forest; the rest as `attack`."""
    schema = (truth or own).schema
    held, sought, threat = _parts(own, truth, streams.rng("own-rows"))
    if audit.model.released is not None:
        schema = with_groups(schema, held)
    began = time.perf_counter()
    rng = streams.rng("attack")
    view = view_of_file(audit.model, held, schema, len(held) + len(sought), rng)
    reads = attack_on(audit.model)
    reason = reads.inapplicable(view)
    if reason is not None:
        return AttackResult(reason)
    guess = reads.run(view, rng)
    seconds = time.perf_counter() - began
    found = Table.concat([r.table for r in guess.all(Records)])
    if len(found) > len(sought):
        found = found.take(np.sort(rng.choice(len(found), len(sought), replace=False)))
    scores = _row_scores(found, held, sought, schema, streams.rng("blind"))
    return AttackResult(
        None,
        f"{threat}, and who knows how many rows there are",
        len(sought),
        len(held),
        tuple(scores),
        len(audit.trees),
        seconds,
        rebuilt=len(found),
        name=reads.name,
    )


def _row_scores(
    found: Table, held: Table, sought: Table, schema: Schema, rng: np.random.Generator
) -> list[Score]:
    """Score rebuilt rows beside blind guesses; none without rows."""
    if not len(found):
        return []
    blind = blind_guesses(held, schema, len(sought), rng)
    if len(found) < len(sought) and "bootstrap" in blind:  # whom nothing in the file describes
        more = blind["bootstrap"].take(np.arange(len(sought) - len(found)))
        found = Table.concat([found, more])
    metric, truth = RecordMetric(), VictimsRows(sought, schema, (), len(sought))
    lines = metric.best_of({k: metric.score([Records(g)], truth) for k, g in blind.items()})
    values = {s.name: s.value for s in metric.score([Records(found)], truth)}
    facts = ((m.key, values[m.key], lines[m.key].value) for m in metric.measures if m.slot)
    return [Score(key, value, line, advantage(value, line)) for key, value, line in facts]


def _victims(
    evidence: Sequence[Evidence], audit: Audit, held: Table, part: bool
) -> list[tuple[Evidence, TreeExposure]]:
    """Return the clients to attack, each with its first tree, whose leaves count its rows.

    The attacker's rows and the file alone decide. No client is attacked whose leaves hold just
    these rows. Where they are a known share of a table (`part`), and can be that of one client
    alone, that one is attacked, with the rows inside.
    """
    firsts = [t for t in audit.trees if t.base_score is not None]
    if audit.sources.kind == "turns":  # of the other clients no first tree is there
        firsts = [audit.trees[0]]
    inside, others = [], []
    for one, first in zip(evidence, firsts, strict=True):
        n = _per_leaf(one, held)
        if np.array_equal(n, first.n):
            continue
        others.append((one, first))
        n_pos = _per_leaf(one, held.take(np.flatnonzero(held.y == 1)))
        fits = first.exact & (n_pos <= first.n_pos) & (n - n_pos <= first.n - first.n_pos)
        if part and fits.all() and round(OWN_SHARE * int(first.n.sum())) == len(held):
            inside.append((replace(one, own_inside=True), first))
    return inside if len(inside) == 1 else others


def _per_leaf(evidence: Evidence, table: Table) -> NDArray[np.int64]:
    """Return how many rows fall into each leaf of the first tree, int64, shape (J,)."""
    tree = evidence.trees[0]
    leaf = Forest((tree,), np.zeros(1, dtype=np.float32)).apply(table.X)[:, 0]
    return np.asarray(np.bincount(leaf, minlength=len(tree))[tree.leaves])


def _grown_on(evidence: Evidence, first: TreeExposure, held: Table, sought: Table) -> bool:
    """Tell whether the first tree was grown on the rows at hand, as far as its counts tell."""
    rows = Table.concat([held, sought]) if evidence.own_inside else sought
    known = first.counted
    same = np.array_equal(_per_leaf(evidence, rows)[known], first.n[known])
    return same and evidence.n_rows == len(rows)


def _parts(
    own: Dataset | None, truth: Dataset | None, rng: np.random.Generator
) -> tuple[Table, Table, str]:
    """Return the attacker's rows, the rows sought, and who that attacker is."""
    given = truth or own
    if own is not None and truth is not None:
        sought = _without(truth.table, own.table)
        held, threat = own.table, "somebody who holds the model and the rows of --own"
    else:
        order = rng.permutation(len(given.table))
        count = round(OWN_SHARE * len(order))
        held, sought = given.table.take(order[:count]), given.table.take(order[count:])
        threat = (
            f"somebody who holds the model and a random fifth of the rows of {given.name} "
            "(another client, say)"
        )
    if len(sought) > MOST_TARGETS:
        raise DataError(
            f"{len(sought)} rows to look for; more than {MOST_TARGETS} cannot be matched in "
            "reasonable time: give a random part of them as --truth, and --own"
        )
    if not len(sought):
        raise DataError("no rows are left to look for: --truth holds only rows of --own")
    return held, sought, threat


def _without(truth: Table, own: Table) -> Table:
    """Return the true rows less the attacker's, each of which takes away one like it."""
    keys, mine = (
        [(row.tobytes(), float(y)) for row, y in zip(t.X, t.y, strict=True)] for t in (truth, own)
    )
    left = Counter(mine)
    keep = np.ones(len(truth), dtype=bool)
    for i, key in enumerate(keys):
        if left[key]:
            left[key] -= 1
            keep[i] = False
    return truth.take(keep)


def _leaf_score(tree: Tree, guess: LeafCounts, held: Table, sought: Table) -> Score:
    """Score the first tree's counts: the share of rows in leaves with both classes right."""
    one = Forest((tree,), np.zeros(1, dtype=np.float32))
    nodes, own = (one.apply(t.X)[:, 0] for t in (sought, held))
    true = true_leaf_counts(0, nodes, sought.y, tree.leaves)
    blind = blind_leaf_counts(true_leaf_counts(0, own, held.y, tree.leaves), len(sought))
    got, line = (score_leaf_counts([g], [true]).leaf_mass_exact for g in (guess, blind))
    fact = next(m.key for m in LeafCountMetric.measures if m.slot)
    return Score(fact, got, line, advantage(got, line))


def evidence_of(audit: Audit) -> list[Evidence] | Reason:
    """Return what the file gives TimberStrike, of each client apart, or why it gives nothing."""
    model, settings = audit.model, audit.settings
    if not isinstance(model.forest, Forest):
        return Reason("audited-no-log-loss")
    numbers = model.forest.objective.name == SQUARED_ERROR.name
    if numbers and not audit.rows.whole:
        return Reason("audited-no-log-loss")
    ordered = by_thresholds(model.forest, model.categories)
    if ordered is None:
        return Reason("audited-categories")
    if settings is None:
        return Reason("audited-no-settings")
    trees, start = _trees(audit, ordered), model.forest.base_margin
    told = all(t.h is not None for t in trees)
    if not told and not audit.trees[0].counted.any():
        return Reason("audited-no-counts")
    if model.library == "lightgbm":
        base = audit.trees[0].base_score
        if base is None:
            return Reason("audited-no-labels")
        start = LOGISTIC.base_margin(base)
        moved = (trees[0].value - start[0]) * (trees[0].feature < 0)
        trees[0] = replace(trees[0], value=moved.astype(np.float32))
    known = {"learning_rate": settings.learning_rate, "reg_lambda": settings.reg_lambda}
    forest = Forest(tuple(trees), start, model.forest.objective)
    width = 1 + max(int(t.feature.max()) for t in trees)
    columns = tuple(Feature(f"column {k}") for k in range(width))
    classes = () if numbers else tuple(map(str, range(max(2, len(start)))))
    schema = Schema(columns, "label", classes)
    view = public_view(forest, schema, {**known, "min_child_weight": 0.0}, 0)
    common = evidence_of_view(view)
    if common is None:
        return Reason("audited-no-tree")
    common = replace(common, n_rows=None, cuts=None)
    if audit.sources.kind == "bagging":
        return [_of_client(common, audit, c + 1) for c in range(audit.sources.clients)]
    firsts = sum(t.base_score is not None for t in audit.trees)
    if audit.sources.kind == "turns":  # only the first client's first tree has one base score
        others = tuple(name != audit.sources.names[0] for name in audit.sources.names)
        n_rows = audit.trees[0].rows
        return [replace(common, foreign=others, own_inside=False, n_rows=n_rows)]
    if firsts > len(start):  # grown beside the first, not after it
        return [replace(common, trees=common.trees[: len(start)])]
    return [common]


def _of_client(common: Evidence, audit: Audit, client: int) -> Evidence:
    """Return the trees in the order in which they moved the margins of one client's rows.

    In each round its own trees come first: they were grown before the others arrived. Its first
    trees start from its own base score, later ones from the model's.
    """
    names = audit.sources.names
    starts = [t.at for t in audit.trees if t.base_score is not None]
    block = starts[1] - starts[0]
    per_round = block * audit.sources.clients
    mine = [name == f"client {client}" for name in names]
    order = sorted(range(len(names)), key=lambda t: (t // per_round, not mine[t], t))
    first = audit.trees[starts[client - 1]]
    own = LOGISTIC.base_margin(first.base_score)
    shift = np.atleast_1d(np.float32(common.base_margin)) - own
    return replace(
        common,
        trees=tuple(common.trees[t] for t in order),
        base_margin=own[0],
        n_rows=first.rows,
        foreign=tuple(not mine[t] for t in order),
        restart=(block, shift),
        own_inside=False,
    )


def _trees(audit: Audit, forest: Forest) -> list[Tree]:
    """Return the trees with the sums of hessians that are in the file or follow from it.

    `forest`: the forest of the model, its splits by categories replaced by thresholds.
    """
    model = audit.model
    out = []
    for tree, known in zip(forest.trees, model.statistics, strict=True):
        sums, h = sums_of(tree, known, audit.settings), None
        if sums is not None:
            h = np.zeros(len(tree))  # only those of leaves are read
            h[tree.leaves] = sums.h
        out.append(replace(tree, h=h, g=None))
    return out
