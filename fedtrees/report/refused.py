"""Convert results of combinations that the present release refuses to skipped cells.

Earlier releases ran some combinations of protocol and defense that are now known not to fit.
"""

import math
from functools import cache

import pandas as pd

from fedtrees.core.errors import FedtreesError
from fedtrees.core.reasons import FITS, Reason
from fedtrees.core.registry import register
from fedtrees.core.results import COLUMNS
from fedtrees.core.specs import parse_grid, parse_one, written
from fedtrees.protocols.compatibility import fit

_CELL = ["stage", "setting", "defense_spec", "threat", "attack_spec", "seed"]
_MEASURED = [column.name for column in COLUMNS if column.kind == "number"]


def as_skips(rows: pd.DataFrame) -> pd.DataFrame:
    """Replace the results of each refused cell by one row with the status "skipped" and the reason.

    Results of a plug-in that is not loaded are returned unchanged.
    """
    ran = rows["stage"].isin(["train", "attack", "adversary"]) & rows["defense_spec"].ne("none")
    keys = ["protocol", "protocol_params", "defense_spec"]
    remaining, skips = [rows], []
    for (name, inline, defense), group in rows[ran].groupby(keys, observed=True):
        reason = refusal(written(name, inline), defense)
        if not reason.ok:
            remaining[0] = remaining[0].drop(group.index)
            cells = group[group["stage"] != "adversary"].drop_duplicates(_CELL)
            skip_columns = {"status": reason.status, **reason.columns(), "metric": ""}
            whys = pd.Series([reason] * len(cells), index=cells.index, dtype=object)
            skips.append(
                cells.assign(**skip_columns, why=whys, **dict.fromkeys(_MEASURED, math.nan))
            )
    return pd.concat([*remaining, *skips]).sort_index() if skips else rows


@cache
def refusal(protocol: str, defense: str) -> Reason:
    """Return why a protocol refuses a defense.

    If a part of the combination is not registered here, the result is that it fits.
    """
    try:
        plugin = register.make("protocol", parse_grid(protocol)[0])
        parts = [register.make("defense", spec) for spec in parse_one(defense).parts]
    except FedtreesError:
        return FITS
    return fit(plugin, parts)
