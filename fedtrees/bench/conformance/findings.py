"""What a check found."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One rule, whether it was kept, and what was seen."""

    rule: str
    kept: bool
    detail: str = ""
