"""Count the runs in which a site took part, for each federation that its owner allowed.

An agreement is the hash of a federation. Each run of it draws fresh noise on the same rows, so that
the epsilons of the runs add up (basic composition, Dwork et al. 2006). A site therefore takes part
once by default. It writes a line to a local file before it answers the first request on its rows.
For this reason, a run that was stopped counts as well, and two simultaneous jobs count as two.
"""

import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from fedtrees.core.errors import UsageError
from fedtrees.core.files import append_private, locked
from fedtrees.core.guarantee import ApproximateDP, Guarantee, PureDP, join, parse
from fedtrees.federation.agreed import Agreed

FILE = "agreements.jsonl"
_BYTE = 0  # byte of the folder's lock file
_WHOLE_RUN = ("record", "cuts")  # units of an epsilon that covers all releases of a run


def records_of(folder: Path) -> list[dict[str, str]]:
    """Return one record per run in which a site took part, in order.

    `folder` contains the logs of the site. Raises `UsageError` if the file is damaged, because a
    site that cannot count its runs must refuse.
    """
    path = folder / FILE
    try:
        lines = path.read_text("utf-8").splitlines()
        records = [json.loads(line) for line in lines]
        if not all(isinstance(r, dict) and isinstance(r["federation"], str) for r in records):
            raise ValueError("a line is no record of a run")
    except FileNotFoundError:
        return []
    except (OSError, ValueError, LookupError) as err:
        raise UsageError(
            f"{path} cannot be read ({err}); put it back, because it counts the runs on your rows"
        ) from err
    return records


def runs_of(records: Iterable[dict[str, str]], agreement: str) -> list[dict[str, str]]:
    """Return the records of the runs of one federation."""
    return [record for record in records if record["federation"] == agreement]


def begin_run(folder: Path, federation: Agreed, allowed: int) -> int | None:
    """Count a run that is about to begin.

    Parameters
    ----------
    folder : Path
        Folder of the site's logs.
    federation : Agreed
        The agreement of the parties.
    allowed : int
        Number of runs of it that the owner of the site allows.

    Returns
    -------
    number : int or None
        The number of this run, counted from 1. None if all allowed runs took place.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The lock makes reading and appending one step, so that two jobs cannot both use the last run.
    with locked(folder, _BYTE):
        number = len(runs_of(records_of(folder), federation.hash)) + 1
        if number > allowed:
            return None
        record = {
            "federation": federation.hash,
            "name": federation.name,
            "begun": datetime.now(UTC).isoformat(timespec="seconds"),
            "claimed": join([federation.made.claimed(federation.composed),
                             *federation.composed.claims()]),
        }  # fmt: skip
        append_private(folder / FILE, f"{json.dumps(record)}\n")
        return number


def keep_records(old: Path, new: Path) -> None:
    """Copy the records of a site to its new folder, so that no run is lost from the count."""
    if old.resolve() == new.resolve():
        return
    present = records_of(new)
    moved = [record for record in records_of(old) if record not in present]
    if moved:
        new.mkdir(mode=0o700, parents=True, exist_ok=True)
        append_private(new / FILE, "".join(f"{json.dumps(record)}\n" for record in moved))


def total_epsilon(records: Iterable[dict[str, str]]) -> float:
    """Return the sum of the epsilons of runs, for one row in all of them.

    It is infinite if a run claims no differential privacy, or claims it for a single release only
    (``unit=histogram``), because the number of releases depends on the run.

    Examples
    --------
    >>> total_epsilon([{"claimed": "pure-dp[epsilon=2]"}, {"claimed": "pure-dp[epsilon=0.5]"}])
    2.5
    >>> total_epsilon([{"claimed": "computational"}])
    inf
    """
    return sum((_epsilon(parse(record["claimed"])) for record in records), 0.0)


def _epsilon(claims: Iterable[Guarantee]) -> float:
    """Return the epsilon of one run."""
    private = [g for g in claims if isinstance(g, PureDP | ApproximateDP)]
    if not any(g.unit == "record" for g in private):
        return math.inf
    covered = all(g.unit in _WHOLE_RUN for g in private)
    return sum(g.epsilon for g in private) if covered else math.inf


def summary(records: list[dict[str, str]], agreement: str, allowed: int) -> str:
    """Return a sentence for the owner with the number of runs and their total epsilon.

    Parameters
    ----------
    records : list of dict
        Records of all runs of the site.
    agreement : str
        Hash of a federation.
    allowed : int
        Number of runs of this federation that the owner allows.
    """
    runs = runs_of(records, agreement)
    return (
        f"runs of {agreement}: {len(runs)} of {allowed} allowed, {_in_words(total_epsilon(runs))}; "
        f"all {len(records)} runs of this site: {_in_words(total_epsilon(records))}"
    )


def _in_words(epsilon: float) -> str:
    """Return a total epsilon in words."""
    finite = math.isfinite(epsilon)
    return f"total epsilon {epsilon:g}" if finite else "total epsilon not bounded by the claims"
