"""What changed from one run to another, cell by cell: leaks, utility, what ran, on what."""

import math
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd

from fedtrees.core.columns import measure
from fedtrees.core.counts import listed, many
from fedtrees.core.errors import StoreError, UsageError
from fedtrees.report.findings import begun_only
from fedtrees.report.findings_json import estimate
from fedtrees.report.intervals import Estimate, t_estimate
from fedtrees.report.price import utility_of
from fedtrees.report.rows import Setting, load_rows, read_json, read_text
from fedtrees.report.said import change, some
from fedtrees.report.states import Cell, plain, read
from fedtrees.report.worst import by_seed, panels

_CELL = ("stage", "setting", "defense_spec", "threat", "attack_spec", "seed")
#: What may tell the cells of one run from another's, and how it is called.
_AXES = {
    "dataset": "data", "partition": "partition", "protocol_spec": "protocol",
    "defense_spec": "defense", "threat": "threat", "attack_spec": "attack", "seed": "seed",
}  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One measure of one defense, in the second run against the first.

    `threat`: Whose leak it is; "" of a model's utility. `by_seed`: Differences, of a leak in
    advantage by the strongest attack of each run, of utility in its own unit. `errors`: Their
    standard errors where a sample of the rows was scored. `attacks`: The strongest, in either run.
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
        """Mean with its 95% t interval over seeds."""
        return t_estimate(self.by_seed.values(), self.errors)

    @property
    def same(self) -> bool:
        """Whether no seed differs."""
        return not any(self.by_seed.values())

    @property
    def worse(self) -> float:
        """By how much it got worse: more is read, or the model predicts worse."""
        return self.difference.mean * (1.0 if self.threat else -measure(self.metric).sign)

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero."""
        e = self.difference
        return math.isfinite(e.low) and (e.low > 0 or e.high < 0)

    def __str__(self) -> str:
        by = f", by {' or '.join(self.attacks)}" if self.attacks else ""
        who = f" · {self.threat}" if self.threat else ""
        what = measure(self.metric).head + (", advantage" if self.threat else "")
        told = f"{what} {change(self.difference)}: {self.defense}{who}{by}"
        return f"{told} ({self.setting})"


@dataclass(frozen=True)
class Comparison:
    """Two runs, the second against the first.

    `common`: Cells of both. `only`: Of each run, its cells that the other lacks and what tells them
    apart. `ended`: Cells that ended otherwise, by attack or "training" and how. `inputs`: What
    differs of environment, tables and suite, before and after.
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
        """What is not the same, what is clear first, then by size."""
        found = [c for c in (*self.leaks, *self.utility) if not c.same]
        return tuple(sorted(found, key=lambda c: (not c.clear, -abs(c.worse))))

    @property
    def verdict(self) -> str:
        """What got worse most, in a sentence."""
        if not self.differing and not self.ended:
            alone = sum(n for n, _ in self.only)
            beside = f"; {many(alone, 'cell')} of one run alone are not compared" if alone else ""
            return f"Nothing changed in {many(self.common, 'cell')} of both runs{beside}."
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
        """Return it as plain JSON types."""
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

    Raises `StoreError`: a folder holds no run, or one that is not finished. Raises `UsageError`:
    one folder twice, or no cell in common.
    """
    folders = Path(before), Path(after)
    if folders[0].resolve() == folders[1].resolve():
        raise UsageError(f"{after} is the same run as {before}; give two")
    first, second = (_rows(folder) for folder in folders)
    ours, theirs = (set(zip(*(r[c] for c in _CELL), strict=True)) for r in (first, second))
    if not ours & theirs:
        have = (some([str(s) for s in sorted({*r["setting"]})]) for r in (first, second))
        raise UsageError(
            f"{before} and {after} have no cell in common: one is of {next(have)}, the other of "
            f"{next(have)}; compare runs of one table, partition and protocol"
        )
    alone = _alone(first, second, ours - theirs), _alone(second, first, theirs - ours)
    paired = _paired(first, second)
    return Comparison(
        (str(before), str(after)),
        len(ours & theirs),
        alone,
        _ended(first, second),
        _inputs(*folders),
        tuple(_leaks(*paired)),
        tuple(_utility(*paired)),
    )


def _rows(folder: Path) -> pd.DataFrame:
    if begun_only(folder):
        raise StoreError(
            f"{folder} is not finished; finish it with: fedtrees bench --resume --out {folder}"
        )
    rows = load_rows(folder)
    rows = rows[rows["stage"].isin(["train", "attack"])]
    return rows.assign(protocol_spec=[s.protocol for s in rows["setting"]])


def _alone(rows: pd.DataFrame, other: pd.DataFrame, cells: set[Any]) -> tuple[int, str]:
    """Return how many cells one run has alone, and which names the other does not know."""
    if not cells:
        return 0, ""
    texts = []
    for column, word in _AXES.items():
        new = sorted({*rows[column]} - {*other[column]})
        texts += [f"{word} {some([f'{n:g}' if word == 'seed' else n for n in new])}"] * bool(new)
    return len(cells), listed(texts)


def _ended(first: pd.DataFrame, second: pd.DataFrame) -> dict[str, int]:
    """Return how many cells ended otherwise, by attack and states."""

    def states(rows: pd.DataFrame) -> dict[Any, str]:
        kept = rows.drop_duplicates([*_CELL])
        return dict(zip(zip(*(kept[c] for c in _CELL), strict=True), kept["status"], strict=True))

    here, there = states(first), states(second)
    found = Counter(
        f"{key[4] or 'training'} {here[key]} → {there[key]}"
        for key in here
        if key in there and here[key] != there[key]
    )
    return dict(found.most_common())


def _paired(first: pd.DataFrame, second: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the measurements that both runs have: what one lacks is no change of a leak."""
    keys = [*_CELL, "metric", "part"]
    good = [r[(r["status"] == "ok") & r["value"].notna()] for r in (first, second)]
    made = [pd.MultiIndex.from_frame(r[keys].astype({"setting": str})) for r in good]
    return good[0][made[0].isin(made[1])], good[1][made[1].isin(made[0])]


