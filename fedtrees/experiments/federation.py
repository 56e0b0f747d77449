"""Build the federation of one seed: test rows, and training rows that parties have."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import UsageError, did_you_mean, many
from fedtrees.core.local_data import LocalData
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema, Table
from fedtrees.core.specs import Spec, parse_list
from fedtrees.core.streams import Streams
from fedtrees.core.threat import Threat
from fedtrees.data import catalogue
from fedtrees.data.client_tables import load_clients, load_joined
from fedtrees.data.dataset import Dataset, holdout, repeated, sample, thinned
from fedtrees.data.partition import Partition, lay_out
from fedtrees.data.user_tables import load_csv
from fedtrees.experiments.plan import FederationConfig
from fedtrees.experiments.suite import DataRef
from fedtrees.metrics.metric import Case
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.training import Training


@dataclass(frozen=True, eq=False)
class Federation:
    """All rows of one run. They are the ground truth, and attacks never receive this object.

    Attributes
    ----------
    dataset : Dataset
        The table.
    local_data : mapping of str to LocalData
        The training rows or columns of each party, by name.
    test : Table
        Test rows, which no party trains on.
    reserve : Table or None
        Further rows that no party has.
    """

    dataset: Dataset
    local_data: Mapping[str, LocalData]
    test: Table
    reserve: Table | None

    @property
    def schema(self) -> Schema:
        """Columns and classes."""
        return self.dataset.schema

    @cached_property
    def pair_id(self) -> str:
        """Digest of the test rows. Runs with equal digests are compared in pairs."""
        rows = self.test.X.tobytes() + self.test.y.tobytes()
        return hashlib.sha256(rows).hexdigest()[:12]

    @property
    def remaining_rows(self) -> Table:
        """All rows that no party of the federation has."""
        return self.test if self.reserve is None else Table.concat([self.test, self.reserve])

    def case(
        self,
        roles: Mapping[str, str],
        principals: tuple[str, ...],
        seed: int,
        threat: str = "",
        training: Training | None = None,
    ) -> Case:
        """Return the facts that the scoring of a threat needs.

        Parameters
        ----------
        roles : mapping of str to str
            Role of each party, by name.
        principals : tuple of str
            Names of the colluding parties.
        seed : int
            Seed of the training.
        threat : str
            The threat. Its background knowledge is limited to a part of the victims' data.
        training : Training or None
            The training, None for a blind guess.

        Returns
        -------
        Case
            Local data, model and transcript, as metrics receive them.

        Raises
        ------
        UsageError
            If all parties with data collude, or if the background knowledge of the threat includes
            all labels or all values.
        """
        # Without a victim there is nothing to score.
        if set(self.local_data) <= set(principals):
            raise UsageError(
                f"threat {threat}: every party with data colludes "
                f"({many(len(self.local_data), 'party', 'parties')}), so that no victim remains; "
                "give more --clients, or name fewer parties"
            )
        labelled = [
            len(h) for n, h in self.local_data.items() if n not in principals and h.y is not None
        ]
        count = Threat.parse(threat).labels if threat else 0
        if labelled and 0 < labelled[0] <= count:
            raise UsageError(
                f"threat {threat}: labels={count}, and there are {labelled[0]} training rows; give "
                "fewer, so that unknown labels remain"
            )
        # The same check for single values of the victims.
        cells = sum(h.X.size for n, h in self.local_data.items() if n not in principals)
        entries = Threat.parse(threat).entries if threat else 0
        if 0 < cells <= entries:
            raise UsageError(
                f"threat {threat}: entries={entries}, and other parties have {cells} values; give "
                "fewer, so that unknown values remain"
            )
        return Case(
            local_data=self.local_data,
            roles=roles,
            principals=principals,
            schema=self.schema,
            streams=Streams(seed),
            threat=threat,
            top=tuple(self.dataset.top),
            reserve=self.reserve,
            remaining_rows=self.remaining_rows,
            population=self.test,
            model=None if training is None else training.model,
            transcript=None if training is None else training.transcript,
            grown_on=None if training is None else partial(_grown_on, self, training, seed),
            splits={} if training is None else training.splits,
            queried_rows=None if training is None else self.test,
            bins_of_rows={} if training is None else training.bins_of_rows,
        )


def _grown_on(
    federation: Federation, training: Training, seed: int, name: str, round: int
) -> NDArray[np.bool_] | None:
    """Return the mask of the rows of a party that a round used.

    Row sampling draws from the seed of the training, so that the same rows are drawn here again.
    """
    n = len(federation.local_data[name])
    streams = Streams(seed, training.noise_from).child(name)
    return training.protocol.training_rows(n, streams, round, training.defense)


def load_dataset(ref: DataRef, data_dir: str | None) -> Dataset:
    """Load a dataset from the catalogue, a plug-in, or a CSV file.

    A name can have parameters: ``name[rows=n]`` samples rows, ``name[copies=n]`` repeats the rows,
    and ``name[missing=share]`` removes a share of the values.

    Parameters
    ----------
    ref : DataRef
        Name, or file with its options.
    data_dir : str or None
        Folder with downloaded tables. None for the default folder.

    Returns
    -------
    Dataset
        The checked table.

    Raises
    ------
    UsageError
        If the name is unknown.
    DataError
        If the table cannot be read or used.
    """
    return _load(ref, data_dir, _written(ref))


def _written(ref: DataRef) -> tuple[tuple[int, int], ...]:
    """Return the modification times and sizes of files.

    Cached tables with other values are stale.
    """
    files = filter(os.path.isfile, ref.files)
    return tuple((s.st_mtime_ns, s.st_size) for s in map(os.stat, files))


@lru_cache(maxsize=8)
def _load(ref: DataRef, data_dir: str | None, written: tuple[tuple[int, int], ...]) -> Dataset:
    """Load a dataset.

    The argument `written` only distinguishes versions of the files in the cache.
    """
    if ref.csv:
        reading = {**ref.loader_options(), "name": ref.name}
        if ref.states_clients:
            return load_clients(ref.files, ref.target, column=ref.client_column, **reading)
        if ref.id:
            return load_joined(ref.files, ref.target, id=ref.id, **reading)
        return load_csv(ref.csv, ref.target, **reading)
    spec = parse_list([ref.name])[0] if "[" in ref.name else Spec(ref.name)
    sizes: dict[str, Any] = dict(spec.params)
    if set(sizes) - {"rows", "copies", "missing"}:
        raise UsageError(
            f"dataset {ref.name!r}: the only parameters are rows, copies and missing; write "
            "stroke[rows=1000] or pima[missing=0.5]"
        )
    dataset = _by_name(spec.name, data_dir)
    if "rows" in sizes:
        dataset = sample(dataset, sizes["rows"])
    if "copies" in sizes:
        dataset = repeated(dataset, sizes["copies"])
    return thinned(dataset, sizes["missing"]) if "missing" in sizes else dataset


def _by_name(name: str, data_dir: str | None) -> Dataset:
    """Load a dataset of the catalogue or of a plug-in."""
    plugins = register.names("dataset")
    if name in catalogue.names():
        if name in plugins:
            raise UsageError(f"dataset {name!r} is already part of fedtrees; rename the plug-in's")
        return catalogue.load(name, data_dir)
    if name not in plugins:
        names = [*catalogue.names(), *plugins]
        raise UsageError(f"unknown dataset {name!r}{did_you_mean(name, names)}")
    dataset: Dataset = register.get("dataset", name)()
    return dataset


def spread(
    dataset: Dataset, how: Partition, names: Sequence[str], seed: int, layout: str = Protocol.layout
) -> Federation:
    """Hold out rows of a dataset and distribute the remaining ones over parties.

    Parameters
    ----------
    dataset : Dataset
        The table.
    how : Partition
        How rows or columns are distributed.
    names : sequence of str
        Names of the parties that have data.
    seed : int
        Seed of all random choices.
    layout : str
        Whether parties have rows or columns (`fedtrees.data.partition.LAYOUTS`).

    Returns
    -------
    Federation
        Local data of all parties, test rows and reserve.

    Raises
    ------
    DataError or UsageError
        As `holdout` and `lay_out`.
    """
    streams = Streams(seed).child("federation")
    rows = holdout(dataset, streams)
    train, test, reserve = rows.tables(dataset.table)
    rng = streams.rng("partition")
    # The owners of test rows are not needed.
    owners = None if dataset.owners is None else dataset.owners[rows.train]
    local_data = lay_out(layout, train, dataset.schema, names, how, rng, dataset.files, owners)
    return Federation(dataset, local_data, test, reserve)


def federation_of(setting: FederationConfig, data_dir: str | None) -> Federation:
    """Return the federation of one setting. The last four are cached in memory.

    Parameters
    ----------
    setting : FederationConfig
        Table, partition, parties and seed.
    data_dir : str or None
        Folder with downloaded tables. None for the default folder.

    Returns
    -------
    Federation
        Local data of all parties, test rows and reserve.
    """
    return _spread(setting, data_dir, _written(setting.data))


@lru_cache(maxsize=4)
def _spread(
    setting: FederationConfig, data_dir: str | None, written: tuple[tuple[int, int], ...]
) -> Federation:
    """Build a federation.

    The argument `written` only distinguishes versions of the files in the cache.
    """
    dataset = load_dataset(setting.data, data_dir)
    how = Partition(setting.partition.name, dict(setting.partition.params))
    return spread(dataset, how, setting.holders, setting.seed, setting.layout)
