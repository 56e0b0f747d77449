"""Views of a finished training: the knowledge of the colluding parties of a threat.

A view contains their local data, the messages that they received and sent, and an oracle if the
threat has query access.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Change, SumOfShares
from fedtrees.core.defense import Place
from fedtrees.core.endpoint import ANSWERS, RECORDS, Oracle
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.local_data import KnownEntries, LocalData
from fedtrees.core.reasons import Unfit
from fedtrees.core.schema import Schema
from fedtrees.core.transcript import Transcript
from fedtrees.core.view import View, see
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.compatibility import KnownFacts, check_fit
from fedtrees.protocols.training import Training


def _make_endpoint(
    training: Training,
    principals: Sequence[str],
    local_data: Mapping[str, LocalData],
    budget: int,
    answers: str,
    records: str,
    rows: NDArray[np.float32] | None,
) -> Oracle:
    """Return the inference endpoint that answers the queries of the principals."""
    schema = training.schema
    if answers == "label" and not schema.classes:
        raise UsageError(f"the target {schema.target!r} is a number: an endpoint has no labels")
    if records != "chosen" and training.protocol.layout not in ("vertical", "columns"):
        raise UsageError(f"records={records}: no other party has columns of the requested rows")
    answers, budget = training.defense.limit_endpoint(answers, budget)
    # Queries have a separate transcript, so that they are in no other party's view.
    transcript = Transcript()
    model, defense, context = training.model, training.defense, training.context

    def scores(X: NDArray[np.float32]) -> NDArray[np.float64]:
        if training.protocol.released:
            return defense.transform_answer(model.predict(X), context)
        return training.predict(X, transcript)

    def answer(X: NDArray[np.float32], ids: NDArray[np.int64] | None = None) -> NDArray[Any]:
        if ids is not None:
            # The other parties contribute their columns of training rows (held) or of test rows
            # (new).
            row_parts = local_data if records == "held" else _split_columns(rows, local_data)
            X = _join_columns(X, ids, {n: h for n, h in row_parts.items() if n not in principals})
        if answers == "leaf-ids":
            return training.leaves(X, transcript)
        outputs = scores(X)
        if answers == "score":
            return outputs
        return (outputs > 0.5 if outputs.ndim == 1 else outputs.argmax(axis=1)).astype(np.int32)

    options: dict[str, Any] = {"answers": answers, "records": records}
    return Oracle(answer, budget, width=len(schema.features), **options)


def _split_columns(
    X: NDArray[np.float32] | None, local_data: Mapping[str, LocalData]
) -> dict[str, LocalData]:
    """Return the columns of each party for the test rows, by position."""
    if X is None:
        raise DataError("records=new: there are no rows to predict")
    X, positions = np.asarray(X, dtype=np.float32), np.arange(len(X))
    return {n: LocalData(positions, h.columns, X[:, h.columns]) for n, h in local_data.items()}


def _join_columns(
    X: NDArray[np.float32], ids: NDArray[np.int64], other_parties: Mapping[str, LocalData]
) -> NDArray[np.float32]:
    """Fill the columns of other parties in queried rows.

    Parameters
    ----------
    X : float32 array, shape (m, d)
        Queried rows. The values in columns of other parties are replaced.
    ids : int64 array, shape (m,)
        Id of each row, by which other parties find it.
    other_parties : mapping of str to LocalData
        Rows of these parties.
    """
    X = X.copy()
    for name, part in other_parties.items():
        order = np.argsort(part.ids)
        position = np.minimum(np.searchsorted(part.ids[order], ids), len(order) - 1)
        unknown_ids = np.setdiff1d(ids, part.ids)[:5].tolist()
        if unknown_ids:
            raise DataError(f"{name!r} has no rows {unknown_ids}; use ids of rows that it has")
        X[:, part.columns] = part.X[order[position]]
    return X


def _adversary_columns(principals: Sequence[str], parts: Mapping[str, LocalData]) -> LocalData:
    """Return the columns of the colluding parties for the test rows, side by side."""
    adversary_parts = [part for name, part in parts.items() if name in principals]
    columns = np.concatenate([np.zeros(0, dtype=np.intp), *(p.columns for p in adversary_parts)])
    positions = next(iter(parts.values())).ids
    return LocalData(
        positions,
        columns,
        np.hstack([np.zeros((len(positions), 0)), *(p.X for p in adversary_parts)]),
    )


def protocol_channels(protocol: Protocol, schema: Schema, parties: int) -> dict[Place, Change]:
    """Return `Protocol.noise_channels` for a number of parties with data, by site and field.

    The distribution of a released sum depends on the number of noise shares that it contains.
    """
    channels = dict(protocol.noise_channels(schema))
    for place, change in channels.items():
        if isinstance(change, SumOfShares):
            total = change.share.law(parties)
            assert total is not None
            channels[place] = total
    return channels


def protocol_changes_of_view(
    protocol: Protocol, schema: Schema, parties: int
) -> tuple[tuple[str, str, Change], ...]:
    """Return `protocol_channels` in the form that a view contains.

    A view is sent to the process of attacks, so that message types are replaced by their names.

    Parameters
    ----------
    protocol : Protocol
        Protocol with its public parameters.
    schema : Schema
        Columns and target.
    parties : int
        Number of parties with data.

    Returns
    -------
    changes : tuple of (str, str, Change)
        Message type, field, and how the protocol changes the field.
    """
    return tuple(
        (site if isinstance(site, str) else site.__name__, field, change)
        for (site, field), change in protocol_channels(protocol, schema, parties).items()
    )


def view_of(
    training: Training,
    principals: Sequence[str],
    local_data: Mapping[str, LocalData],
    queries: int = 0,
    answers: str = ANSWERS[0],
    records: str = RECORDS[0],
    known_rows: LocalData | None = None,
    entries: KnownEntries | None = None,
    rows: NDArray[np.float32] | None = None,
) -> View:
    """Return the view of colluding parties after a training.

    Parameters
    ----------
    training : Training
        The finished training.
    principals : sequence of str
        Names of the colluding parties.
    local_data : mapping of str to LocalData
        Local data of all parties. The view contains only that of the principals.
    queries : int
        Number of rows that the inference endpoint answers. 0 for no endpoint.
    answers, records : str
        Kind of answers, and source of the columns of other parties (`Oracle`).
    known_rows : LocalData, optional
        Ids and labels of additional rows that the principals know.
    entries : KnownEntries, optional
        Single values of other parties' rows that the principals know.
    rows : float32 array, shape (m, d), optional
        Test rows for ``records=new``.

    Returns
    -------
    view : View
        Everything that the principals have and receive: the input of an attack.

    Raises
    ------
    Unfit
        If the principals together can decrypt a protected value. The transcript contains only its
        protected form, so that the view would be incomplete.

    Notes
    -----
    If a defense hides leaf ids, the view does not contain how test rows are routed. This assumes
    that the parties route rows without showing each other the path.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from fedtrees import FederatedGBDTClassifier, view_of
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = FederatedGBDTClassifier(n_estimators=1, max_depth=2, random_state=0).fit(X, y)
    >>> view_of(model.training_, ["client-0", "client-1"], model.local_data_).principals
    ('client-0', 'client-1')
    """
    members = tuple(principals)
    reason = check_fit(
        None, training.defense, None, members, KnownFacts(roles=training.transcript.roles)
    )
    if not reason.ok:
        raise Unfit(reason)
    # An endpoint that replaces leaf ids hides the routes of test rows from the parties, too.
    hidden = training.defense.limit_endpoint("leaf-ids", 1)[0] != "leaf-ids"
    served = () if training.net is None or hidden else see(training.net.inference, members)
    seen = see(training.transcript, members)
    if training.net is not None:
        # The transcript contains ciphertexts. A coalition with the key holder can decrypt them.
        hosts = training.net.hosts
        # The role public has no host.
        states = {name: hosts[name].encryption for name in members if name in hosts}
        seen = (
            *seen,
            *training.protocol.jointly_opened(seen, states),
        )
    return View(
        principals=members,
        roles=dict(training.transcript.roles),
        local_data=tuple(part for name, part in local_data.items() if name in principals),
        schema=deepcopy(training.schema),  # no reference from a view to the data set
        protocol=training.protocol.name,
        parameters=training.protocol.parameters,
        n_rows=training.n_rows,
        defense=training.defense,
        seen=(*seen, *served),
        oracle=_make_endpoint(training, members, local_data, queries, answers, records, rows)
        if queries
        else None,
        known_labels=known_rows,
        known_entries=entries,
        protocol_changes=protocol_changes_of_view(
            training.protocol, training.schema, len(training.columns)
        ),
        weighted=any(part.weight is not None for part in local_data.values()),
        behaviours=tuple(dict.fromkeys(b for n, b in training.behaviours.items() if n in members)),
        queried_rows=_adversary_columns(members, _split_columns(rows, local_data))
        if records == "new" and rows is not None
        else None,
    )