def _leaks(first: pd.DataFrame, second: pd.DataFrame) -> Iterator[Change]:
    for panel in panels(first):
        readers = [
            read(
                r[(r["stage"] == "attack") & (r["setting"] == panel.setting)
                  & (r["threat"] == panel.threat)], {},
            )
            for r in (first, second)
        ]  # fmt: skip
        for spec in dict.fromkeys(defense for defense, _ in readers[0].cells):
            cells = [{c.metric: c for c in plain(r.of(spec)) if c.scores} for r in readers]
            for metric, cell in cells[0].items():
                if metric in cells[1]:
                    found = _leak(panel.setting, spec, panel.threat, cell, cells[1][metric])
                    yield from (found,) if found.by_seed else ()


def _leak(setting: Setting, spec: str, threat: str, before: Cell, after: Cell) -> Change:
    old, new = (
        dict(zip(c.seeds, zip(c.advantages, c.errors, strict=True), strict=True))
        for c in (before, after)
    )
    both = [s for s in old if s in new]
    attacks = (c.attacks[0] for c in (before, after) if c.attacks)
    return Change(
        setting, spec, threat, before.metric,
        {s: new[s][0] - old[s][0] for s in both},
        tuple(math.hypot(new[s][1], old[s][1]) for s in both),
        tuple(dict.fromkeys(attacks)),
    )  # fmt: skip


def _utility(first: pd.DataFrame, second: pd.DataFrame) -> Iterator[Change]:
    trains = [r[r["stage"] == "train"] for r in (first, second)]
    for setting in sorted({*trains[0]["setting"]}):
        here = [t[t["setting"] == setting] for t in trains]
        metric = utility_of(here[0]).metric
        for spec in dict.fromkeys(here[0]["defense_spec"]):
            old, new = (by_seed(t[t["defense_spec"] == spec], metric) for t in here)
            both = {s: new[s] - old[s] for s in old if s in new}
            yield from (Change(setting, spec, "", metric, both),) if both else ()


def _inputs(before: Path, after: Path) -> dict[str, tuple[Any, Any]]:
    """Return what differs of what two runs ran on, by name."""
    old, new = (dict(_flat(_told(folder))) for folder in (before, after))
    keys = [k for k in dict.fromkeys((*old, *new)) if old.get(k) != new.get(k)]
    return {k: (old.get(k), new.get(k)) for k in keys}


def _told(folder: Path) -> dict[str, Any]:
    found = read_json(folder, "environment.json")
    environment = dict(found) if isinstance(found, dict) else {}
    try:
        suite = tomllib.loads(read_text(folder, "suite.toml") or "")
    except tomllib.TOMLDecodeError as error:
        raise StoreError(f"{folder / 'suite.toml'} is no TOML ({error}); run again") from error
    tables = {t["file"]: t["sha256"][:12] for t in environment.pop("tables", [])}
    return {**environment, "tables": tables, "suite": suite}


def _flat(told: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what stands in nested objects, by dotted name; lists of plain values stay whole."""
    if isinstance(told, Mapping):
        parts = [_flat(v, f"{name}.{k}" if name else k) for k, v in told.items()]
        yield from chain.from_iterable(parts)
    elif isinstance(told, list) and any(isinstance(v, Mapping) for v in told):
        parts = [_flat(v, f"{name}[{at}]") for at, v in enumerate(told)]
        yield from chain.from_iterable(parts)
    else:
        yield name, told


def _as_json(found: Change) -> dict[str, Any]:
    return {
        "dataset": found.setting.dataset,
        "partition": found.setting.partition,
        "protocol": found.setting.protocol,
        "defense": found.defense,
        **({"threat": found.threat, "attacks": [*found.attacks]} if found.threat else {}),
        "metric": found.metric,
        "seeds": [*found.by_seed],
        "difference": estimate(found.difference),
        "same": found.same,
        "clear": found.clear,
    }
