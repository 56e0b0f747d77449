"""A part of a run, by the names that its rows have."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.core.specs import parse_one, written

_RUN = ("train", "attack", "adversary")  # stages whose rows name the protocol that was run


@dataclass(frozen=True)
class Selection:
    """Datasets, threats and protocols to show; empty: all.

    A protocol is named with or without its parameters.
    """

    data: Sequence[str] = ()
    threat: Sequence[str] = ()
    protocol: Sequence[str] = ()

    def of(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the rows that are selected, of a table as `load_rows` returns it.

        Raises `UsageError` if a name is of nothing in it.
        """
        kept = pd.Series(True, index=rows.index)
        if self.data:
            kept &= _named("data", self.data, rows["dataset"])
        if self.threat:
            kept &= _named("threat", self.threat, rows["threat"])
        if self.protocol:
            columns = (rows["protocol"], rows["protocol_params"])
            full = pd.Series(map(written, *columns), index=rows.index, dtype=object)
            kept &= _named("protocol", self.protocol, full.where(rows["stage"].isin(_RUN), ""))
        return rows[kept]


def _named(option: str, wanted: Sequence[str], names: pd.Series) -> pd.Series:
    """Mark the rows of the wanted names, and those that have none."""
    known = set(names) - {""}
    short = {n: parse_one(n).name if option == "protocol" else n for n in known}
    for name in wanted:
        if name not in {*known, *short.values()}:
            hint = did_you_mean(name, {*known, *short.values()})
            raise UsageError(f"--{option} {name!r} is nothing in this run{hint}")
    return names.isin({"", *(n for n, s in short.items() if n in wanted or s in wanted)})
