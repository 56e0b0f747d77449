"""What the names of a run are called in a paper."""

from collections.abc import Iterable, Mapping

from fedtrees.core.errors import UsageError, did_you_mean


class Names:
    """What names are called in a figure or a table: what nobody renamed, as it is."""

    def __init__(self, labels: Mapping[str, str] | None = None) -> None:
        self.labels = labels or {}
        self.used: set[str] = set()

    def __call__(self, name: str) -> str:
        self.used.add(name)
        return self.labels.get(name, name)

    def check(self, known: Iterable[str] = ()) -> None:
        """Raise `UsageError` if a label is of a name that never stood there and is not `known`.

        What all that is shown has in common has a name and is not written.
        """
        names = self.used | {*known}
        for name in self.labels:
            if name not in names:
                hint = did_you_mean(name, names)
                raise UsageError(f"--label {name!r}: nothing here is called so{hint}")
