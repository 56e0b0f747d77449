"""Cells of the tables of Di Gennaro et al. (2025), each with our corresponding results."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedtrees.benchmarks.papers.study import depth_of
from fedtrees.benchmarks.papers.timberstrike_published import PUBLISHED, over_real_columns
from fedtrees.core.specs import parse_list

_ONE_NUMBER = ("ra_union", "ra_owner")


@dataclass(frozen=True)
class Compared:
    """One cell of a published table, with our corresponding results.

    Attributes
    ----------
    table : str
        Published table or figure.
    protocol : str
        Protocol.
    depth : int
        Maximum depth.
    setting : str
        Partition or defense, if the table has several.
    printed : mapping of str to float
        `full`, `ftp`, `auc` and `f1` as published, RA in percent. Empty if nothing was published.
    rebuilt, random_leaf : DataFrame
        Results of their attack and of its control, one row per seed, scored as in the paper, with
        the best blind guess. RA is a share.
    single, default : DataFrame
        Results of their attack and of our default attack over the victims' rows only.
    utility : mapping of str to float
        Mean AUC and F1 on test rows.
    """

    table: str
    protocol: str
    depth: int
    setting: str
    printed: Mapping[str, float]
    rebuilt: Any
    random_leaf: Any
    single: Any
    default: Any
    utility: Mapping[str, float]

    def theirs(self, column: str) -> float:
        """Return a published RA over the existing columns in percent, NaN if there is none."""
        if column not in self.printed:
            return float("nan")
        return over_real_columns(self.table, self.printed[column])

    @property
    def over_blind(self) -> float:
        """Published RA minus that of the best blind guess, in percentage points."""
        return self.theirs("full") - 100 * float(np.mean(self.rebuilt["blind"]))


def compare_cells(table: str, rows: Any) -> Iterator[Compared]:
    """Yield the cells of a table in the order of its suite."""
    keys = ["protocol", "protocol_params", "partition", "defense_spec"]
    rows = rows[rows["stage"].isin(("train", "attack"))]
    for (protocol, params, partition, defense), part in rows.groupby(keys, sort=False):
        if not (part["stage"] == "attack").any() or (table == "table8") == (defense == "none"):
            continue
        depth = int(depth_of(params))
        columns = PUBLISHED.get((table, protocol, _variant(table, partition, defense)), {})
        trained = part[part["stage"] == "train"].groupby("metric")["value"].mean()
        yield Compared(
            table=table,
            protocol=protocol,
            depth=depth,
            setting={"figure10": partition, "table8": defense}.get(table, ""),
            printed={name: values[depth - 3] for name, values in columns.items()},
            rebuilt=_scores(part, "timberstrike-published", _ONE_NUMBER),
            random_leaf=_scores(part, "timberstrike-published[random_leaf=true]", _ONE_NUMBER),
            single=_scores(part, "timberstrike-published[scope=victims]", ("ra",)),
            default=_scores(part, "timberstrike", ("ra",)),
            utility={name: float(trained[name]) for name in ("auc", "f1")},
        )


def _variant(table: str, partition: str, defense: str) -> float:
    """Return the key that distinguishes published rows of one protocol."""
    if table == "figure10":
        return float(parse_list([partition])[0].params["clients"])
    if table == "table8":
        return float(defense.split("epsilon=")[1].rstrip("]")) / 200
    return 0


def _scores(part: Any, attack: str, metrics: tuple[str, ...]) -> Any:
    """Select the scores of one attack."""
    return part[(part["attack_spec"] == attack) & part["metric"].isin(metrics)]
