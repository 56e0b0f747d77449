"""Property inference: estimate how many of one client's rows belong to each class."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from fedtrees.attacks.attributes.class_regression import other_clients, regressed_counts
from fedtrees.attacks.evidence.clients.victims import Victim, victims_of
from fedtrees.attacks.evidence.counts import NOISE_FLOOR
from fedtrees.attacks.evidence.laws import cell_variance, law_of_sums
from fedtrees.attacks.evidence.replay import cuts_of, hides
from fedtrees.core.attack import Attack
from fedtrees.core.guess import ClassShares, Guess
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.messages.boosting import BaseScore, Histogram, LabelSums
from fedtrees.messages.captured import AgreedStart, GradientTotals, LabelShare
from fedtrees.messages.class_counts import ClassTotals
from fedtrees.messages.forests import LocalForest
from fedtrees.messages.lightgbm import ClassRows
from fedtrees.trees.boosted.fixed_point import from_fixed
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.losses import objective_of

Floats = NDArray[np.float64]


@register.attack("class-shares")
@dataclass(frozen=True)
class ClassShareInference(Attack):
    """Infer the share of each class among one client's rows (Ateniese et al. 2015).

    This is property inference. All rows of a class have the same gradient in the first tree of each
    output. The numbers of rows are fitted to the sums over all rows of a client (Di Gennaro et al.
    2025, Eqs. 4-9). With noise, the sums are averaged over columns and adjusted to the known total
    of all clients. Forests contain the counts. Workers of `xgboost-ring` and machines of
    `lightgbm-data` announce them (`announced_counts`).

    If only sums over all clients are visible and at most two other clients take part, the total
    gradients of all trees are regressed on the local rows (`class_regression`). The resulting
    shares are claimed for every other client.
    """

    claims = (ClassShares,)

    def inapplicable(self, view: View) -> Reason | None:
        """Return the reason if a view reveals no class counts of one client, else None."""
        if counts_of(view) or regressed_counts(view) is not None:
            return None
        return Reason("no-client-sums")

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return the class shares of clients whose sums were seen, singly or in pairs."""
        counts = counts_of(view)
        together = None if counts else regressed_counts(view)
        if together is not None:
            counts = dict.fromkeys(other_clients(view), together)
        claims = (ClassShares(n, c / c.sum()) for n, c in counts.items())
        return Guess.of(claims, otherwise=Reason("no-client-sums"))


def counts_of(view: View) -> dict[str, Floats]:
    """Return rows of each class of other clients whose sums were seen, (K,), by name.

    Counts of forests are only proportional to the numbers of rows.
    """
    counts_by_client = announced_counts(view)
    for item, m in view.messages(ClassTotals):
        if item.sender not in view.principals and not item.opened:
            counts_by_client[item.sender] = counts_by_client.get(item.sender, 0.0) + m.counts
    for item, m in view.messages(LocalForest):
        is_own_forest = view.roles[item.sender] == "client"  # the server sends a pooled one
        if is_own_forest and item.sender not in view.principals and m.counts is not None:
            counts_by_client[item.sender] = counts_by_client.get(item.sender, 0.0) + m.counts[
                m.feature < 0
            ].sum(axis=0)
    if not counts_by_client:
        total_counts, noise = None, cell_variance(view.channel(Histogram, "totals", "client"))
        sums = {name: client_sums for name, *client_sums in _sums(view)}
        # with noise, the known totals of all clients correct the counts
        if min(noise) > NOISE_FLOOR:
            total_counts = _of_all(view, {*sums})
        if total_counts is None:
            counts_by_client = {
                name: _fitted(view, *client_sums) for name, client_sums in sums.items()
            }
        else:
            counts_by_client = agreed(
                {name: _solved(view, *client_sums) for name, client_sums in sums.items()},
                total_counts,
            )
        late = [v for v in _victims(view) if v.late is not None and v.owner is not None]
        counts_by_client |= {v.owner: _late(v) for v in late if v.owner}
    return {name: counts for name, counts in counts_by_client.items() if counts.sum() > 0}


def announced_counts(view: View) -> dict[str, Floats]:
    """Return the rows of each class that other clients announce, float64, (2,), by name.

    Every machine of `lightgbm-data` broadcasts its rows of each class. Every worker of
    `xgboost-ring` broadcasts its number of rows and the sum of its labels divided by the number of
    all rows. The latter is a float32, so that the product is rounded to an integer.
    """
    announced = {
        item.sender: np.array([message.negatives, message.positives], dtype=np.float64)
        for item, message in view.messages(ClassRows)
    }
    if view.schema.classes:
        for _, message in view.messages(LabelShare):
            positives = round(message.share * view.n_rows)
            counts = np.array([message.rows - positives, positives], dtype=np.float64)
            announced[message.owner] = counts
    return {name: counts for name, counts in announced.items() if name not in view.principals}


def _victims(view: View) -> list[Victim]:
    """Return clients whose trees, or sums in leaves, are seen separately."""
    return victims_of(view, most="statistics")


def _of_all(view: View, clients: set[str]) -> Floats | None:
    """Return the rows of each class of all these clients together, None if unknown."""
    other_names = {n for n, role in view.roles.items() if role == "client"} - {*view.principals}
    opened_sums = [m.sums for item, m in view.messages(LabelSums) if item.opened]
    if not opened_sums or other_names != clients or view.changes(LabelSums, "sums"):
        return None
    total_counts = opened_sums[0][1:].astype(np.float64)
    return (
        total_counts
        if view.rows is None
        else total_counts - np.bincount(view.rows.y, minlength=len(total_counts))
    )


