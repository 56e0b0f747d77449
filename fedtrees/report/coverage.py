"""Which attacks apply to a defense under a threat, and what became of them."""

from dataclasses import dataclass

import pandas as pd

from fedtrees.core.columns import APPLIES, NOTE
from fedtrees.core.counts import many
from fedtrees.core.errors import FedtreesError
from fedtrees.core.reasons import NO_CLAIM
from fedtrees.core.registry import register
from fedtrees.core.specs import parse_grid
from fedtrees.report.worst import troubles

LIMITS = ("steps", "work", "time_limit", "limit")  # of a search, as attacks call them
STOPPED_EARLY = "stopped_early"  # what an attack notes whose search was cut short


@dataclass(frozen=True)
class Coverage:
    """The attacks on one defense under one threat.

    `applicable`: Names of those that apply, of the suite or not; None where the run does not say.
    `left_out`: Those of them that the suite did not ask for. `failed`: Attacks that failed or ran
    out of time: name, as it was asked for, status and on how many seeds. `early`: Those whose
    search was cut short, with its limits. `no_claim`: Those that ran and returned no claim: name,
    as it was asked for, the reason and on how many seeds.
    """

    applicable: tuple[str, ...] | None = None
    left_out: tuple[str, ...] = ()
    failed: tuple[tuple[str, str, str, int], ...] = ()
    early: tuple[str, ...] = ()
    no_claim: tuple[tuple[str, str, str, int], ...] = ()

    @property
    def missing(self) -> bool:
        """Whether an attack that applies is known not to have finished, or not to have run."""
        return bool(self.left_out or self.failed)

    @property
    def complete(self) -> bool:
        """Whether every attack that applies ran, on every seed, and there was one."""
        return bool(self.applicable) and not self.missing

    def __str__(self) -> str:
        """Write how many ran, and which did not: 1 of 4 applicable attacks ran (left out: ...)."""
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
    """Return what became of the attacks on one defense under one threat.

    `exposed`: Its rows of the stage ``adversary``.
    `attacks`: Its rows of the stage ``attack``.
    """
    told = exposed[exposed["metric"] == APPLIES.key]
    seen = set(zip(attacks["attack"], attacks["seed"], strict=True))
    skips = attacks[attacks["status"] == "skipped"]
    skipped = set(zip(skips["attack"], skips["seed"], strict=True))
    columns = (told[c].tolist() for c in ("attack", "seed", "value"))
    applies = {(name, seed) for name, seed, value in zip(*columns, strict=True) if value > 0}
    applies -= skipped
    cut = attacks[cut_short(attacks) & (attacks["value"] > 0)]
    specs = (cut["attack"].tolist(), cut["attack_params"].tolist())
    return Coverage(
        None if told.empty else tuple(sorted({name for name, _ in applies})),
        tuple(sorted({name for name, _ in applies - seen})),
        tuple(
            (*key, len(seeds))
            for key, seeds in sorted(troubles(attacks, "attack", "attack_spec", "status").items())
            if key[2] not in ("skipped", NO_CLAIM)
        ),
        tuple(sorted({_limited(*spec) for spec in zip(*specs, strict=True)})),
        tuple(
            (name, spec, str(why), len(seeds))
            for (name, spec, why), seeds in troubles(
                attacks[attacks["status"] == NO_CLAIM], "attack", "attack_spec", "why"
            ).items()
        ),
    )


def cut_short(rows: pd.DataFrame) -> pd.Series:
    """Mark the rows that tell whether a search was cut short."""
    return (rows["metric"] == NOTE.key) & (rows["part"] == STOPPED_EARLY)


def _limited(name: str, params: str) -> str:
    """Write an attack with the limits of its search: ``joint[steps=100000]``."""
    try:
        made = register.make("attack", parse_grid(f"{name}[{params}]" if params else name)[0])
    except FedtreesError:  # of another release, or of a file that is not loaded
        return name
    limits = {key: getattr(made, key, None) for key in LIMITS}
    said = [f"{key}={value:g}" for key, value in limits.items() if value is not None]
    return f"{name}[{','.join(said)}]" if said else name
