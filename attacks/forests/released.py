"""Read forests of random tests from a view and formulate the reconstruction problems."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.forests.chain import weighable
from fedtrees.attacks.forests.noise import Noise
from fedtrees.attacks.forests.posterior import Question
from fedtrees.attacks.forests.structure import MOST_DEPTH, NoisyForest
from fedtrees.attacks.forests.variables import MOST_LEVELS, Variables
from fedtrees.core.channel import Mechanism, Share, chained
from fedtrees.core.reasons import Reason
from fedtrees.core.view import View
from fedtrees.messages.private_forests import LeafClassCounts, PrivateForest, RandomTests
from fedtrees.privacy.noise import Laplace, TruncatedLaplace


@dataclass(frozen=True, eq=False)
class Source:
    """Tests, counts of their leaves, and the noise on the counts.

    Attributes
    ----------
    tests : PrivateForest or RandomTests
        Tests of the trees.
    counts : int64 array, shape (T, 2^depth, K)
        Counts of the leaves.
    noise : Noise
        Noise on the counts.
    owner : str or None
        Client whose rows are counted. None means all clients.
    rows : int
        Announced number of this client's rows, 0 if unknown.
    """

    tests: PrivateForest | RandomTests
    counts: NDArray[np.int64]  # shape (T, 2^depth, K)
    noise: Noise
    owner: str | None = None
    rows: int = 0

    def question(self, view: View, rows: Literal["declared", "estimated"]) -> Question:
        """Return the reconstruction problem for one client's rows, or for all victims' rows.

        If attributes of all these rows are known, so is their number. Rows of the population enter
        the prior, unless only labels were released or the weights of latent classes would overflow.
        """
        feature, threshold = self.tests.feature, self.tests.threshold
        thresholds = [np.unique(threshold[feature == j]) for j in range(len(view.schema.features))]
        own_rows = None if view.rows is None or not len(view.rows) else view.rows
        likely = view.prior_rows if view.prior_rows is not None and len(view.prior_rows) else None
        values = None if likely is None else likely.X
        variables = Variables.of_schema(view.schema, thresholds, values)
        coded = None if likely is None else np.column_stack([variables.encode(likely.X), likely.y])
        forest = NoisyForest.of(variables, feature, self.counts, threshold)
        prior = None
        counted = own_rows is None and coded is not None and self.noise.kind != "labels"
        if counted and weighable(len(variables) + 1, view.n_rows + len(coded)):
            prior = coded.astype(np.int16)
        if self.owner is not None:
            n = self.rows or forest.estimated_rows()
            return Question(forest, self.noise, n, population=prior)
        n_own, known_columns = 0 if own_rows is None else len(own_rows), told_columns(view)
        declared = rows == "declared" or known_columns is not None
        total = view.n_rows if declared else forest.estimated_rows(n_own + 1)
        own_levels = None if own_rows is None else coded
        return Question(
            forest, self.noise, max(1, total - n_own),
            own=None if own_levels is None else own_levels.astype(np.int16),
            known=None if known_columns is None else _levels(variables, *known_columns),
            population=prior,
        )  # fmt: skip


def told_columns(view: View) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
    """Return known columns of all victims' rows, and the values, or None.

    They belong to the background knowledge of the threat model.
    """
    if view.entries is None:
        return None
    columns, X = view.entries.of_all_rows
    n_others = view.n_rows - (0 if view.rows is None else len(view.rows))
    return (columns, X) if len(columns) and len(X) == n_others else None


def _levels(
    variables: Variables, columns: NDArray[np.int64], X: NDArray[np.float32]
) -> dict[int, NDArray[np.int16]]:
    """Return the levels of variables whose columns are all known."""
    rows = variables.decode(np.zeros((len(X), len(variables)), dtype=np.int16))
    rows[:, columns] = X
    coded, known_columns = variables.encode(rows), {*columns.tolist()}
    return {
        g: coded[:, g] for g, of in enumerate(variables.columns) if known_columns.issuperset(of)
    }


def sources_of(view: View) -> list[Source]:
    """Return the best available counts: of single clients, else their sum, else the release.

    If some values of each row are known, the sum is used, because the owners of these rows are
    unknown.
    """
    tests = next((m for _, m in view.messages(RandomTests)), None)
    messages = [(seen, m) for seen, m in view.messages(LeafClassCounts)]
    from_others = [(s, m) for s, m in messages if s.sender not in view.principals]
    opened = [(s, m) for s, m in messages if s.opened]
    distributed = any(isinstance(c, Share) for c in view.changes(LeafClassCounts, "counts"))
    if tests is not None and from_others and not distributed:
        exact = Noise("exact")
        if told_columns(view) is not None:
            return [
                Source(
                    tests, sum((m.counts for _, m in messages), 0 * messages[0][1].counts), exact
                )
            ]
        return [Source(tests, m.counts, exact, s.sender, int(m.rows[0])) for s, m in from_others]
    if tests is not None and opened and not distributed:
        return [Source(tests, opened[-1][1].counts, Noise("exact"))]
    released = [m for _, m in view.messages(PrivateForest)]
    noise = _noise(view) if released else None
    return [] if noise is None else [Source(released[-1], released[-1].counts, noise)]


def unreadable(view: View) -> Reason | None:
    """Return the reason if a view has no counts from which rows can be inferred, else None."""
    sources = sources_of(view)
    if not sources:
        return Reason("no-random-tests")
    tests = sources[0].tests
    if not weighable(len(view.schema.features) + 1, view.n_rows):
        return Reason("many-latent-classes", rows=view.n_rows)
    if tests.feature.shape[1].bit_length() > MOST_DEPTH:
        return Reason("deep-trees", most=MOST_DEPTH)
    for j, feature in enumerate(view.schema.features):
        levels = len(feature.categories) or 1 + len(np.unique(tests.threshold[tests.feature == j]))
        if levels > MOST_LEVELS:
            tests_of = {"column": feature.name, "thresholds": levels - 1, "most": MOST_LEVELS - 1}
            return Reason("many-thresholds", **tests_of)
    return None


def _noise(view: View) -> Noise | None:
    """Return the noise on released counts or labels, None if it is of an unknown kind."""
    changes, epsilon = view.changes(PrivateForest, "counts", "server"), view.parameters["epsilon"]
    if any(isinstance(c, Mechanism) for c in changes):
        return Noise.of("labels", float(epsilon), int(view.parameters["trees"]))
    law = chained(changes)
    if law is None:
        return Noise("exact")
    if not isinstance(law, Laplace) or not isinstance(law.scale, float):
        return None
    cut = isinstance(law, TruncatedLaplace)
    return Noise("truncated-laplace" if cut else "geometric", law.scale, law.draws)
