"""What one adversary reads by one measure under one defense, and whether that is settled.

A cell is *open* where the worst attack is clearly past blind, *shut* where it is shown not to be,
*gone* where no attack has such a claim to make; everything else is named, and none of it is blank.
"""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import pandas as pd

from fedtrees.core.columns import measure
from fedtrees.report.coverage import Coverage
from fedtrees.report.intervals import Estimate, mean_of, t_estimate
from fedtrees.report.worst import attack_metrics, worst_case

State = Literal["open", "shut", "gone", "undefined", "unknown", "unsettled"]

#: Advantage that a defense may leave and still be called down to blind. Between federations of one
#: table advantages differ by one to three points: three seeds can show five, and not much less.
MARGIN = 0.05
#: The same for counted persons, of whom one beyond a blind guess is a leak.
PERSONS_MARGIN = 0.02
FEWEST_SEEDS = 3  # of fewer no interval is believed
#: Whom a leak is about, the worst first (`Measure.klass`).
CLASSES = ("person", "guess", "group")
_ALPHA = 0.05


@dataclass(frozen=True)
class Cell:
    """One adversary, one defense, one measure: the worst attack on each seed.

    `scores, blinds, populations, advantages`: By seed, of the attack of the largest advantage
    there; the population line (whoever knows other rows) is NaN where the adversary has rows
    itself. `advantages` are over the better of the two lines.
    `errors`: Standard errors of the advantages, where a sample of the rows was scored, else 0.
    `attacks`: The attacks that were worst, the most frequent first.
    `rows`: How many rows the share is of; NaN where it is none of rows, or not told.
    """

    metric: str
    state: State = "gone"
    scores: tuple[float, ...] = ()
    blinds: tuple[float, ...] = ()
    populations: tuple[float, ...] = ()
    advantages: tuple[float, ...] = ()
    errors: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()
    attacks: tuple[str, ...] = ()
    rows: float = math.nan

    @property
    def score(self) -> float:
        """Mean over seeds."""
        return mean_of(self.scores)

    @property
    def line(self) -> float:
        """What the score is held against: blind, or the population's line where that is better."""
        pairs = zip(self.blinds, self.populations, strict=True)
        better = max if measure(self.metric).sign > 0 else min
        return mean_of([b if math.isnan(p) else better(b, p) for b, p in pairs])

    @property
    def advantage(self) -> Estimate:
        """Mean with its 95% t interval over seeds."""
        return t_estimate(self.advantages, self.errors)

    @property
    def weight(self) -> float:
        """The advantage by which recipes are compared: 1 where a failed attack hides it."""
        if self.state in ("shut", "gone", "undefined"):
            return 0.0
        return 1.0 if self.state == "unknown" else max(self.advantage.mean, 0.0)

    @property
    def has_population(self) -> bool:
        """Whether there is a second baseline, of an adversary with rows that no party has."""
        return len(self.populations) > 0 and all(math.isfinite(p) for p in self.populations)

    @property
    def heavy_tailed(self) -> bool:
        """Whether few of three or more seeds make the mean: their median is below half of it."""
        scores = self.scores
        if len(scores) < FEWEST_SEEDS or measure(self.metric).sign < 0:
            return False
        return statistics.median(scores) < self.score / 2

    @property
    def by_seed(self) -> dict[int, float]:
        """The scores by seed."""
        return dict(zip(self.seeds, self.scores, strict=True))


@dataclass(frozen=True)
class Reader:
    """All cells of one adversary in one setting.

    `cells`: By defense and metric. `metrics`: Measured here under some defense, those about persons
    first. `coverage`: Of every defense.
    """

    cells: Mapping[tuple[str, str], Cell]
    metrics: tuple[str, ...]
    coverage: Mapping[str, Coverage] = field(default_factory=dict)

    def cell(self, defense: str, metric: str) -> Cell:
        """Return a cell: "unknown" where a defense was not attacked, "gone" where there is none."""
        state: State = "gone" if defense in self.coverage else "unknown"
        return self.cells.get((defense, metric), Cell(metric, state))

    def of(self, defense: str) -> tuple[Cell, ...]:
        """Return the cells of one defense, in the order of `metrics`."""
        return tuple(self.cell(defense, m) for m in self.metrics)


