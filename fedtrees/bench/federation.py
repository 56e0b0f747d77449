"""A federation for one seed: held-out rows, and training rows spread over clients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fedtrees.bench.suite import DataRef
from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema, Table
from fedtrees.core.specs import Spec, parse_list
from fedtrees.core.streams import Streams
from fedtrees.data import catalogue
from fedtrees.data.csv_table import load_csv
from fedtrees.data.dataset import Dataset
from fedtrees.data.holdout import holdout
from fedtrees.data.partition import Partition, split
from fedtrees.data.sample import sample
from fedtrees.protocols.base import client_names


@dataclass(frozen=True, eq=False)
class Federation:
    """All the rows of one run; the truth stays here.

    Attributes
    ----------
    dataset : Dataset
    clients : tuple of Table
        Training rows of each client.
    test : Table
    reserve : Table or None
        Rows nobody in the federation holds.
    """

    dataset: Dataset
    clients: tuple[Table, ...]
    test: Table
    reserve: Table | None

    @property
    def schema(self) -> Schema:
        """Columns and classes."""
        return self.dataset.schema

    def own(self, principals: tuple[str, ...]) -> Table | None:
        """Return the rows the principals hold together, None if they hold none."""
        return self._rows(principals, True)

    def victims(self, principals: tuple[str, ...]) -> Table:
        """Return the rows of everybody else."""
        rows = self._rows(principals, False)
        assert rows is not None
        return rows

    def _rows(self, principals: tuple[str, ...], own: bool) -> Table | None:
        names = client_names(len(self.clients))
        mine = [t for n, t in zip(names, self.clients, strict=True) if (n in principals) == own]
        return Table.concat(mine) if mine else None

    @property
    def roles(self) -> dict[str, str]:
        """Role of every party of a horizontal federation."""
        return {"server": "server", **dict.fromkeys(client_names(len(self.clients)), "client")}


@lru_cache(maxsize=8)
def load_dataset(ref: DataRef, data_dir: str | None) -> Dataset:
    """Load a dataset from the catalogue, a plugin, or a CSV file; ``name[rows=n]`` samples it.

    Raises
    ------
    UsageError
        If the name is unknown.
    DataError
        If the table cannot be read or used.
    """
    if ref.csv:
        positive = ref.positive or None
        return load_csv(
            Path(ref.csv), ref.target, categorical=ref.categorical, positive=positive, name=ref.name
        )
    spec = parse_list([ref.name])[0] if "[" in ref.name else Spec(ref.name)
    if set(spec.params) - {"rows"}:
        raise UsageError(f"dataset {ref.name!r}: write stroke[rows=1000]; rows is all it takes")
    dataset = _by_name(spec.name, data_dir)
    return sample(dataset, spec.params["rows"]) if spec.params else dataset


def _by_name(name: str, data_dir: str | None) -> Dataset:
    if name in catalogue.names():
        return catalogue.load(name, data_dir)
    plugins = register.names("dataset")
    if name not in plugins:
        known = [*catalogue.names(), *plugins]
        raise UsageError(f"unknown dataset {name!r}{did_you_mean(name, known)}")
    return register.get("dataset", name)()


@lru_cache(maxsize=4)
def federate(
    ref: DataRef,
    partition: str,
    params: tuple[tuple[str, object], ...],
    clients: int,
    seed: int,
    data_dir: str | None,
) -> Federation:
    """Load, hold out and spread a dataset; everything random derives from the seed."""
    return spread(load_dataset(ref, data_dir), Partition(partition, dict(params)), clients, seed)


def spread(dataset: Dataset, how: Partition, clients: int, seed: int) -> Federation:
    """Hold out and spread a dataset; everything random derives from the seed.

    Raises
    ------
    DataError, UsageError
        As `holdout` and `split`.
    """
    streams = Streams(seed).child("federation")
    train, test, reserve = holdout(dataset, streams).tables(dataset.table)
    rows = split(how, train, dataset.schema, clients, streams.rng("partition"))
    return Federation(dataset, tuple(train.take(r) for r in rows), test, reserve)


def federation_of(
    ref: DataRef, partition: Spec, clients: int, seed: int, data_dir: str | None
) -> Federation:
    """Return the federation of one setting; the last few are kept in memory."""
    return federate(ref, partition.name, tuple(partition.params.items()), clients, seed, data_dir)
