"""Scores of a study by setting and seed, stored in a CSV file.

Each line is written as soon as its scores are computed, so that an interrupted study loses one
computation.
"""

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from fedtrees.core.errors import DataError


class StoredScores:
    """Scores of several settings and seeds.

    Parameters
    ----------
    path : Path
        CSV file, which need not exist yet.
    columns : sequence of str
        Names of the columns that identify a setting.

    Raises
    ------
    DataError
        If a line of the file is incomplete.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path, self.columns = path, tuple(columns)
        self._scores: dict[tuple[str, ...], dict[int, dict[str, float]]] = {}
        if not path.exists():
            return
        with path.open(encoding="utf-8", newline="") as file:
            for number, line in enumerate(csv.DictReader(file), start=2):
                try:
                    setting = tuple(line.pop(column) for column in self.columns)
                    seed = int(line.pop("seed"))
                    scores = {name: float(text) for name, text in line.items()}
                except (KeyError, TypeError, ValueError) as error:
                    raise DataError(f"{path}: line {number} is no result; delete it, and the study "
                                    "computes it again") from error  # fmt: skip
                self._scores.setdefault(setting, {})[seed] = scores

    def complete(
        self, setting: Iterable[object], seed: int, compute: Callable[[], Mapping[str, float]]
    ) -> None:
        """Compute the scores of a setting and a seed, unless the file contains them."""
        texts = tuple(map(str, setting))
        by_seed = self._scores.setdefault(texts, {})
        if seed in by_seed:
            return
        scores, new = dict(compute()), not self.path.exists()
        with self.path.open("a", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if new:
                writer.writerow((*self.columns, "seed", *scores))
            writer.writerow((*texts, seed, *(f"{value:.6g}" for value in scores.values())))
        by_seed[seed] = scores

    def values(self, setting: Iterable[object], score: str) -> list[float]:
        """Return a score of all seeds that have it."""
        by_seed = self._scores.get(tuple(map(str, setting)), {})
        # For example, the error of outliers is NaN for a seed without outliers.
        return [scores[score] for scores in by_seed.values() if scores[score] == scores[score]]
