"""Compare the inversion of network gradients with TabLeak, on its batches of Adult.

``python -m fedtrees.benchmarks.papers tableak --reference FILE`` prints the tables. The file is
``tableak_adult.npz``: the initial network of Vero et al. (2023), their encoding of Adult, and
batches with their gradients. ``--table`` selects one table.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from time import process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedtrees.attacks.gradients.inversion import Inversion, invert
from fedtrees.attacks.gradients.observed import BatchGradient, LocalSteps
from fedtrees.attacks.gradients.published import invert_as_published
from fedtrees.benchmarks.papers.comparisons import Comparison, read_published
from fedtrees.benchmarks.papers.stored_scores import StoredScores
from fedtrees.benchmarks.papers.study import Output, Study
from fedtrees.benchmarks.papers.tables import Table as TextTable
from fedtrees.blind_baselines.guesses import Draws
from fedtrees.blind_baselines.matching import match_cells
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.data.catalogue import load
from fedtrees.neural.encoding import Encoding
from fedtrees.neural.perceptron import Layers

SIZES = (8, 32, 128)
NOISE = (1e-3, 1e-2, 1e-1)
#: Published attacks, by their name in Table 1, with the arguments of `Reference.as_published`.
AS_PUBLISHED = {"cosine": (False, True, 1, 1500), "tableak no softmax": (False, True, 30, 1500)}
# Learning rate of local steps.
_RATE = 0.01


@dataclass(frozen=True, eq=False)
class Reference:
    """The published network, encoding and batches.

    Attributes
    ----------
    arrays : mapping
        Contents of ``tableak_adult.npz``.
    data_dir : str or None
        Folder of Adult.
    """

    arrays: Any
    data_dir: str | None

    @cached_property
    def schema(self) -> Schema:
        """Columns with categories in the authors' order, and the bounds that they use."""
        names = [str(n) for n in self.arrays["feature_names"]]
        columns = [str(c) for c in self.arrays["encoded_columns"]]
        features = []
        for name, (low, high) in zip(names, self.arrays["bounds"].tolist(), strict=True):
            categories = tuple(c.partition("=")[2] for c in columns if c.startswith(f"{name}="))
            numeric = Feature(name, low=low, high=high) if not categories else None
            features.append(numeric or Feature(name, "categorical", categories=categories))
        return Schema(tuple(features), "income", (">50K", "<=50K"))

    @cached_property
    def encoding(self) -> Encoding:
        """The published encoding."""
        encoding = Encoding.of(self.schema)
        return encoding.standardised(self.arrays["mean"], self.arrays["std"])

    @cached_property
    def layers(self) -> Layers:
        """Sizes of the layers."""
        return Layers((len(self.encoding), 100, 100, 2))

    @cached_property
    def weights(self) -> NDArray[np.float32]:
        """Initial weights, float32."""
        parts = [self.arrays[f"net/{k}.{p}"].ravel() for k in range(3) for p in ("weight", "bias")]
        return np.concatenate(parts)

    @cached_property
    def table(self) -> Table:
        """All rows of Adult in these codes. Label 1 is ``<=50K``, and missing values are NaN."""
        data = load("adult", self.data_dir)
        X = data.table.X.copy()
        for k, (feature, published_feature) in enumerate(
            zip(data.schema.features, self.schema.features, strict=True)
        ):
            if published_feature.categories:
                code_of_category = {c: i for i, c in enumerate(published_feature.categories)}
                order = np.array([code_of_category.get(c, np.nan) for c in feature.categories])
                present = ~np.isnan(X[:, k])
                X[present, k] = order[X[present, k].astype(int)]
        return Table(X, 1 - data.table.y)

    @cached_property
    def public(self) -> Table:
        """Complete rows outside the training set."""
        mask = ~np.isnan(self.table.X).any(axis=1)
        mask[self.arrays["train_rows"]] = False
        return self.table.take(mask)

    @cached_property
    def width(self) -> NDArray[np.float64]:
        """Accepted differences, 0 for categories."""
        return np.nan_to_num(self.arrays["tolerance"])

    def batch(self, size: int, which: int) -> tuple[Table, NDArray[np.float32]]:
        """Return the rows of a batch and their gradient."""
        rows = self.arrays["train_rows"][self.arrays[f"B{size}/rows"][which]]
        return self.table.take(rows), self.arrays[f"B{size}/grad"][which]

    def accuracy(self, guess: Table, truth: Table) -> float:
        """Return the accuracy in percent (Vero et al. 2023, Eq. 7)."""
        return 100 * float(match_cells(guess.X, truth.X, self.width)[0].mean())

    def score_inversion(self, size: int, which: int, **how: Any) -> tuple[float, float]:
        """Return the accuracy of `tableak` on a batch in percent, and CPU seconds.

        The arguments are those of `invert_batch`.
        """
        begin = process_time()
        inversion = self.invert_batch(size, which, **how)
        return self.accuracy(inversion.table, self.batch(size, which)[0]), process_time() - begin

    def invert_batch(
        self,
        size: int,
        which: int,
        seed: int = 0,
        noise: float = 0.0,
        true: bool = True,
        local: LocalSteps | None = None,
        **how: Any,
    ) -> Inversion:
        """Return the inversion of a batch.

        With `local`, an update of such steps is inverted. The order of rows in it is random and not
        known.

        Parameters
        ----------
        size, which : int
            Number of rows, and number of the batch.
        seed : int
            Seed of the attack.
        noise : float
            Standard deviation of Gaussian noise on every coordinate.
        true : bool
            Whether labels are known. If not, they are inferred.
        local : LocalSteps or None
            Local steps of a client, if an update is inverted instead of a gradient.
        **how : object
            Settings of the attack.
        """
        truth, gradient = self.batch(size, which)
        rng, weights = np.random.default_rng([seed, size, which]), self.weights
        if local is not None:
            orders, X = local.orders(size, rng), self.encoding.encode(truth.X)
            moved = local.update(self.layers, weights, X, truth.y, orders)
            weights, gradient = local.as_gradient(weights, moved, size)
        seen = (gradient + noise * rng.standard_normal(len(gradient))).astype(np.float32)
        labels, likely = truth.y if true else None, None if local else self.public
        return invert(self.observed(weights, seen, size), rng, labels=labels, likely=likely, **how)

    def observed(
        self, weights: NDArray[np.float32], gradient: NDArray[np.float32], size: int
    ) -> BatchGradient:
        """Return a gradient of a batch at a network as the attacks observe it."""
        bounds = self.encoding.bounds(self.schema)
        return BatchGradient(self.layers, self.encoding, bounds, weights, gradient, size)

    def as_published(
        self, size: int, which: int, settings: tuple[bool, bool, int, int], true: bool = True
    ) -> tuple[float, float]:
        """Return the accuracy of a published attack, and CPU seconds.

        Parameters
        ----------
        size, which : int
            Number of rows, and number of the batch.
        settings : tuple
            Whether to use softmax and bounds, whether the loss is the cosine distance, restarts and
            steps.
        true : bool
            Whether labels are known. If not, they are inferred.
        """
        truth, gradient = self.batch(size, which)
        begin = process_time()
        rng, observed = np.random.default_rng([0, size, which]), self.observed
        inversion = invert_as_published(
            observed(self.weights, gradient, size), truth.y if true else None, rng, settings
        )
        return self.accuracy(inversion.table, truth), process_time() - begin

    def blind(self, size: int, which: int) -> float:
        """Return the accuracy of the consensus of twenty draws of public rows, in percent."""
        truth, _ = self.batch(size, which)
        draws = Draws(self.public, self.schema, size, np.random.default_rng([7, size, which]))
        return self.accuracy(draws.guess("bootstrap+consensus"), truth)


