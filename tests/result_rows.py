"""Read the results of a run as text, without parsing values and adding columns for reports."""

from pathlib import Path

from fedtrees.report.results import read_records


def read_rows(folder: str | Path) -> list[dict[str, str]]:
    """Return one dictionary per measurement of a run."""
    return read_records(folder).to_dict("records")
