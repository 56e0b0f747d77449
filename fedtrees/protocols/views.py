"""What a threat sees of a training: its view, with the endpoint that it may ask."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Change
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.local_data import KnownEntries, LocalData
from fedtrees.core.oracle import ANSWERS, RECORDS, Oracle
from fedtrees.core.reasons import Unfit
from fedtrees.core.schema import Schema
from fedtrees.core.transcript import Transcript
from fedtrees.core.view import View, see
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.fit import Data, fit
from fedtrees.protocols.training import Training


def _oracle(
    training: Training,
    who: Sequence[str],
    local_data: Mapping[str, LocalData],
    budget: int,
    answers: str,
    records: str,
    rows: NDArray[np.float32] | None,
) -> Oracle:
    """Return what answers queries; of a released model it leads to no more than the model."""
    schema = training.schema
    if answers == "label" and not schema.classes:
        raise UsageError(f"the target {schema.target!r} is a number: an endpoint has no labels")
    if records != "chosen" and training.protocol.layout not in ("vertical", "columns"):
        raise UsageError(f"records={records}: nobody else holds columns of the rows that are asked")
    answers, budget = training.defense.endpoint(answers, budget)
    transcript = Transcript()  # of one who asks alone: nobody else's view has it
    model, defense, context = training.model, training.defense, training.context

    def scores(X: NDArray[np.float32]) -> NDArray[np.float64]:
        if training.protocol.released:
            return defense.answer(model.predict(X), context)
        return training.predict(X, transcript)

    def answer(X: NDArray[np.float32], ids: NDArray[np.int64] | None = None) -> NDArray[Any]:
        if ids is not None:
            parts = local_data if records == "held" else _parts(rows, local_data)
            X = _looked_up(X, ids, {n: h for n, h in parts.items() if n not in who})
        if answers == "leaf-ids":
            return training.leaves(X, transcript)
        outputs = scores(X)
        if answers == "score":
            return outputs
        return (outputs > 0.5 if outputs.ndim == 1 else outputs.argmax(axis=1)).astype(np.int32)

    options: dict[str, Any] = {"answers": answers, "records": records}
    return Oracle(answer, budget, width=len(schema.features), **options)


def _parts(
    X: NDArray[np.float32] | None, local_data: Mapping[str, LocalData]
) -> dict[str, LocalData]:
    """Return what each party holds of rows to predict, by place."""
    if X is None:
        raise DataError("records=new: there are no rows to predict")
    X, places = np.asarray(X, dtype=np.float32), np.arange(len(X))
    return {n: LocalData(places, h.columns, X[:, h.columns]) for n, h in local_data.items()}


def _looked_up(
    X: NDArray[np.float32], ids: NDArray[np.int64], others: Mapping[str, LocalData]
) -> NDArray[np.float32]:
    """Return rows with the columns that others hold of the training rows of such ids."""
    X = X.copy()
    for name, part in others.items():
        order = np.argsort(part.ids)
        at = np.minimum(np.searchsorted(part.ids[order], ids), len(order) - 1)
        strange = np.setdiff1d(ids, part.ids)[:5].tolist()
        if strange:
            raise DataError(f"{name!r} holds no rows {strange}; ask by ids of rows that it holds")
        X[:, part.columns] = part.X[order[at]]
    return X


def _asked(who: Sequence[str], parts: Mapping[str, LocalData]) -> LocalData:
    """Return the columns of some parties side by side."""
    adversary_parts = [part for name, part in parts.items() if name in who]
    columns = np.concatenate([np.zeros(0, dtype=np.intp), *(p.columns for p in adversary_parts)])
    places = next(iter(parts.values())).ids
    return LocalData(
        places, columns, np.hstack([np.zeros((len(places), 0)), *(p.X for p in adversary_parts)])
    )


def stated(protocol: Protocol, schema: Schema, parties: int) -> tuple[tuple[str, str, Change], ...]:
    """Return the laws of a protocol's fields as a view contains them.

    Parameters
    ----------
    parties : int
        Number of parties that hold data.
    """
    return tuple(
        (site if isinstance(site, str) else site.__name__, field, change)
        for (site, field), change in protocol.stated_laws(schema, parties).items()
    )


def view_of(
    training: Training,
    principals: Sequence[str],
    local_data: Mapping[str, LocalData],
    queries: int = 0,
    answers: str = ANSWERS[0],
    records: str = RECORDS[0],
    known: LocalData | None = None,
    entries: KnownEntries | None = None,
    rows: NDArray[np.float32] | None = None,
) -> View:
    """Return what the principals know after a run.

    Raises `Unfit` if together they open what a defense seals: the transcript does not have it.

    Parameters
    ----------
    principals : sequence of str
        Names of the colluding parties.
    local_data : mapping of str to LocalData
        What everybody holds; only the principals' own enters the view.
    queries : int
        Rows that an inference endpoint answers them; 0: there is none.
    answers, records : str
        What it answers, and who says what others hold of a row (`Oracle`).
    known : LocalData, optional
        Ids and labels of rows that they know besides.
    entries : KnownEntries, optional
        Single values of others' rows that they know besides.
    rows : float32 array, shape (m, d), optional
        Rows to predict, which ``records=new`` is about.

    Notes
    -----
    Where a defense hides leaf ids, nobody sees the routing of rows to predict: it takes parties
    that route without telling each other the way.
    """
    who = tuple(principals)
    reason = fit(None, training.defense, None, who, Data(roles=training.transcript.roles))
    if not reason.ok:
        raise Unfit(reason)
    hidden = training.defense.endpoint("leaf-ids", 1)[0] != "leaf-ids"
    served = () if training.net is None or hidden else see(training.net.inference, who)
    seen = see(training.transcript, who)
    if training.net is not None:
        seen = (*seen, *training.protocol.opened_together(seen, training.net.sealing_of(who)))
    return View(
        principals=who,
        roles=dict(training.transcript.roles),
        own=tuple(part for name, part in local_data.items() if name in principals),
        schema=deepcopy(training.schema),  # nothing in a view leads back to the dataset
        protocol=training.protocol.name,
        parameters=training.protocol.parameters,
        n_rows=training.n_rows,
        defense=training.defense,
        seen=(*seen, *served),
        oracle=_oracle(training, who, local_data, queries, answers, records, rows)
        if queries
        else None,
        known=known,
        entries=entries,
        stated=stated(training.protocol, training.schema, len(training.columns)),
        weighted=any(part.weight is not None for part in local_data.values()),
        behaviours=tuple(dict.fromkeys(b for n, b in training.behaviours.items() if n in who)),
        asked=_asked(who, _parts(rows, local_data))
        if records == "new" and rows is not None
        else None,
    )
