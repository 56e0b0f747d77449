"""The `federate` and `site` commands: train between real parties with NVFlare."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtrees.cli.console import emit
from fedtrees.cli.options import Decimal, Format, Missing, Output, Sep, Sheet, option
from fedtrees.core.errors import ProtocolError, UsageError
from fedtrees.experiments.options import DATA, FEDERATION, OUTPUT, RUN

if TYPE_CHECKING:
    from fedtrees.federation.agreement import FederationAgreement
    from fedtrees.federation.deployment import Deployment


def federate(
    file: Annotated[str, typer.Argument()],
    out: Annotated[str, option(OUTPUT, "FOLDER", "-o", "--output")] = "",
    poc: Annotated[bool, option(RUN, "", "--poc")] = False,
    sites: Annotated[str | None, option(FEDERATION, "FOLDER")] = None,
    kit: Annotated[str | None, option(FEDERATION, "FOLDER")] = None,
    dry_run: Annotated[bool, option(RUN, "", "--dry-run")] = False,
    format: Output = Format.TABLE,
) -> None:
    """Train between parties that share no data. Every site must have allowed the hash of the file.

    If a party refuses, fails or does not answer in time, the run stops and names this party. In
    this case, nothing is published.

    Parameters
    ----------
    file : str
        File with everything that the parties agree on (.toml).
    out : str, optional
        Folder for log, model and status.
    poc : bool, optional
        Start a deployment on this machine, one process per site.
    sites : str, optional
        With --poc: folder with the settings of each site, SITE.toml.
    kit : str, optional
        Startup kit of the deployment's user who submits the job.
    dry_run : bool, optional
        Check the file and print its hash, without a run.

    Examples
    --------
    Check the agreement, and print the hash that sites allow::

        fedtrees federation run federation.toml --dry-run

    A trial on this machine, one process per site::

        fedtrees federation run trial/federation.toml --poc --sites trial/sites -o run
    """
    from fedtrees.federation.agreement import load

    federation = load(file)
    if dry_run:
        _print_agreement(federation, format)
        return
    if poc == (kit is not None) or poc != (sites is not None):
        raise UsageError(
            "give --poc --sites FOLDER, or --kit FOLDER: a startup kit of a running deployment"
        )
    if sites is not None and (absent := _absent(federation, Path(sites))):
        raise UsageError(
            f"--sites {sites} has no {absent}; `fedtrees federation site --to` writes it"
        )
    if not out:
        raise UsageError("give --output FOLDER for log, model and status")
    folder = Path(out)
    if folder.exists():
        raise UsageError(f"--output {out} is there already; choose another folder")
    _check_installed()
    if poc:
        from fedtrees.federation.deployment import started

        folder.mkdir(mode=0o700, parents=True)
        workspace = folder / "deployment"
        workspace.mkdir(mode=0o700)
        assert sites is not None
        with started(federation, Path(sites), workspace) as admin:
            result = _run(federation, admin, folder, 120)
    else:
        from fedtrees.federation.deployment import user_of

        assert kit is not None
        user_of(Path(kit))
        folder.mkdir(mode=0o700, parents=True)
        result = _run(federation, Path(kit), folder, 30)
    emit(result, format, "\n".join(f"{name:10} {value}" for name, value in result.items() if value))
    if result["stopped"]:
        raise ProtocolError(f"the run stopped: {result['stopped']}; nothing was published")


def _absent(federation: FederationAgreement, sites: Path) -> str:
    """Return the name of the first missing file with the settings of a site, "" if all exist."""
    named = (f"{site}.toml" for site in federation.parties.values())
    return next((name for name in named if not (sites / name).is_file()), "")


def _check_installed() -> None:
    """Raise `UsageError` if NVFlare is not installed."""
    from importlib.util import find_spec

    if find_spec("nvflare") is None:
        raise UsageError("federate needs NVFlare: pip install 'fedtrees[federation]'")


def _print_agreement(federation: FederationAgreement, format: Format) -> None:
    """Print the contents and the hash of a federation."""
    facts = {
        "hash": federation.hash,
        "protocol": federation.protocol,
        "defense": federation.defense,
        "parties": dict(federation.parties),
        "coordinator": federation.coordinator,
        "noise_from": federation.noise_from,
    }
    lines = [f"{name:12} {value}" for name, value in facts.items()]
    lines.append(f"each site    fedtrees federation site --csv FILE --allow {federation.hash}")
    emit(facts, format, "\n".join(lines))


def _run(federation: FederationAgreement, kit: Path, out: Path, seconds: float) -> dict[str, Any]:
    """Run a job and return how it ended."""
    import tempfile

    from fedtrees.federation.deployment import Deployment, job_of

    print(f"federation {federation.hash}: connecting", file=sys.stderr)
    deployment: Deployment = Deployment(kit)
    try:
        deployment.wait_for([*federation.parties.values()], seconds)
        with tempfile.TemporaryDirectory() as folder:
            job = job_of(federation, Path(folder))
            status = deployment.run(job, out, _Progress(), federation.patience)
    finally:
        deployment.close()
    return summarise_run(federation, out, status)


class _Progress:
    """Prints new lines of the coordinator, and before them the status that NVFlare reports."""

    def __init__(self) -> None:
        self._n_printed, self._status = 0, ""

    def __call__(self, status: str, lines: list[str]) -> None:
        # A status with a colon is a final one, which `summarise_run` reports.
        if not lines and status != self._status and ":" not in status:
            print(status.lower(), file=sys.stderr)
        for line in lines[self._n_printed :]:
            print(line, file=sys.stderr)
        self._n_printed, self._status = len(lines), status


def summarise_run(federation: FederationAgreement, out: Path, status: str) -> dict[str, Any]:
    """Return how a run ended, from the files of its server."""
    from fedtrees.federation.log import end_of

    result: dict[str, Any] = {"hash": federation.hash, "stopped": end_of(out, status)}
    for name, pattern in (("log", "log.capture"), ("model", "model.*"), ("status", "status.json")):
        files = sorted(out.glob(f"{federation.name}/{pattern}"))
        if files:
            result[name] = str(files[0])
    return result


def site(
    csv: Annotated[str, option(DATA, "FILE")] = "",
    allow: Annotated[list[str] | None, option(FEDERATION, "HASH")] = None,
    runs: Annotated[int, option(FEDERATION, "N")] = 1,
    out: Annotated[str, option(OUTPUT, "FOLDER", "-o", "--output")] = "",
    id: Annotated[str, option(DATA, "COLUMN")] = "",
    sep: Sep = "",
    decimal: Decimal = "",
    missing: Missing = None,
    sheet: Sheet = "",
    kit: Annotated[str | None, option(FEDERATION, "FOLDER")] = None,
    to: Annotated[str | None, option(OUTPUT, "FILE")] = None,
    format: Output = Format.TABLE,
) -> None:
    """Configure a site: its table, the federations in which it takes part, and how often.

    The settings remain at the site. If the command is repeated, --allow and --runs replace the
    earlier ones. Runs that took place remain counted.

    Parameters
    ----------
    csv : str, optional
        The site's table.
    allow : sequence of str, optional
        Hash of a federation in which it takes part (repeat).
    runs : int, optional
        Number of runs that are allowed per federation. Their epsilons add up.
    out : str, optional
        Folder for the site's logs and models.
    id : str, optional
        Column with the ids of rows, if other sites have further columns of the same rows.
    kit : str, optional
        Startup kit of the site or of the server, which is configured in place.
    to : str, optional
        File to write instead, for `fedtrees federation run --poc`.

    Examples
    --------
    Allow one run of a federation, given by its hash::

        fedtrees federation site --csv a.csv --allow HASH --kit kit -o logs

    A site of a trial on one machine::

        fedtrees federation site --csv a.csv --allow HASH --to sites/a.toml -o logs
    """
    from fedtrees.experiments.table_spec import parse_reading
    from fedtrees.federation import agreement
    from fedtrees.federation.deployment import SETTINGS, allow_classes
    from fedtrees.federation.site import Settings

    if (kit is None) == (to is None):
        raise UsageError("give --kit FOLDER, the startup kit; or --to SITE.toml, for a trial")
    server = kit is not None and (Path(kit) / "startup" / "fed_server.json").is_file()
    if kit is not None:
        allow_classes(Path(kit))
    path = Path(kit) / "local" / SETTINGS if kit is not None else Path(str(to))
    if server:
        result: dict[str, Any] = {"settings": "", "allowed": []}
        emit(result, format, f"{kit}")
        return
    if not csv or not out:
        raise UsageError("give --csv FILE, the table, and --output FOLDER, for its logs")
    if not Path(csv).is_file():
        raise UsageError(f"--csv {csv}: no such file")
    folder = Path(out).resolve()
    file = parse_reading(sep, decimal, missing, sheet)
    settings = Settings(
        csv=str(Path(csv).resolve()), out=str(folder), allow=tuple(allow or ()), id=id,
        sep=file.separator, runs=runs, decimal=file.decimal, missing=file.missing or (),
        sheet=file.sheet,
    )  # fmt: skip
    if path.is_file():
        agreement.keep_records(Path(Settings.load(path).out), folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    settings.save(path)
    records = agreement.records_of(folder)
    runs_so_far = {h: len(agreement.runs_of(records, h)) for h in settings.allow}
    total = agreement.total_epsilon(records)
    facts = {
        "settings": str(path),
        "allowed": list(settings.allow),
        "runs": runs,
        "counted": runs_so_far,
        "epsilon": total if math.isfinite(total) else None,
    }
    summaries = [agreement.summary(records, allowed, runs) for allowed in settings.allow]
    emit(facts, format, "\n".join([str(path), *summaries]))
