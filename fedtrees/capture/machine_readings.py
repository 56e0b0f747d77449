"""What somebody reads from what LightGBM's machines told one another."""

from collections.abc import Iterable, Iterator, Sequence

from fedtrees.attacks.evidence.machines import Told, bins_of, extremes, values_of, values_told
from fedtrees.capture.readings import Reading
from fedtrees.capture.records import Record


def machine_readings(seen: Iterable[Record], who: Sequence[str]) -> Iterator[Reading]:
    """Yield what follows from messages about everybody but those who read them."""
    told = Told.of((r.sender, r.message) for r in seen)
    for name, root in told.roots.items():
        if name not in who and name not in told.classes:  # a sample of the rows, perhaps
            yield Reading("number of rows", name, ((None, None, root.rows, None),), False)
    for name, c in told.classes.items():
        if name not in who:
            rows = c.positives + c.negatives
            yield Reading("number of rows", name, ((None, None, rows, None),), True)
            yield Reading("number of positives", name, ((None, None, None, c.positives),), True)
    for name, mean in told.mean_labels.items():
        if name not in who:
            yield Reading("mean label", name, ((None, mean, None, None),), True)
    for name, mappers in told.mappers.items():
        ends = tuple((f, value, None, None) for f, value in extremes(mappers))
        if ends and name not in who:
            yield Reading("least and greatest values", name, ends, True)
    for name, column, found in values_told(told.mappers):
        if name not in who:
            facts = tuple((column, float(v), None, None) for v in found.values)
            yield Reading("values off the bins of a column", name, facts, False)
    yield from _with_labels(told, who)


def _with_labels(told: Told, who: Sequence[str]) -> Iterator[Reading]:
    for name, bins in bins_of(told):
        owner, k = told.columns[bins.column]
        if name in who or name != owner:
            continue
        found = values_of(told.mappers[owner], k, bins.rows[:, 0])
        if not len(found.values):
            continue
        held = bins.rows[found.bins]
        sure = found.certain & bins.sure
        for certain in (True, False):
            facts = tuple(
                (bins.column, float(v), *map(int, rows))
                for v, rows in zip(
                    found.values[sure == certain], held[sure == certain], strict=True
                )
            )
            if facts:
                yield Reading("values with the labels of their rows", name, facts, certain)
