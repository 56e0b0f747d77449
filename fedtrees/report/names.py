"""What the names of a run are called in a paper."""

from __future__ import annotations

from collections.abc import Mapping

from fedtrees.core.errors import UsageError, did_you_mean


class Names:
    """What names are called in a figure or a table: what nobody renamed, as it is."""

    def __init__(self, labels: Mapping[str, str] | None = None) -> None:
        self.labels = labels or {}
        self.used: set[str] = set()

    def __call__(self, name: str) -> str:
        self.used.add(name)
        return self.labels.get(name, name)

    def check(self) -> None:
        """Raise `UsageError` if a label is of a name that never stood there."""
        for name in self.labels:
            if name not in self.used:
                hint = did_you_mean(name, self.used)
                raise UsageError(f"--label {name!r}: nothing here is called so{hint}")
