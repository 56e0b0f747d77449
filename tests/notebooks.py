"""Run the notebooks of the documentation, and compare their outputs with the stored ones.

``python tests/notebooks.py FILE`` runs a notebook and stores its outputs. Messages of progress,
which are sent to stderr, are not stored.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient


def read(path: Path) -> Any:
    """Return a notebook."""
    return nbformat.read(path, as_version=4)


def execute(path: Path) -> Any:
    """Return a notebook with the outputs of a new run, in the folder of the notebook."""
    notebook = read(path)
    os.environ.pop("FEDTREES_DATA", None)
    folder = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources=folder)
    client.execute()
    for number, cell in enumerate(code_cells(notebook), start=1):
        cell.metadata.pop("execution", None)
        cell.execution_count = number
        cell.outputs = [
            output_of_cell
            for output_of_cell in cell.outputs
            if output_of_cell.get("name") != "stderr"
        ]
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = number
        cell.outputs = in_one_piece(cell.outputs)
        for output in cell.outputs:
            if "text" in output:
                output.text = without_temporary_folder(output.text)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def in_one_piece(outputs: list[Any]) -> list[Any]:
    """Return the outputs of a cell, with consecutive pieces of printed text joined.

    A kernel sends printed text whenever its buffer is due, so that one line may arrive in two
    pieces on a busy machine.
    """
    joined: list[Any] = []
    for output in outputs:
        if joined and output.output_type == joined[-1].output_type == "stream":
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def code_cells(notebook: Any) -> list[Any]:
    """Return the cells with code."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def texts(cell: Any) -> str:
    """Return the text that a cell shows, without pictures."""
    parts = [
        output.text if "text" in output else output.data.get("text/plain", "")
        for output in cell.outputs
    ]
    pictures = [output for output in cell.outputs if "image/png" in output.get("data", {})]
    text = without_temporary_folder("\n".join(parts))
    return text if not pictures else f"{len(pictures)} pictures"


def without_temporary_folder(text: str) -> str:
    """Remove the temporary folder in which a notebook writes its table: its name is random."""
    return re.sub(rf"{re.escape(tempfile.gettempdir())}/tmp\w+/", "", text)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        executed = execute(Path(name).resolve())
        nbformat.write(executed, name)
