"""Compare two runs cell by cell: leaks, utility, how cells ended, and the inputs of the runs."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd

from fedtrees.core.errors import StoreError, UsageError, listed, many
from fedtrees.core.results import measure
from fedtrees.report.adversaries import AdversaryFindings
from fedtrees.report.cost import utility_of
from fedtrees.report.findings import is_unfinished
from fedtrees.report.json_export import estimate
from fedtrees.report.leakage import LeakageResult, plain
from fedtrees.report.results import CELL_COLUMNS, Setting, load_rows, read_json, read_suite
from fedtrees.report.statistics import Estimate, by_seed, panels, t_estimate
from fedtrees.report.wording import change, some

#: Columns in which cells of two runs can differ, with their names in messages.
_AXES = {
    "dataset": "data", "partition": "partition", "protocol_spec": "protocol",
    "defense_spec": "defense", "threat": "threat", "attack_spec": "attack", "seed": "seed",
}  # fmt: skip


@dataclass(frozen=True)
class Change:
    """Difference between two runs by one measure of one defense.

    Attributes
    ----------
    setting : Setting
        Dataset, partition and protocol.
    defense : str
        Name of the defense.
    threat : str
        Threat of a leak, "" for the utility of a model.
    metric : str
        Key of the measure.
    by_seed : mapping of int to float
        Value of the second run minus value of the first, by seed. For a leak, the value is the
        advantage of the strongest attack of each run. For a utility, it is the utility.
    errors : tuple of float
        Standard errors of the differences if only a sample of the rows was scored, else 0.
    attacks : tuple of str
        The strongest attack of each run.
    """

    setting: Setting
    defense: str
    threat: str
    metric: str
    by_seed: Mapping[int, float]
    errors: tuple[float, ...] = ()
    attacks: tuple[str, ...] = ()

    @property
    def difference(self) -> Estimate:
        """Mean difference with its 95% t interval over seeds."""
        return t_estimate(self.by_seed.values(), self.errors)

    @property
    def same(self) -> bool:
        """Whether the difference is zero on every seed."""
        return not any(self.by_seed.values())

    @property
    def worse(self) -> float:
        """By how much the second run is worse: a larger leak or a smaller utility."""
        return self.difference.mean * (1.0 if self.threat else -measure(self.metric).sign)

    @property
    def clear(self) -> bool:
        """Whether the interval excludes zero."""
        e = self.difference
        return math.isfinite(e.low) and (e.low > 0 or e.high < 0)

    def __str__(self) -> str:
        by = f", by {' or '.join(self.attacks)}" if self.attacks else ""
        who = f" · {self.threat}" if self.threat else ""
        measure_name = measure(self.metric).head + (", advantage" if self.threat else "")
        change_text = f"{measure_name} {change(self.difference)}: {self.defense}{who}{by}"
        return f"{change_text} ({self.setting})"


@dataclass(frozen=True)
class Comparison:
    """Comparison of a second run with a first one.

    Attributes
    ----------
    runs : tuple of (str, str)
        Folders of the two runs.
    common : int
        Number of cells that both runs contain.
    only : tuple of (int, str)
        For each run: the number of cells that the other one does not contain, and the values in
        which they differ.
    ended : mapping of str to int
        Number of cells that ended differently, by attack (or "training") and pair of states.
    inputs : mapping of str to (before, after)
        Differences in environment, tables and suite, by name.
    leaks, utility : tuple of Change
        Differences of all measures that both runs have.
    """

    runs: tuple[str, str]
    common: int
    only: tuple[tuple[int, str], tuple[int, str]]
    ended: Mapping[str, int]
    inputs: Mapping[str, tuple[Any, Any]]
    leaks: tuple[Change, ...]
    utility: tuple[Change, ...]

    @cached_property
    def differing(self) -> tuple[Change, ...]:
        """The changes that are not zero: clear ones first, then by size."""
        nonzero = [c for c in (*self.leaks, *self.utility) if not c.same]
        return tuple(sorted(nonzero, key=lambda c: (not c.clear, -abs(c.worse))))

    @property
    def verdict(self) -> str:
        """The largest deterioration, as one sentence."""
        if not self.differing and not self.ended:
            unpaired = sum(n for n, _ in self.only)
            remark = (
                f"; {many(unpaired, 'cell')} that only one run contains are not compared"
                if unpaired
                else ""
            )
            return f"Nothing changed in {many(self.common, 'cell')} of both runs{remark}."
        worse = [c for c in self.differing if c.worse > 0]
        first = next((c for c in worse if c.threat), None)
        cost = next((c for c in worse if not c.threat), None)
        clear = [c for c in (first, cost) if c and c.clear]
        if clear:
            return f"Got worse most: {'; '.join(map(str, clear))}."
        if not worse:
            otherwise = f"; {many(sum(self.ended.values()), 'cell')} ended otherwise"
            return f"Nothing got worse{otherwise if self.ended else ''}."
        return f"Nothing got clearly worse; the most, within the spread of seeds: {worse[0]}."

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as plain JSON types."""
        return {
            "runs": [*self.runs],
            "common": self.common,
            "only": [{"cells": n, "by": by} for n, by in self.only],
            "ended_otherwise": dict(self.ended),
            "inputs": {key: [*pair] for key, pair in self.inputs.items()},
            "leaks": [_as_json(c) for c in self.leaks],
            "utility": [_as_json(c) for c in self.utility],
            "verdict": self.verdict,
        }