def read(
    attacks: pd.DataFrame,
    coverage: Mapping[str, Coverage],
    margin: float = MARGIN,
) -> Reader:
    """Return the cells of one adversary in one setting.

    `attacks`: Its attack rows (`fedtrees.report.rows.load_rows`).
    `coverage`: By defense: which attacks apply, and what became of them.
    `margin`: Advantage that may be left and still be called down to blind.
    """
    known = [m for m in _defined(attacks) if measure(m).klass in CLASSES and measure(m).phrase]
    metrics = sorted(known, key=gravity)
    defenses = list(dict.fromkeys(attacks["defense_spec"]))
    cells = {}
    for metric in metrics:
        worst = dict(iter(worst_case(attacks, metric).groupby("defense_spec")))
        gave = (attacks["metric"] == metric) & (attacks["status"] == "ok")
        givers = set(attacks.loc[gave, "attack"])
        for spec in defenses:
            found = _measured(metric, worst[spec]) if spec in worst else Cell(metric)
            mine = attacks[attacks["defense_spec"] == spec]
            state = _state(found, mine, givers, coverage.get(spec, Coverage()), margin)
            cells[spec, metric] = replace(found, state=state)
    return Reader(cells, tuple(metrics), coverage)


def _defined(attacks: pd.DataFrame) -> list[str]:
    """Return the metrics of a panel, those too of which every advantage is undefined."""
    ok = attacks[(attacks["status"] == "ok") & attacks["value"].notna() & attacks["blind"].notna()]
    return [*dict.fromkeys([*attack_metrics(attacks), *sorted(set(ok["metric"]))])]


def _measured(metric: str, worst: pd.DataFrame) -> Cell:
    worst = worst.sort_values("seed")
    blinds, lines = worst["blind"].tolist(), worst["population"].tolist()
    beyond = worst["beyond"].where(worst["beyond"].notna() | worst["population"].isna(), 0.0)
    pairs = zip(worst["advantage"], beyond, strict=True)
    return Cell(
        metric,
        scores=tuple(worst["value"]),
        blinds=tuple(blinds),
        populations=tuple(lines),
        advantages=tuple(min(a, b) if math.isfinite(b) else a for a, b in pairs),
        errors=tuple(worst["advantage_error"]),
        seeds=tuple(int(s) for s in worst["seed"]),
        attacks=tuple(name for name, _ in Counter(worst["attack_spec"]).most_common()),
        rows=float(worst["n"].mean()) if measure(metric).counted_by else math.nan,
    )


def _state(
    cell: Cell, attacks: pd.DataFrame, givers: set[str], coverage: Coverage, margin: float
) -> State:
    if not cell.advantages:
        mine = attacks[attacks["attack"].isin(givers)]
        if mine["status"].isin(["failed", "timeout"]).any() or givers & {*coverage.left_out}:
            return "unknown"
        scored = mine[(mine["metric"] == cell.metric) & (mine["status"] == "ok")]
        return "undefined" if len(scored) else "gone"
    persons = measure(cell.metric).klass == "person" and math.isfinite(cell.rows)
    if is_open(cell, PERSONS_MARGIN if persons else margin, persons):
        return "open"
    limit = min(PERSONS_MARGIN, margin) if persons else margin
    shown = len(cell.seeds) >= FEWEST_SEEDS and coverage.complete
    return "shut" if shown and upper(cell) < limit else "unsettled"


def is_open(cell: Cell, margin: float, persons: bool) -> bool:
    """Tell whether a cell is clearly past its line: of persons by one row, else by the margin."""
    if not cell.advantages:
        return False
    e = cell.advantage
    clear = e.low > 0 if math.isfinite(e.low) else False
    clear = clear or all(a > 0 for a in cell.advantages)
    if persons:
        return clear and (cell.score - cell.line) * cell.rows >= _fewest(cell)
    return clear and e.mean > margin


def _fewest(cell: Cell) -> float:
    """Return how many persons beyond its line a count must be.

    One; of fewer federations than `FEWEST_SEEDS` two standard deviations of the line's own count.
    """
    alone = len(cell.advantages) < FEWEST_SEEDS
    return max(1.0, 2 * math.sqrt(max(cell.line, 0.0) * cell.rows)) if alone else 1.0


def upper(cell: Cell) -> float:
    """Return the upper end of the 95% interval of an advantage.

    Where nothing was counted on any seed, at least the exact binomial bound (Clopper and Pearson
    1934).
    """
    e = cell.advantage
    high = e.high if math.isfinite(e.high) else math.inf
    if math.isfinite(cell.rows) and cell.rows > 0 and not any(cell.scores):
        high = max(high, 1 - (_ALPHA / 2) ** (1 / (cell.rows * len(cell.scores))))
    return high


def gravity(metric: str) -> tuple[int, int]:
    """Return a key that puts what is worst for persons first."""
    told = measure(metric)
    return CLASSES.index(told.klass) if told.klass in CLASSES else len(CLASSES), told.severity


def plain(cells: Sequence[Cell]) -> list[Cell]:
    """Return cells without those that another of them tells more plainly."""
    here = {c.metric for c in cells}
    return [c for c in cells if not here & {*measure(c.metric).beside}]