def warm(reference: Reference) -> None:
    """Compile kernels, so that no measured time includes it."""
    reference.score_inversion(8, 0, restarts=1, steps=1)


def accuracies(reference: Reference, batches: int, path: Path) -> Iterator[Comparison]:
    """Yield the accuracy of the authors' algorithm on these batches, and that measured here.

    In the place of TabLeak, which has 30 restarts of 1500 steps, our `tableak` is measured. Cosine
    matching and TabLeak without softmax are run as published, which needs torch. The text of the
    paper that we use has no values of its Table 1.

    Parameters
    ----------
    reference : Reference
        The published network and batches.
    batches : int
        Number of batches of each size.
    path : Path
        CSV file of finished inversions.
    """
    results = StoredScores(path, ("setting",))
    blind: dict[int, list[float]] = {}
    for c in read_published("tableak"):
        size, (_, labels, attack) = int(c.setting.split()[0]), c.setting.split(", ")
        blind[size] = blind.get(size) or [reference.blind(size, k) for k in range(batches)]
        score, how = reference.score_inversion, {"true": labels == "labels known"}
        if attack in AS_PUBLISHED:
            score = partial(reference.as_published, settings=AS_PUBLISHED[attack])
        if attack == "tableak" or find_spec("torch"):
            for k in range(batches):
                results.complete(
                    (c.setting,), k,
                    lambda s=score, n=size, k=k, how=how: dict(
                        zip(("accuracy", "seconds"), s(n, k, **how), strict=True)
                    ),
                )  # fmt: skip
        if values := results.values((c.setting,), "accuracy"):
            c = c.with_values(values)
        yield replace(c, blind=mean(blind[size]))


def ablation(reference: Reference, batches: int) -> Iterator[list[Any]]:
    """Yield the accuracy on batches of 32 without some part of the attack."""
    yield ["B = 32", "accuracy", "CPU s"]
    for name, how in (
        ("tableak", {}), ("search alone", {"exact": False}),
        ("search, no span term", {"span": False}),
        ("search, one restart", {"exact": False, "restarts": 1}),
        ("search, 200 steps", {"exact": False, "steps": 200}),
    ):  # fmt: skip
        results = np.array([reference.score_inversion(32, k, **how) for k in range(batches)])
        yield [name, f"{results[:, 0].mean():.1f}", f"{results[:, 1].mean():.2f}"]