def agreed(found: dict[str, Floats], whole: Floats) -> dict[str, Floats]:
    """Return the closest non-negative counts that add up, for equal noise at all clients.

    The first argument maps clients to noisy rows of each class (float64, shape (K,)), and the
    second one is their exact total. For example, 3.2 and 1.2 rows with a total of 4 become 3.0 and
    1.0.
    """
    counts = np.stack([*found.values()])
    columns = [_adding_up(x, total) for x, total in zip(counts.T, whole.tolist(), strict=True)]
    return dict(zip(found, np.column_stack(columns), strict=True))


def _adding_up(x: Floats, total: float) -> Floats:
    """Return the closest non-negative numbers with a given positive sum."""
    descending = np.sort(x)[::-1]
    less = (np.cumsum(descending) - total) / np.arange(1, len(x) + 1)
    return np.maximum(x - less[np.flatnonzero(descending > less)[-1]], 0)


def _sums(view: View) -> Iterator[tuple[str, Floats, Floats]]:
    """Yield clients with the margin of each output, (K,), and sums over their rows, (K, 2)."""
    start = next((m.margin for _, m in view.messages(BaseScore)), None)
    roots: dict[str, dict[int, Floats]] = {}
    for item, m in view.messages(Histogram):
        if item.sender not in view.principals and not item.opened and len(m.totals):
            roots.setdefault(item.sender, {})[m.tree] = _total(view, m)
    if not roots:
        yield from _broadcast_sums(view)
    for name, sums in roots.items() if start is not None else ():
        if {*range(len(start))} <= sums.keys():
            yield name, start, np.array([sums[t] for t in range(len(start))])
    for victim in _victims(view) if not roots else ():
        start, seen = np.atleast_1d(victim.evidence.base_margin), victim.evidence
        first = seen.trees[: len(start)]
        shows_sums = all(t.g is not None and t.h is not None for t in first)
        if victim.owner is not None and shows_sums and not seen.is_foreign(0):
            yield victim.owner, start, np.array([_whole(t) for t in first])


def _broadcast_sums(view: View) -> Iterator[tuple[str, Floats, Floats]]:
    """Yield the sums of the workers of a ring, which broadcast those of the first root."""
    start = next((m.margin for _, m in view.messages(AgreedStart)), None)
    for _, m in view.messages(GradientTotals):
        is_one_other = "," not in m.parties and m.parties not in view.principals
        if start is not None and m.tree == 0 and is_one_other:
            yield m.parties, start, m.sums.reshape(1, 2)


def _total(view: View, m: Histogram) -> Floats:
    """Return the sums of all rows of a client, (2,). Noisy ones are averaged over columns."""
    cuts, total = cuts_of(view), from_fixed(m.totals[0], m.bits)
    noise = cell_variance(view.channel(Histogram, "totals", "client"))
    if (
        cuts is None
        or min(noise) <= NOISE_FLOOR
        or hides(view.changes(Histogram, "sums", "client"))
    ):
        return total
    of_bin = cell_variance(law_of_sums(view))
    # the bins of a column without missing values contain every row once
    columns = np.flatnonzero(view.schema.complete)
    sums = from_fixed(np.add.reduceat(m.sums[0], cuts.offsets[:-1])[columns], m.bits)
    estimates = np.concatenate([total[None], sums])
    off = np.concatenate([[noise], cuts.n_bins[columns, None] * np.array(of_bin)])
    return np.asarray(np.average(estimates, axis=0, weights=1 / np.maximum(off, NOISE_FLOOR)))


def _whole(tree: Tree) -> list[float]:
    return [float(part[tree.leaves].sum()) for part in (tree.g, tree.h) if part is not None]


def _late(victim: Victim) -> Floats:
    """Return the counts of a first tree that was grown on foreign trees, for two classes."""
    assert victim.late is not None
    n, n1 = victim.late.n.sum(), victim.late.n1.sum()
    return np.array([n - n1, n1], dtype=np.float64)


def _fitted(view: View, margin: Floats, sums: Floats) -> Floats:
    """Return the non-negative rows of each class that fit the sums, float64, shape (K,)."""
    return np.asarray(nnls(_brought(view, margin), sums.T.ravel())[0], dtype=np.float64)


def _solved(view: View, margin: Floats, sums: Floats) -> Floats:
    """Return the rows of each class that fit noisy sums. They may be negative."""
    return np.asarray(np.linalg.lstsq(_brought(view, margin), sums.T.ravel())[0])


def _brought(view: View, margin: Floats) -> Floats:
    """Return the gradients, then hessians, of a row of each class in all sums, (2 K, K)."""
    classes = np.arange(max(len(view.schema.classes), 2))
    objective = objective_of(view.parameters.get("objective"), view.schema.classes)
    start = np.repeat(np.asarray(margin, dtype=np.float32)[:, None], len(classes), axis=1)
    contribution = objective.gradients(start, classes).astype(np.float64)
    clip = view.defense.gradient_clip or np.inf
    g = np.clip(contribution[..., 0], -clip, clip)
    h = np.ones_like(g) if view.defense.unit_hessian else np.minimum(contribution[..., 1], 2 * clip)
    return np.concatenate([g, h])