def compare(before: str | Path, after: str | Path) -> Comparison:
    """Compare two finished runs, paired by cell, measure and seed.

    Raises
    ------
    StoreError
        If a folder contains no run or one that is not finished.
    UsageError
        If both folders are the same, or if the runs have no cell in common.
    """
    folders = Path(before), Path(after)
    if folders[0].resolve() == folders[1].resolve():
        raise UsageError(
            f"{before} and {after} are the same folder; give the folders of two different runs"
        )
    first, second = (_rows(folder) for folder in folders)
    first_cells, second_cells = (
        set(zip(*(r[c] for c in CELL_COLUMNS), strict=True)) for r in (first, second)
    )
    if not first_cells & second_cells:
        have = (some([str(s) for s in sorted({*r["setting"]})]) for r in (first, second))
        raise UsageError(
            f"{before} and {after} have no cell in common: one is of {next(have)}, the other of "
            f"{next(have)}; compare runs of one table, partition and protocol"
        )
    unpaired = (
        _describe_unpaired(first, second, first_cells - second_cells),
        _describe_unpaired(second, first, second_cells - first_cells),
    )
    paired = _pair_measurements(first, second)
    return Comparison(
        (str(before), str(after)),
        len(first_cells & second_cells),
        unpaired,
        _count_endings(first, second),
        _inputs(*folders),
        tuple(_leaks(*paired)),
        tuple(_utility(*paired)),
    )


def _rows(folder: Path) -> pd.DataFrame:
    """Return the training and attack rows of a finished run."""
    if is_unfinished(folder):
        raise StoreError(
            f"{folder} is not finished; finish it with: fedtrees bench --resume --output {folder}"
        )
    rows = load_rows(folder)
    rows = rows[rows["stage"].isin(["train", "attack"])]
    return rows.assign(protocol_spec=[s.protocol for s in rows["setting"]])


def _describe_unpaired(rows: pd.DataFrame, other: pd.DataFrame, cells: set[Any]) -> tuple[int, str]:
    """Return the number of cells that only one run has, and the values that the other run lacks."""
    if not cells:
        return 0, ""
    texts = []
    for column, word in _AXES.items():
        new = sorted({*rows[column]} - {*other[column]})
        texts += [f"{word} {some([f'{n:g}' if word == 'seed' else n for n in new])}"] * bool(new)
    return len(cells), listed(texts)


def _count_endings(first: pd.DataFrame, second: pd.DataFrame) -> dict[str, int]:
    """Return the number of cells that ended differently, by attack and pair of states."""

    def states(rows: pd.DataFrame) -> dict[Any, str]:
        cells = rows.drop_duplicates([*CELL_COLUMNS])
        return dict(
            zip(zip(*(cells[c] for c in CELL_COLUMNS), strict=True), cells["status"], strict=True)
        )

    before, after = states(first), states(second)
    counts = Counter(
        f"{key[4] or 'training'} {before[key]} → {after[key]}"
        for key in before
        if key in after and before[key] != after[key]
    )
    return dict(counts.most_common())


