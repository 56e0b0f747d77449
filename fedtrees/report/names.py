"""Replace the names of datasets, protocols and defenses by the labels that a paper uses."""

from collections.abc import Iterable, Mapping

from fedtrees.core.errors import UsageError, did_you_mean


class Names:
    """Map names in a figure or a table to labels. A name without a label is returned unchanged.

    Attributes
    ----------
    labels : mapping of str to str
        Label by name, from the option ``--label NAME=LABEL``.
    used : set of str
        Names that were looked up so far. `check` compares the labels with them.
    """

    def __init__(self, labels: Mapping[str, str] | None = None) -> None:
        self.labels = labels or {}
        self.used: set[str] = set()

    def __call__(self, name: str) -> str:
        """Return the label of a name, and record that the name occurs."""
        self.used.add(name)
        return self.labels.get(name, name)

    def check(self, known: Iterable[str] = ()) -> None:
        """Raise `UsageError` if a label belongs to a name that does not occur.

        Parameters
        ----------
        known : iterable of str
            Names that are valid although no figure displays them. For example, a name that all rows
            of a table share is not written in the table.
        """
        names = self.used | {*known}
        for name in self.labels:
            if name not in names:
                hint = did_you_mean(name, names)
                raise UsageError(f"--label {name!r}: nothing here is called so{hint}")
