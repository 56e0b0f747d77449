"""Compare the promises of a framework with a capture, and report those that are not kept."""

from collections.abc import Iterable, Iterator

from fedtrees.audit import Audit
from fedtrees.capture.records import Record, Run
from fedtrees.messages.captured import CollectiveCall, HistogramSegment, RankedSketch, RowGradients
from fedtrees.messages.lightgbm import BinMappers


def promises(
    told: Run, raw: Iterable[Record], kept: list[Record], who: str, models: Audit | None
) -> Iterator[str]:
    """Yield each promise that the capture contradicts, as a sentence.

    Parameters
    ----------
    told : Run
        Information about the run.
    raw : iterable of Record
        The records as they were captured.
    kept : list of Record
        The decoded messages that the observer saw.
    who : str
        The observer.
    models : Audit or None
        Audit of all trees that were shared with the observer.

    Yields
    ------
    sentence : str
    """
    if not told.wire:
        yield "nothing is known of promises: messages were handed over by the framework itself"
        return
    if told.wire in ("rabit", "xgboost", "lightgbm"):
        yield "encryption on the way: everything here was read as it crossed, in plain text"
    if told.wire == "xgboost":
        yield (
            "only parties take part: without certificates, whoever reaches the server is the rank "
            "that it names"
        )
    if told.told.get("secure"):
        calls = [r.message.sealed for r in raw if isinstance(r.message, CollectiveCall)]
        if calls and sum(calls) < len(calls):
            yield (
                f"secure training encrypts: {sum(calls):,} of {len(calls):,} messages are encrypted"
            )
    if models is not None and models.restored:
        yield (
            "sums of hessians are masked: weights and gains of the same splits give every one of "
            "them back"
        )
    yield from _not_summed(kept, who)


def _not_summed(kept: list[Record], who: str) -> Iterator[str]:
    """Yield the promises about sums and local rows that the messages contradict."""
    received = [r.message for r in kept if r.sender != who]
    single_party = [m for m in received if isinstance(m, HistogramSegment) and "," not in m.parties]
    if single_party:
        numbers = sum(len(m.sums) for m in single_party)
        yield (
            f"only sums over all parties are shared: {numbers:,} numbers of the first tree's "
            "histograms are of one party alone"
        )
    if rows := next((len(m.g) for m in received if isinstance(m, RowGradients)), 0):
        yield f"labels stay with who has them: gradients of all {rows:,} rows cross, one by one"
    mappers = [m for m in received if isinstance(m, BinMappers)]
    if mappers:
        columns = sum(int(m.used.sum()) for m in mappers)
        yield f"rows stay where they are: {columns:,} columns have bins made of one machine's rows"
    sketches = [m for m in received if isinstance(m, RankedSketch)]
    if sketches:
        complete = sum(int(s.whole.sum()) for s in sketches)
        columns = sum(len(s.whole) for s in sketches)
        yield f"rows stay where they are: {complete:,} of {columns:,} columns cross value by value"
