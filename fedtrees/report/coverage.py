"""Determine which attacks apply to a defense under a threat, and how each of them ended."""

from dataclasses import dataclass

import pandas as pd

from fedtrees.core.columns import APPLIES, NOTE
from fedtrees.core.counts import many
from fedtrees.core.errors import FedtreesError
from fedtrees.core.reasons import NO_CLAIM
from fedtrees.core.registry import register
from fedtrees.core.specs import parse_grid
from fedtrees.report.worst import troubles

# Names of the attributes that limit the search of an attack.
LIMITS = ("steps", "work", "time_limit", "limit")
STOPPED_EARLY = "stopped_early"  # note of an attack whose search reached a limit


@dataclass(frozen=True)
class Coverage:
    """The attacks on one defense under one threat.

    Attributes
    ----------
    applicable : tuple of str or None
        Names of all registered attacks that apply, whether or not the suite requested them. None if
        the run does not record it.
    left_out : tuple of str
        Applicable attacks that the suite did not request.
    failed : tuple of (str, str, str, int)
        Attacks that failed or ran out of time: name, specification, status and number of seeds.
    early : tuple of str
        Attacks that stopped at a limit of their search, with these limits.
    no_claim : tuple of (str, str, str, int)
        Attacks that ran and returned no claim: name, specification, reason and number of seeds.
    """

    applicable: tuple[str, ...] | None = None
    left_out: tuple[str, ...] = ()
    failed: tuple[tuple[str, str, str, int], ...] = ()
    early: tuple[str, ...] = ()
    no_claim: tuple[tuple[str, str, str, int], ...] = ()

    @property
    def missing(self) -> bool:
        """Whether an applicable attack is recorded as not run or not finished."""
        return bool(self.left_out or self.failed)

    @property
    def complete(self) -> bool:
        """Whether at least one attack applies, and all that apply ran on every seed."""
        return bool(self.applicable) and not self.missing

    def __str__(self) -> str:
        """Write how many attacks ran: ``1 of 4 applicable attacks ran (left out: ...)``."""
        failed = [f"{spec} ({status}, {many(n, 'seed')})" for _, spec, status, n in self.failed]
        silent = [f"{spec} ({many(n, 'seed')})" for _, spec, _, n in self.no_claim]
        parts = [
            ("left out", self.left_out), ("not finished", failed), ("without a claim", silent),
        ]  # fmt: skip
        why = "; ".join(f"{what}: {', '.join(names)}" for what, names in parts if names)
        why = f" ({why})" if why else ""
        if self.applicable is None:
            return f"which attacks apply is not recorded{why}"
        ran = len({*self.applicable} - {*self.left_out} - {name for name, *_ in self.failed})
        return f"{ran} of {many(len(self.applicable), 'applicable attack')} ran{why}"


def coverage(exposed: pd.DataFrame, attacks: pd.DataFrame) -> Coverage:
    """Determine how the attacks on one defense under one threat ended.

    Parameters
    ----------
    exposed : DataFrame
        Rows of this defense and threat with the stage ``adversary``, which record the applicable
        attacks.
    attacks : DataFrame
        Rows of this defense and threat with the stage ``attack``.
    """
    applicability = exposed[exposed["metric"] == APPLIES.key]
    seen = set(zip(attacks["attack"], attacks["seed"], strict=True))
    skips = attacks[attacks["status"] == "skipped"]
    skipped = set(zip(skips["attack"], skips["seed"], strict=True))
    columns = (applicability[c].tolist() for c in ("attack", "seed", "value"))
    applies = {(name, seed) for name, seed, value in zip(*columns, strict=True) if value > 0}
    # An attack that was recorded as applicable can still be skipped when it runs.
    applies -= skipped
    cut = attacks[cut_short(attacks) & (attacks["value"] > 0)]
    specs = (cut["attack"].tolist(), cut["attack_params"].tolist())
    return Coverage(
        None if applicability.empty else tuple(sorted({name for name, _ in applies})),
        tuple(sorted({name for name, _ in applies - seen})),
        tuple(
            (*key, len(seeds))
            for key, seeds in sorted(troubles(attacks, "attack", "attack_spec", "status").items())
            if key[2] not in ("skipped", NO_CLAIM)
        ),
        tuple(sorted({_with_limits(*spec) for spec in zip(*specs, strict=True)})),
        tuple(
            (name, spec, str(why), len(seeds))
            for (name, spec, why), seeds in troubles(
                attacks[attacks["status"] == NO_CLAIM], "attack", "attack_spec", "why"
            ).items()
        ),
    )


def cut_short(rows: pd.DataFrame) -> pd.Series:
    """Mark the rows that record whether a search reached its limit."""
    return (rows["metric"] == NOTE.key) & (rows["part"] == STOPPED_EARLY)


def _with_limits(name: str, params: str) -> str:
    """Write an attack with the limits of its search, for example ``joint[steps=100000]``."""
    try:
        attack = register.make("attack", parse_grid(f"{name}[{params}]" if params else name)[0])
    # The attack belongs to another release or to a plug-in file that is not loaded.
    except FedtreesError:
        return name
    limits = {key: getattr(attack, key, None) for key in LIMITS}
    limit_texts = [f"{key}={value:g}" for key, value in limits.items() if value is not None]
    return f"{name}[{','.join(limit_texts)}]" if limit_texts else name
