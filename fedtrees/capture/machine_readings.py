"""Facts that follow from the messages of LightGBM's machines."""

from collections.abc import Iterable, Iterator, Sequence

from fedtrees.attacks.evidence.machines import Told, bins_of, extremes, values_of, values_told
from fedtrees.capture.readings import Reading
from fedtrees.capture.records import Record


def machine_readings(seen: Iterable[Record], who: Sequence[str]) -> Iterator[Reading]:
    """Yield the facts that follow from messages about all parties except their readers."""
    evidence = Told.of((r.sender, r.message) for r in seen)
    for name, root in evidence.roots.items():
        if (
            name not in who and name not in evidence.classes
        ):  # not certain, the rows may be a sample
            yield Reading("number of rows", name, ((None, None, root.rows, None),), False)
    for name, c in evidence.classes.items():
        if name not in who:
            rows = c.positives + c.negatives
            yield Reading("number of rows", name, ((None, None, rows, None),), True)
            yield Reading("number of positives", name, ((None, None, None, c.positives),), True)
    for name, mean in evidence.mean_labels.items():
        if name not in who:
            yield Reading("mean label", name, ((None, mean, None, None),), True)
    for name, mappers in evidence.mappers.items():
        ends = tuple((f, value, None, None) for f, value in extremes(mappers))
        if ends and name not in who:
            yield Reading("least and greatest values", name, ends, True)
    for name, column, column_values in values_told(evidence.mappers):
        if name not in who:
            facts = tuple((column, float(v), None, None) for v in column_values.values)
            yield Reading("values off the bins of a column", name, facts, False)
    yield from _with_labels(evidence, who)


def _with_labels(told: Told, who: Sequence[str]) -> Iterator[Reading]:
    """Yield the values of columns together with the labels of their rows."""
    for name, bins in bins_of(told):
        owner, k = told.columns[bins.column]
        if name in who or name != owner:
            continue
        column_values = values_of(told.mappers[owner], k, bins.rows[:, 0])
        if not len(column_values.values):
            continue
        labelled_rows = bins.rows[column_values.bins]
        sure = column_values.certain & bins.sure
        for certain in (True, False):
            facts = tuple(
                (bins.column, float(v), *map(int, rows))
                for v, rows in zip(
                    column_values.values[sure == certain],
                    labelled_rows[sure == certain],
                    strict=True,
                )
            )
            if facts:
                yield Reading("values with the labels of their rows", name, facts, certain)
