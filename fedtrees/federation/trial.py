"""Create a trial federation: a data set that is distributed over sites, with their files."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from fedtrees.core.files import write_private
from fedtrees.core.local_data import LocalData
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.core.source import code_digest
from fedtrees.core.specs import parse_grid
from fedtrees.data.partition import Partition
from fedtrees.experiments.federation import load_dataset, spread
from fedtrees.experiments.suite import DataRef
from fedtrees.federation.agreement import FederationAgreement, written
from fedtrees.federation.site import Settings

#: Column of a trial's tables that names rows.
ID = "row"
_RUNS = 10  # allowed runs of a trial, whose rows are public


def make_trial(
    folder: Path,
    protocol: str = "fedtree-hist[trees=3]",
    defense: str = "masking",
    data: str = "breast-cancer",
    parties: int = 3,
    seed: int = 0,
    **more: object,
) -> FederationAgreement:
    """Write the files of a trial: the agreement, the tables, and the settings of each site.

    Training rows are those of `fedtrees model train` for the same seed. Declared ranges are rounded
    outward, so that every site's values are within them.

    Parameters
    ----------
    folder : Path
        Folder for the files.
    protocol, defense, data : str
        As on the command line.
    parties : int
        Number of parties.
    seed : int
        Seed of the distribution of rows.
    **more : object
        Further fields of `FederationAgreement`.

    Returns
    -------
    federation : FederationAgreement
    """
    protocol_object = register.make("protocol", parse_grid(protocol)[0])
    names = protocol_object.holder_names(parties)
    dataset = load_dataset(DataRef(data), None)
    federation = spread(dataset, Partition("iid"), names, seed, protocol_object.layout)
    schema = _with_ranges(federation.schema, list(federation.local_data.values()))
    agreed = FederationAgreement(
        name=folder.name, protocol=protocol, defense=defense, schema=schema, seed=seed,
        parties={name: f"site-{i + 1}" for i, name in enumerate(names)},
        installation=code_digest(), **more,  # type: ignore[arg-type]
    )  # fmt: skip
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / "sites").mkdir(mode=0o700)
    (folder / "tables").mkdir(mode=0o700)
    for name, local_data in federation.local_data.items():
        site = agreed.site(name)
        table, out = folder / "tables" / f"{name}.csv", folder / "logs" / site
        write_table(local_data, schema, table)
        of_site = str(table.resolve()), str(out.resolve()), (agreed.hash,), ID
        settings = Settings(*of_site, runs=_RUNS)
        settings.save(folder / "sites" / f"{site}.toml")
    write_private(folder / "federation.toml", written(agreed))
    return agreed


def _with_ranges(schema: Schema, party_data: list[LocalData]) -> Schema:
    """Declare a range, a power of ten, for every numeric column without one."""
    features = list(schema.features)
    for c, feature in enumerate(features):
        if feature.declared_range is not None or feature.kind == "categorical":
            continue
        values = [
            float(np.nanmax(np.abs(h.X[:, h.columns == c]))) for h in party_data if c in h.columns
        ]
        far = float(10.0 ** np.ceil(np.log10(max(1e-6, *values))))
        features[c] = replace(feature, low=-far, high=far)
    return replace(schema, features=tuple(features), groups=())


def write_table(local_data: LocalData, schema: Schema, path: Path) -> None:
    """Write the table of a party, given its local data.

    Parameters
    ----------
    local_data : LocalData
        Rows of the party.
    schema : Schema
        Columns of the complete table.
    path : Path
        The file.
    """
    named = [schema.names[c] for c in local_data.columns]
    lines = [",".join([ID, *named, *([] if local_data.y is None else [schema.target])])]
    for i in range(len(local_data)):
        cells = [f"{local_data.ids[i]:08d}"]
        for c, value in zip(local_data.columns, local_data.X[i], strict=True):
            codes = schema.features[c].categories
            empty = bool(np.isnan(value))
            cells.append("" if empty else codes[int(value)] if codes else repr(float(value)))
        if local_data.y is not None:
            cells.append(
                schema.classes[local_data.y[i]] if schema.classes else repr(float(local_data.y[i]))
            )
        lines.append(",".join(cells))
    write_private(path, "\n".join(lines) + "\n")
