"""XGBoost's own margins, from a process of its own: it crashes on some damaged files.

The file is also what that process runs, by its path, so it imports nothing of this package.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Some ten times what honest models take; a damaged one may run in circles.
SECONDS, BYTES_PER_SECOND, CELLS_PER_SECOND = 120, 2**19, 5 * 10**7
# Address space of the process: a damaged file may ask for any size. Ten times the file, parsed,
# and the rows; each thread of a library takes some more, so there is one of each.
MOST_BYTES = 8 * 2**30
PER_BYTE = 40


def margins_of(models: Sequence[Path], rows: Any) -> list[NDArray[np.float32] | str]:
    """Return XGBoost's margins of rows by each model, or why there are none.

    Parameters
    ----------
    models : sequence of Path
        Files of XGBoost models.
    rows : csr_matrix of float32, shape (n, d)
        Values that are not stored are missing.

    Returns
    -------
    list of float32 array, shape (n,) or (n, K), or str
    """
    found: list[NDArray[np.float32] | str] = []
    with TemporaryDirectory() as folder:
        np.savez(Path(folder) / "rows.npz", data=rows.data, indices=rows.indices,
                 indptr=rows.indptr, shape=rows.shape)  # fmt: skip
        while len(found) < len(models):  # a model on which it crashed stops those after it
            left = [path.absolute() for path in models[len(found) :]]
            fault = _run(folder, left, _patience(left, rows.shape))
            made = [Path(folder) / f"{k}.npy" for k in range(len(left))]
            margins = [np.load(path) for path in made if path.exists()]
            for path in made:
                path.unlink(missing_ok=True)
            found += margins if len(margins) == len(left) else [*margins, fault]
    return found


def _patience(models: Sequence[Path], shape: tuple[int, int]) -> float:
    """Return how many seconds the process may take."""
    size = sum(path.stat().st_size for path in models)
    return SECONDS + size / BYTES_PER_SECOND + shape[0] * shape[1] / CELLS_PER_SECOND


def _run(folder: str, models: Sequence[Path], seconds: float) -> str:
    """Run the process and return why it failed; of no meaning if it did not."""
    command = [sys.executable, "-P", __file__, folder, *map(str, models)]
    alone = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds,
                              text=True, errors="replace", env=os.environ | alone)  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"it took longer than {seconds:.0f} seconds"
    if done.returncode < 0:
        return f"it crashed with signal {-done.returncode}"
    said = [line for line in done.stderr.splitlines() if line.strip()] or ["it gave no reason"]
    return "".join(c if c.isprintable() else "?" for c in said[-1])[:300]


def _main(folder: str, models: Sequence[str]) -> None:
    """Write the margins by each model to ``0.npy``, ``1.npy`` and so on."""
    sys.modules["sklearn"] = None  # type: ignore[assignment]  # XGBoost would load it: 3 seconds
    import xgboost
    from scipy.sparse import csr_matrix

    _limit_memory(sum(os.path.getsize(path) for path in models))
    given = np.load(os.path.join(folder, "rows.npz"))
    rows = csr_matrix((given["data"], given["indices"], given["indptr"]), tuple(given["shape"]))
    for k, path in enumerate(models):
        booster = xgboost.Booster({"nthread": 1}, model_file=path)
        kinds = list(booster.feature_types or ()) or None
        data = xgboost.DMatrix(rows, feature_names=booster.feature_names, feature_types=kinds,
                               enable_categorical="c" in (kinds or ()), nthread=1)  # fmt: skip
        margins = np.asarray(booster.predict(data, output_margin=True), dtype=np.float32)
        np.save(os.path.join(folder, f"{k}.npy"), margins)


def _limit_memory(size: int) -> None:
    """Keep the process from taking the memory of the machine, where the system can."""
    try:
        import resource
    except ImportError:
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = MOST_BYTES + PER_BYTE * size
    resource.setrlimit(resource.RLIMIT_AS, (min(most, hard) if hard > 0 else most, hard))


if __name__ == "__main__":
    try:
        _main(sys.argv[1], sys.argv[2:])
    except Exception as error:
        message = str(error).strip().splitlines() or [type(error).__name__]
        sys.exit(message[0].partition("Check failed: ")[2] or message[0])
