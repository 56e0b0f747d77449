"""Audit a model file from Python, and for the command `fedtrees model audit`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from html import escape
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtrees.core.errors import UsageError
from fedtrees.experiments.options import parse_texts
from fedtrees.experiments.table_spec import parse_reading
from fedtrees.model_audit.attack import AttackResult, attack
from fedtrees.model_audit.audit import Audit
from fedtrees.model_audit.audit import audit as audit_statistics
from fedtrees.model_audit.exposure import Known
from fedtrees.model_audit.model import without_statistics
from fedtrees.model_audit.page import render, write_page
from fedtrees.model_audit.readers import XGBOOST_STATISTICS, read_model
from fedtrees.model_audit.rows import Columns, check_sizes, read_rows
from fedtrees.model_audit.scrub import Scrubbed
from fedtrees.model_audit.scrub import scrub as write_scrubbed
from fedtrees.model_audit.tables import check_labels, headline
from fedtrees.model_audit.verdict import leftovers, to_json, verdict

if TYPE_CHECKING:
    from fedtrees.api.bench import Names
    from fedtrees.data.dataset import Dataset
    from fedtrees.model_audit.membership import MembershipResult


@dataclass(frozen=True)
class MembershipFiles:
    """Files for the membership test of an audit.

    Attributes
    ----------
    data : str or None
        CSV file of all training rows.
    reserve : str or None
        CSV file of rows of the same population that were not used in training.
    min_child_weight : float or None
        The parameter of the training, if known.
    """

    data: str | None = None
    reserve: str | None = None
    min_child_weight: float | None = None


@dataclass(frozen=True, repr=False)
class ModelAudit:
    """The result of `fedtrees.audit`.

    Attributes
    ----------
    findings : Audit
        Statistics of the file, and the number of training rows per leaf as far as it follows.
    attack : AttackResult or None
        Result of the attack, None if neither `own` nor `truth` was given.
    membership : MembershipResult or None
        Result of the membership test, None if `data` and `reserve` were not given.
    copy : Path or None
        File without the statistics that prediction does not need.
    report : Path or None
        Page with the findings.
    remarks : tuple of str
        Sentences about the information that the copy still reveals.
    notes : tuple of str
        Remarks on the tables and on contradictions.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> import fedtrees
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = fedtrees.FederatedGBDTClassifier(n_estimators=2, max_depth=2, random_state=0)
    >>> model.fit(X, y).save_model("model.json")  # doctest: +SKIP
    >>> print(fedtrees.audit("model.json").verdict)  # doctest: +SKIP
    """

    findings: Audit
    attack: AttackResult | None = None
    membership: MembershipResult | None = None
    copy: Path | None = None
    report: Path | None = None
    remarks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    _facts: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """The findings in sentences, one per line."""
        return "\n".join([headline(self.findings), *verdict(self.findings)])

    def to_json(self) -> dict[str, Any]:
        """Return the findings as plain JSON types, the same as ``--format json``."""
        return self._facts

    def __repr__(self) -> str:
        return f"<ModelAudit: {headline(self.findings)}>"

    def _repr_html_(self) -> str:
        """Return the page in a separate frame, for notebooks."""
        page = escape(render(self.findings, self.attack, self.remarks), quote=True)
        return f'<iframe srcdoc="{page}" width="100%" height="600" style="border:0"></iframe>'


def audit(
    model: str | PathLike[str],
    *,
    own: str | PathLike[str] | None = None,
    truth: str | PathLike[str] | None = None,
    data: str | PathLike[str] | None = None,
    reserve: str | PathLike[str] | None = None,
    min_child_weight: float | None = None,
    target: str = "",
    positive: str = "",
    categorical: Names = (),
    sep: str = "",
    decimal: str = "",
    missing: Names | None = None,
    sheet: str = "",
    scrub: str | PathLike[str] | None = None,
    report: str | PathLike[str] | None = None,
    rows: int | None = None,
    learning_rate: float | None = None,
    reg_lambda: float | None = None,
    seed: int = 0,
) -> ModelAudit:
    """Show the information about training rows in a model file. Scrub it, and attack it.

    Counts are only reported if they are certain. The function does the same as the command
    ``fedtrees model audit``.

    Parameters
    ----------
    model : str or Path
        A model file: XGBoost JSON or UBJ, LightGBM text, or ``.npz``.
    own, truth : str or Path, optional
        CSV files of training rows: those that the adversary has, and those to look for. They score
        an attack.
    data, reserve : str or Path, optional
        CSV files of all training rows, and of other rows of the same population. They measure
        whether training rows can be recognised.
    min_child_weight : float, optional
        Parameter of the training, for `data`.
    target, positive : str
        Target column of these files, and its positive class.
    categorical : str or sequence of str
        Text columns of these files: NAME, or ``NAME=first|second|...`` in the order of the codes if
        the model does not state its categories.
    sep, decimal : str, optional
        Separator and decimal mark of these files, as in `fedtrees.bench`.
    missing : str or sequence of str, optional
        Marks of missing cells, as in `fedtrees.bench`.
    sheet : str, optional
        Sheet of a workbook, by name or number.
    scrub : str or Path, optional
        New ``.json`` file for a copy without the statistics that prediction does not need.
    report : str or Path, optional
        ``.html`` file for a page with the findings.
    rows : int, optional
        Number of training rows, if known. Counts that are computed from leaf values only then
        assume that the first tree was trained on all rows without an L1 penalty.
    learning_rate, reg_lambda : float, optional
        Parameters of the training, if known. By default they are inferred.
    seed : int
        Seed of the attack.

    Returns
    -------
    audit : ModelAudit
        Findings, results of attacks, and written files.

    Raises
    ------
    UsageError
        If options contradict each other or the statistics in the file.
    DataError
        If a file cannot be read or used.
    StoreError
        If a file cannot be written.

    Examples
    --------
    >>> import fedtrees
    >>> fedtrees.audit("model.json", scrub="published.json")  # doctest: +SKIP
    """
    columns = Columns(
        target=target,
        categorical=parse_texts(categorical, "categorical"),
        positive=positive or None,
        reading=parse_reading(
            sep, decimal, None if missing is None else parse_texts(missing), sheet
        ),
    )
    background = Known(rows=rows, learning_rate=learning_rate, reg_lambda=reg_lambda)
    own_file, truth_file, copy, page = map(_text, (own, truth, scrub, report))
    files = MembershipFiles(_text(data), _text(reserve), min_child_weight)
    _check_membership(files, columns)
    _check_different(("--own", own_file), ("--truth", truth_file))
    _check_different(("--data", files.data), ("--reserve", files.reserve))
    _check(own_file or files.data, truth_file, columns, {copy: ".json", page: ".html"})
    findings = audit_statistics(read_model(fspath(model)), background)
    own_rows, truth_rows, notes = _rows(own_file, truth_file, columns, findings)
    check_labels(findings, [rows for rows in (own_rows, truth_rows) if rows is not None])
    notes += _contradiction(background, findings)
    attacked = attack(findings, own_rows, truth_rows, seed) if own_rows or truth_rows else None
    facts = to_json(findings, attacked) | {"notes": notes}
    remarks: list[str] = []
    if copy is not None:
        scrubbed, after = _scrub(copy, background, findings, own_rows or truth_rows)
        remarks = leftovers(findings, after, scrubbed)
        facts["scrub"] = _scrub_facts(scrubbed, after, remarks)
    membership = None
    if files.data and files.reserve:
        from fedtrees.model_audit.membership import measure_membership

        membership, membership_notes = measure_membership(
            findings, files.data, files.reserve, columns, seed, files.min_child_weight
        )
        notes = [*notes, *membership_notes]
        facts["membership"], facts["notes"] = membership.to_json(), notes
    written = write_page(Path(page), findings, attacked, remarks) if page else None
    if written:
        facts["report"] = str(written)
    copied = Path(copy) if copy is not None else None
    return ModelAudit(
        findings, attacked, membership, copied, written, tuple(remarks), tuple(notes), facts
    )


def _text(path: str | PathLike[str] | None) -> str | None:
    """Return a path as text, None without one."""
    return None if path is None else fspath(path)


def _scrub_facts(scrubbed: Scrubbed, after: Audit, remarks: list[str]) -> dict[str, Any]:
    """Return the facts about a scrubbed copy as plain JSON types."""
    return {
        "file": str(scrubbed.path),
        "removed": list(XGBOOST_STATISTICS),
        "predictions_unchanged": scrubbed.same,
        "not_compared": scrubbed.not_compared,
        "points": scrubbed.points,
        "leaves_reached": scrubbed.leaves_reached,
        "summary": vars(after.summary),
        "assumes": list(after.assumes),
        "says": remarks,
    }


def _check_different(first: tuple[str, str | None], second: tuple[str, str | None]) -> None:
    """Raise `UsageError` if two options name the same file, whose rows would be in both parts."""
    (option, path), (other, same) = first, second
    if path and same and Path(path).resolve() == Path(same).resolve():
        raise UsageError(f"{option} and {other} are both {path}; give files of different rows")


def _check_membership(files: MembershipFiles, columns: Columns) -> None:
    """Raise `UsageError` if the options of the membership test are incomplete."""
    if bool(files.data) != bool(files.reserve):
        raise UsageError("--data and --reserve go together: rows trained on, and others")
    if files.data and not columns.target:
        raise UsageError("--data and --reserve need --target COLUMN: the label column")
    if files.min_child_weight is not None and not files.data:
        raise UsageError("--min-child-weight describes a training: give --data and --reserve")


def _check(
    own_file: str | None, truth: str | None, columns: Columns, endings: dict[str | None, str]
) -> None:
    """Raise `UsageError` for options that cannot work, before any file is read."""
    if (own_file or truth) and not columns.target:
        raise UsageError("--own and --truth need --target COLUMN: the label column of the file")
    if (columns.target or columns.positive or columns.categorical) and not (own_file or truth):
        raise UsageError("--target, --positive and --categorical describe --own and --truth")
    for file, ending in endings.items():
        if file and Path(file).suffix != ending:
            raise UsageError(f"{file}: end the name in {ending}")
        if file and not Path(file).absolute().parent.is_dir():
            raise UsageError(f"{file}: there is no folder {Path(file).parent}; make it first")


def _rows(
    own_file: str | None, truth: str | None, columns: Columns, audit_result: Audit
) -> tuple[Dataset | None, Dataset | None, list[str]]:
    """Read the adversary's rows and the rows to look for."""
    paths = [path for path in (own_file, truth) if path]
    if not paths:
        return None, None, []
    check_sizes(own_file, truth)
    tables, notes = read_rows(audit_result.model, paths, columns)
    return tables[0] if own_file else None, tables[-1] if truth else None, notes


def _contradiction(background: Known, audit_result: Audit) -> list[str]:
    """Return a note if the stated number of rows differs from the sum over the leaves."""
    if background.rows is None or audit_result.rows.n in (None, background.rows):
        return []
    return [
        f"--rows says {background.rows}, the leaves add up to {audit_result.rows.n}: trees saw a "
        "sample, or one client's rows, or rows had weights, and then counts are sums of weights"
    ]


def _scrub(
    copy: str, background: Known, audit_result: Audit, rows: Dataset | None
) -> tuple[Scrubbed, Audit]:
    """Write the scrubbed copy, and audit it as an adversary that knows eta, lambda and N.

    If the number of rows N is not declared, it is the one that the statistics of the file show. In
    bagging, a first tree has the rows of one client only, so that N does not help.
    """
    scrubbed = write_scrubbed(
        audit_result.model, Path(copy), None if rows is None else rows.table.X
    )
    settings = audit_result.settings or background
    shown = audit_result.rows.n if audit_result.sources.kind == "one" else None
    assumed = replace(
        background,
        rows=background.rows or shown,
        learning_rate=settings.learning_rate,
        reg_lambda=settings.reg_lambda,
    )
    return scrubbed, audit_statistics(without_statistics(audit_result.model), assumed)
