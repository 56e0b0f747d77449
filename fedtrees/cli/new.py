"""The `new` command: write a file to start from, which runs and conforms to the rules."""

import json
import keyword
import re
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from fedtrees.cli.options import Format, Output
from fedtrees.core.errors import UsageError, check_known

#: Name of the plug-in in the template of its kind.
KINDS = {
    "protocol": "rotating-features",
    "defense": "rounded-statistics",
    "attack": "leaf-statistics",
    "behaviour": "repeating",
    "metric": "column-means",
}

_FEDERATION = "federation"


def new(
    kind: Annotated[
        str, typer.Argument(help="protocol, defense, attack, behaviour, metric, or federation.")
    ],
    name: Annotated[str, typer.Argument(help="What it is called, such as my-defense.")],
    out: Annotated[
        str | None, typer.Option("-o", "--out", help="What to write (default: ./NAME.py, ./NAME).")
    ] = None,
    format: Output = Format.TABLE,
) -> None:
    """Write a file with a working protocol, defense, attack, behaviour or metric for you to change.

    For a federation, a folder is written with the agreement of three sites, their tables, and the
    settings of each site.
    """
    from fedtrees.core.files import write_whole
    from fedtrees.core.registry import register

    check_known("kind", kind, (*KINDS, _FEDERATION))
    plain = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name) or keyword.iskeyword(plain):
        raise UsageError(
            f"name {name!r}: give small letters, digits and hyphens, a letter first, such as "
            f"my-{kind}"
        )
    if kind == _FEDERATION:
        _new_federation(Path(out or name), format)
        return
    if name in register.names(kind):
        raise UsageError(f"{kind} {name!r} is there already; choose another name")
    path = Path(out or f"{plain}.py")
    if path.suffix != ".py":
        raise UsageError(f"{path}: end the name in .py")
    if path.exists():
        raise UsageError(f"{path} exists; choose another --out")
    write_whole(path, written(kind, name, path).encode(), remedy="choose another --out")
    if format.is_json:
        typer.echo(json.dumps({"file": str(path)}))
    else:
        typer.echo(f"{path}\ncheck   fedtrees check {path}")


def _new_federation(folder: Path, format: Format) -> None:
    """Write the folder of an example federation."""
    from fedtrees.federation.trial import make_trial

    if folder.exists():
        raise UsageError(f"{folder} exists; choose another --out")
    trial = make_trial(folder)
    if format.is_json:
        typer.echo(json.dumps({"folder": str(folder), "hash": trial.hash}))
    else:
        file = f"{folder}/federation.toml"
        typer.echo(
            f"{folder}\nrun     fedtrees federate {file} --poc --sites {folder}/sites -o run"
        )


def written(kind: str, name: str, path: Path) -> str:
    """Return the text of a new file: the template with the new name."""
    text = (resources.files("fedtrees.cli") / "templates" / f"{kind}.py").read_text("utf-8")
    old = KINDS[kind]
    text = text.replace(f"{old.replace('-', '_')}.py", path.name)
    # A metric's key has underscores, and two metrics cannot share one.
    text = text.replace(old.replace("-", "_"), name.replace("-", "_"))
    return text.replace(_class(old), _class(name)).replace(old, name)


def _class(name: str) -> str:
    """Return the name of a class for the name of a plug-in."""
    return "".join(part.capitalize() for part in name.split("-"))
