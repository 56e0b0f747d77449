"""Rows of an older run whose composition is refused today: skips, with the reason."""

import math
from functools import cache

import pandas as pd

from fedtrees.core.errors import FedtreesError
from fedtrees.core.reasons import FITS, Reason
from fedtrees.core.registry import register
from fedtrees.core.rows import COLUMNS
from fedtrees.core.specs import parse_grid, parse_one, written
from fedtrees.protocols.compatibility import fit

_CELL = ["stage", "setting", "defense_spec", "threat", "attack_spec", "seed"]
_MEASURED = [column.name for column in COLUMNS if column.kind == "number"]


def as_skips(rows: pd.DataFrame) -> pd.DataFrame:
    """Return labelled rows with one skip for each cell of what is refused: it has no claim left.

    What is of a plugin that is not loaded stays as it is.
    """
    ran = rows["stage"].isin(["train", "attack", "adversary"]) & rows["defense_spec"].ne("none")
    keys = ["protocol", "protocol_params", "defense_spec"]
    kept, skips = [rows], []
    for (name, inline, defense), group in rows[ran].groupby(keys, observed=True):
        reason = refusal(written(name, inline), defense)
        if not reason.ok:
            kept[0] = kept[0].drop(group.index)
            cells = group[group["stage"] != "adversary"].drop_duplicates(_CELL)
            told = {"status": reason.status, **reason.columns(), "metric": ""}
            whys = pd.Series([reason] * len(cells), index=cells.index, dtype=object)
            skips.append(cells.assign(**told, why=whys, **dict.fromkeys(_MEASURED, math.nan)))
    return pd.concat([*kept, *skips]).sort_index() if skips else rows


@cache
def refusal(protocol: str, defense: str) -> Reason:
    """Return why a composition is refused with a protocol; where that is not known, it fits."""
    try:
        made = register.make("protocol", parse_grid(protocol)[0])
        parts = [register.make("defense", spec) for spec in parse_one(defense).parts]
    except FedtreesError:
        return FITS
    return fit(made, parts)
