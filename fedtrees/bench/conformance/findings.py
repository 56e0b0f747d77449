"""Define the result of a check."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One rule, whether it is kept, and a detail of the observation."""

    rule: str
    kept: bool
    detail: str = ""