def entropy(reference: Reference, batches: int) -> Iterator[list[Any]]:
    """Yield the accuracy of the search on 32 rows by quarters of confidence, lowest first."""
    yield ["feature", "least confident quarter", "second", "third", "most confident quarter"]
    coded, cells = reference.encoding.coded, []
    for k in range(batches):
        truth, _ = reference.batch(32, k)
        inversion = reference.invert_batch(32, k, exact=False)
        near = np.abs(truth.X[:, None] - inversion.table.X[None]) <= reference.width
        a, b = linear_sum_assignment(-near.sum(axis=2))
        cells.append(np.stack([near[a, b], inversion.confidence[b]]))
    right, sure = np.concatenate(cells, axis=1)
    for name, kind in (("category", coded), ("number", ~coded)):
        order = np.argsort(sure[:, kind].ravel(), kind="stable")
        quarters = np.array_split(right[:, kind].ravel()[order], 4)
        yield [name, *(f"{100 * q.mean():.1f}" for q in quarters)]


def noisy(reference: Reference, batches: int) -> Iterator[list[Any]]:
    """Yield the accuracy on batches of 32 whose gradients contain Gaussian noise."""
    yield ["noise per coordinate", "found rows", "blind: public rows"]
    blind = np.mean([reference.blind(32, k) for k in range(batches)])
    for scale in NOISE:
        accuracies = [reference.score_inversion(32, k, noise=scale)[0] for k in range(batches)]
        yield [f"{scale:g}", f"{np.mean(accuracies):.1f}", f"{blind:.1f}"]


def averaged_accuracies(reference: Reference, batches: int) -> Iterator[list[Any]]:
    """Yield the accuracy on updates of local steps on 32 rows, by epochs and batch size.

    Labels are inferred, and the order of rows is not known.
    """
    yield ["epochs", "batch 32", "batch 16", "batch 8"]
    for epochs in (1, 5, 10):
        scores = []
        for batch in (32, 16, 8):
            local = LocalSteps(batch, epochs, _RATE)
            results = [
                reference.score_inversion(32, k, true=False, local=local) for k in range(batches)
            ]
            scores.append(f"{np.mean(results, axis=0)[0]:.1f}")
        yield [epochs, *scores]


def speed(reference: Reference, batches: int) -> Iterator[list[Any]]:
    """Yield CPU seconds of the published attacks and of ours. One restart counts 30 times."""
    yield ["B", "attack", "accuracy", "CPU s", "times ours"]
    for size in SIZES[:2]:
        our_results = np.array([reference.score_inversion(size, k) for k in range(batches)]).mean(
            axis=0
        )
        yield [size, "tableak", f"{our_results[0]:.1f}", f"{our_results[1]:.2f}", ""]
        for name, relaxed, cosine, runs in (
            ("tableak-published, one restart of 30", True, True, 30),
            ("cosine", False, True, 1), ("dlg", False, False, 1),
        ):  # fmt: skip
            their_accuracy, spent = reference.as_published(size, 0, (relaxed, cosine, 1, 1500))
            spent *= runs
            yield [
                size,
                name,
                f"{their_accuracy:.1f}",
                f"{spent:.1f}",
                f"{spent / our_results[1]:.0f}",
            ]


TABLES: dict[str, Callable[[Reference, int], Iterator[list[Any]]]] = {
    "ablation": ablation, "entropy": entropy, "noise": noisy,
    "fedavg": averaged_accuracies, "speed": speed,
}  # fmt: skip


def run(options: Namespace) -> Iterator[Output]:
    """Yield the selected tables."""
    reference = Reference(np.load(options.reference), options.data_dir)
    warm(reference)
    for name in options.table or ("accuracy", *TABLES):
        if name == "accuracy":
            options.out.mkdir(parents=True, exist_ok=True)
            yield from accuracies(reference, options.batches, options.out / "accuracies.csv")
            continue
        header, *lines = ([str(c) for c in row] for row in TABLES[name](reference, options.batches))
        yield TextTable(name, header, lines)


STUDIES = {
    "tableak": Study(
        "Rows reconstructed from gradients of a network, on the batches of TabLeak (Adult).",
        run,
        {
            "--reference": {"type": Path, "required": True, "help": "the file tableak_adult.npz"},
            "--out": {
                "type": Path,
                "default": Path("runs/tableak"),
                "help": "folder of results, which is continued",
            },
            "--table": {
                "choices": ("accuracy", *TABLES),
                "action": "append",
                "help": "print only this table",
            },
            "--batches": {"type": int, "default": 5, "help": "number of batches, at most five"},
        },
    )
}
