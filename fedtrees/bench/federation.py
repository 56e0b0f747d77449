"""A federation for one seed: held-out rows, and training rows spread over clients."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from fedtrees.bench.cells import Setting
from fedtrees.bench.suite import DataRef
from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.core.local_data import LocalData
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema, Table
from fedtrees.core.specs import Spec, parse_list
from fedtrees.core.streams import Streams
from fedtrees.core.threat import Threat
from fedtrees.data import catalogue
from fedtrees.data.clients import load_clients
from fedtrees.data.dataset import Dataset
from fedtrees.data.holdout import holdout
from fedtrees.data.joined import load_joined
from fedtrees.data.layout import lay_out
from fedtrees.data.own_table import load_csv
from fedtrees.data.partition import Partition
from fedtrees.data.sample import repeated, sample, thinned
from fedtrees.metrics.metric import Case
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.training import Training


@dataclass(frozen=True, eq=False)
class Federation:
    """All the rows of one run; the truth stays here."""

    dataset: Dataset
    local_data: Mapping[str, LocalData]  # what each party holds of the training rows, by name
    test: Table
    reserve: Table | None  # rows nobody in the federation holds

    @property
    def schema(self) -> Schema:
        """Columns and classes."""
        return self.dataset.schema

    @cached_property
    def pair_id(self) -> str:
        """Digest of the held-out rows: runs that score the same rows are compared in pairs."""
        rows = self.test.X.tobytes() + self.test.y.tobytes()
        return hashlib.sha256(rows).hexdigest()[:12]

    @property
    def others(self) -> Table:
        """All rows that nobody in the federation holds."""
        return self.test if self.reserve is None else Table.concat([self.test, self.reserve])

    def case(
        self,
        roles: Mapping[str, str],
        principals: tuple[str, ...],
        seed: int,
        threat: str = "",
        training: Training | None = None,
    ) -> Case:
        """Return what scoring under a threat needs to know; ``seed`` is that of the training.

        Raises `UsageError` if the principals hold everything, or know all labels.
        """
        if set(self.local_data) <= set(principals):
            raise UsageError(
                f"threat {threat}: all {len(self.local_data)} parties that hold data collude; no "
                "victim is left"
            )
        labelled = [
            len(h) for n, h in self.local_data.items() if n not in principals and h.y is not None
        ]
        told = Threat.parse(threat).labels if threat else 0
        if labelled and 0 < labelled[0] <= told:
            raise UsageError(
                f"threat {threat}: labels={told}, and there are {labelled[0]} training rows; give "
                "fewer, so that some are left to guess"
            )
        cells = sum(h.X.size for n, h in self.local_data.items() if n not in principals)
        entries = Threat.parse(threat).entries if threat else 0
        if 0 < cells <= entries:
            raise UsageError(
                f"threat {threat}: entries={entries}, and others hold {cells} values; give fewer, "
                "so that some are left to guess"
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
            others=self.others,
            population=self.test,
            model=None if training is None else training.model,
            transcript=None if training is None else training.transcript,
            grown_on=None if training is None else partial(_grown_on, self, training, seed),
            splits={} if training is None else training.splits,
            asked=None if training is None else self.test,
            bins_of_rows={} if training is None else training.bins_of_rows,
        )


def _grown_on(
    federation: Federation, training: Training, seed: int, name: str, round: int
) -> NDArray[np.bool_] | None:
    """Return which rows of local data a round used, by the coins of the training."""
    n = len(federation.local_data[name])
    streams = Streams(seed, training.noise_from).child(name)
    return training.protocol.grown_on(n, streams, round, training.defense)


def load_dataset(ref: DataRef, data_dir: str | None) -> Dataset:
    """Load a dataset from the catalogue, a plugin, or a CSV file; ``name[rows=n]`` samples it,
    ``name[copies=n]`` repeats its rows and ``name[missing=share]`` takes cells out.

    Raises `UsageError` if the name is unknown. Raises `DataError` if the table cannot be read or
    used.
    """
    return _loaded(ref, data_dir, _written(ref))


def _written(ref: DataRef) -> tuple[tuple[int, int], ...]:
    """Return when CSV files were last written, and their sizes: older ones are stale."""
    files = filter(os.path.isfile, ref.files)
    return tuple((s.st_mtime_ns, s.st_size) for s in map(os.stat, files))


@lru_cache(maxsize=8)
def _loaded(ref: DataRef, data_dir: str | None, written: tuple[tuple[int, int], ...]) -> Dataset:
    if ref.csv:
        said = {
            "task": ref.task,
            "positive": ref.positive or None,
            "separator": ref.sep,
            "decimal": ref.decimal,
            "missing": ref.missing or None,
            "sheet": ref.sheet,
            "categorical": ref.categorical,
            "keep": ref.keep,
            "drop": ref.drop,
            "name": ref.name,
        }
        if ref.clients_are_told:
            paths = ref.csv.split(",") if not ref.client_column else [ref.csv]
            return load_clients(paths, ref.target, column=ref.client_column, **said)
        if ref.id:
            return load_joined(ref.csv.split(","), ref.target, id=ref.id, **said)
        return load_csv(ref.csv, ref.target, **said)
    spec = parse_list([ref.name])[0] if "[" in ref.name else Spec(ref.name)
    if set(spec.params) - {"rows", "copies", "missing"}:
        raise UsageError(
            f"dataset {ref.name!r}: write stroke[rows=1000] or pima[missing=0.5]; rows, copies and "
            "missing are all it takes"
        )
    dataset = _by_name(spec.name, data_dir)
    if "rows" in spec.params:
        dataset = sample(dataset, spec.params["rows"])
    if "copies" in spec.params:
        dataset = repeated(dataset, spec.params["copies"])
    return thinned(dataset, spec.params["missing"]) if "missing" in spec.params else dataset


def _by_name(name: str, data_dir: str | None) -> Dataset:
    plugins = register.names("dataset")
    if name in catalogue.names():
        if name in plugins:
            raise UsageError(f"dataset {name!r} is already part of fedtrees; rename the plug-in's")
        return catalogue.load(name, data_dir)
    if name not in plugins:
        known = [*catalogue.names(), *plugins]
        raise UsageError(f"unknown dataset {name!r}{did_you_mean(name, known)}")
    return register.get("dataset", name)()


def spread(
    dataset: Dataset, how: Partition, names: Sequence[str], seed: int, layout: str = Protocol.layout
) -> Federation:
    """Hold out and spread a dataset; everything random derives from the seed.

    Raises `DataError` or `UsageError` as `holdout` and `lay_out`.
    """
    streams = Streams(seed).child("federation")
    rows = holdout(dataset, streams)
    train, test, reserve = rows.tables(dataset.table)
    rng = streams.rng("partition")
    owners = None if dataset.owners is None else dataset.owners[rows.train]
    held = lay_out(layout, train, dataset.schema, names, how, rng, dataset.files, owners)
    return Federation(dataset, held, test, reserve)


def federation_of(setting: Setting, data_dir: str | None) -> Federation:
    """Return the federation of one setting; the last few are kept in memory."""
    return _spread(setting, data_dir, _written(setting.data))


@lru_cache(maxsize=4)
def _spread(
    setting: Setting, data_dir: str | None, written: tuple[tuple[int, int], ...]
) -> Federation:
    dataset = load_dataset(setting.data, data_dir)
    how = Partition(setting.partition.name, dict(setting.partition.params))
    return spread(dataset, how, setting.holders, setting.seed, setting.layout)