def _pair_measurements(
    first: pd.DataFrame, second: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the measurements that both runs have.

    A missing measurement is not a change of a leak.
    """
    keys = [*CELL_COLUMNS, "metric", "part"]
    good = [r[(r["status"] == "ok") & r["value"].notna()] for r in (first, second)]
    keys_of = [pd.MultiIndex.from_frame(r[keys].astype({"setting": str})) for r in good]
    return good[0][keys_of[0].isin(keys_of[1])], good[1][keys_of[1].isin(keys_of[0])]


def _leaks(first: pd.DataFrame, second: pd.DataFrame) -> Iterator[Change]:
    """Yield the changes of all leaks, by threat, defense and measure."""
    for panel in panels(first):
        before, after = (
            AdversaryFindings(
                panel.threat,
                r[
                    (r["stage"] == "attack")
                    & (r["setting"] == panel.setting)
                    & (r["threat"] == panel.threat)
                ],
            )
            for r in (first, second)
        )
        for spec in dict.fromkeys(before.attacks["defense_spec"]):
            old, new = (
                {r.metric: r for r in plain(adversary.results(spec)) if r.scores}
                for adversary in (before, after)
            )
            # Only measures that both runs have can be compared.
            for metric in (m for m in old if m in new):
                leak_change = _leak(panel.setting, spec, panel.threat, old[metric], new[metric])
                yield from (leak_change,) if leak_change.by_seed else ()


def _leak(
    setting: Setting, spec: str, threat: str, before: LeakageResult, after: LeakageResult
) -> Change:
    """Compare the cells of two runs, paired by seed."""
    old, new = (
        dict(zip(c.seeds, zip(c.advantages, c.errors, strict=True), strict=True))
        for c in (before, after)
    )
    both = [s for s in old if s in new]
    attacks = (c.attacks[0] for c in (before, after) if c.attacks)
    return Change(
        setting, spec, threat, before.metric,
        {s: new[s][0] - old[s][0] for s in both},
        # The sampling errors of the two runs are independent.
        tuple(math.hypot(new[s][1], old[s][1]) for s in both),
        tuple(dict.fromkeys(attacks)),
    )  # fmt: skip


def _utility(first: pd.DataFrame, second: pd.DataFrame) -> Iterator[Change]:
    """Yield the changes of the utility, by setting and defense."""
    trains = [r[r["stage"] == "train"] for r in (first, second)]
    for setting in sorted({*trains[0]["setting"]}):
        here = [t[t["setting"] == setting] for t in trains]
        metric = utility_of(here[0]).metric
        for spec in dict.fromkeys(here[0]["defense_spec"]):
            old, new = (by_seed(t[t["defense_spec"] == spec], metric) for t in here)
            both = {s: new[s] - old[s] for s in old if s in new}
            yield from (Change(setting, spec, "", metric, both),) if both else ()


def _inputs(before: Path, after: Path) -> dict[str, tuple[Any, Any]]:
    """Return the differences between the inputs of two runs, by name."""
    old, new = (dict(_flat(_read_inputs(folder))) for folder in (before, after))
    keys = [k for k in dict.fromkeys((*old, *new)) if old.get(k) != new.get(k)]
    return {k: (old.get(k), new.get(k)) for k in keys}


def _read_inputs(folder: Path) -> dict[str, Any]:
    """Return environment, digests of tables and suite of a run."""
    stored = read_json(folder, "environment.json")
    environment = dict(stored) if isinstance(stored, dict) else {}
    suite = read_suite(folder)
    for key in ("name", "description"):  # these do not influence the results
        suite.pop(key, None)
    tables = {t["file"]: t["sha256"][:12] for t in environment.pop("tables", [])}
    return {**environment, "tables": tables, "suite": suite}


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in nested objects by dotted name.

    A list is one value unless it contains objects.
    """
    if isinstance(value, Mapping):
        parts = [_flat(v, f"{name}.{k}" if name else k) for k, v in value.items()]
        yield from chain.from_iterable(parts)
    elif isinstance(value, list) and any(isinstance(v, Mapping) for v in value):
        parts = [_flat(v, f"{name}[{at}]") for at, v in enumerate(value)]
        yield from chain.from_iterable(parts)
    else:
        yield name, value


def _as_json(change: Change) -> dict[str, Any]:
    """Return a change as plain JSON types."""
    return {
        "dataset": change.setting.dataset,
        "partition": change.setting.partition,
        "protocol": change.setting.protocol,
        "defense": change.defense,
        **({"threat": change.threat, "attacks": [*change.attacks]} if change.threat else {}),
        "metric": change.metric,
        "seeds": [*change.by_seed],
        "difference": estimate(change.difference),
        "same": change.same,
        "clear": change.clear,
    }
