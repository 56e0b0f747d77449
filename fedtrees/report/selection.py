"""Select a part of a run by the names of datasets, threats and protocols."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.core.specs import parse_one, written

# Rows of the remaining stages ("reference" and "blind") contain something else in the column
# ``protocol``, for example "local-only".
_RUN = ("train", "attack", "adversary")


@dataclass(frozen=True)
class Selection:
    """Names of the datasets, threats and protocols to show.

    Attributes
    ----------
    data, threat, protocol : sequence of str
        Names to show. An empty sequence selects everything. A protocol can be given with or without
        its parameters.
    """

    data: Sequence[str] = ()
    threat: Sequence[str] = ()
    protocol: Sequence[str] = ()

    def of(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the selected rows of a table that `load_rows` returned.

        Raises `UsageError` if a name does not occur in the table.
        """
        selected = pd.Series(True, index=rows.index)
        if self.data:
            selected &= _named("data", self.data, rows["dataset"])
        if self.threat:
            selected &= _named("threat", self.threat, rows["threat"])
        if self.protocol:
            columns = (rows["protocol"], rows["protocol_params"])
            full = pd.Series(map(written, *columns), index=rows.index, dtype=object)
            selected &= _named("protocol", self.protocol, full.where(rows["stage"].isin(_RUN), ""))
        return rows[selected]


def _named(option: str, wanted: Sequence[str], names: pd.Series) -> pd.Series:
    """Return a mask of the rows that have one of the wanted names or an empty name."""
    names_in_run = set(names) - {""}
    short = {n: parse_one(n).name if option == "protocol" else n for n in names_in_run}
    for name in wanted:
        if name not in {*names_in_run, *short.values()}:
            hint = did_you_mean(name, {*names_in_run, *short.values()})
            raise UsageError(f"--{option} {name!r} is nothing in this run{hint}")
    return names.isin({"", *(n for n, s in short.items() if n in wanted or s in wanted)})
