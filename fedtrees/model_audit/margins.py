"""Compute XGBoost's margins in a separate process, because it crashes on some damaged files.

The process runs this file by its path, so that this module must not import fedtrees.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Time limit, about ten times the time of valid models. A damaged model may contain a cycle.
SECONDS, BYTES_PER_SECOND, CELLS_PER_SECOND = 120, 2**19, 5 * 10**7
# Limit on the address space of the process, because a damaged file may request any size. It is ten
# times the size of the parsed file and of the rows. Each thread of a library needs further space,
# so that every library uses a single thread.
MOST_BYTES = 8 * 2**30
PER_BYTE = 40


def margins_of(models: Sequence[Path], rows: Any) -> list[NDArray[np.float32] | str]:
    """Return XGBoost's margins of rows for each model, or the reason why there are none.

    `rows` is a csr_matrix of shape (n, d), in which values that are not stored are missing. The
    margins are float32, shape (n,) or (n, K).
    """
    with TemporaryDirectory() as folder:
        np.savez(Path(folder) / "rows.npz", data=rows.data, indices=rows.indices,
                 indptr=rows.indptr, shape=rows.shape)  # fmt: skip
        return [_margins(folder, path.absolute(), rows.shape) for path in models]


def _margins(folder: str, model: Path, shape: tuple[int, int]) -> NDArray[np.float32] | str:
    """Run the process and return its margins, or the reason why it failed."""
    size = model.stat().st_size
    seconds = SECONDS + size / BYTES_PER_SECOND + shape[0] * shape[1] / CELLS_PER_SECOND
    single_thread = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
    try:
        done = subprocess.run([sys.executable, "-P", __file__, folder, str(model)],
                              capture_output=True, timeout=seconds, text=True, errors="replace",
                              env=os.environ | single_thread)  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"it took longer than {seconds:.0f} seconds"
    if not done.returncode:
        return np.asarray(np.load(Path(folder) / "margins.npy"))
    if done.returncode < 0:
        return f"it crashed with signal {-done.returncode}"
    messages = [line for line in done.stderr.splitlines() if line.strip()] or ["it gave no reason"]
    return "".join(c if c.isprintable() else "?" for c in messages[-1])[:300]


def _main(folder: str, model: str) -> None:
    """Compute the margins and write them to ``margins.npy``."""
    sys.modules["sklearn"] = None  # type: ignore[assignment]  # XGBoost would load it: 3 seconds
    import xgboost
    from scipy.sparse import csr_matrix

    with suppress(ImportError):  # only Unix systems have the module `resource`
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = MOST_BYTES + PER_BYTE * os.path.getsize(model)
        resource.setrlimit(resource.RLIMIT_AS, (min(limit, hard) if hard > 0 else limit, hard))
    arrays = np.load(os.path.join(folder, "rows.npz"))
    rows = csr_matrix((arrays["data"], arrays["indices"], arrays["indptr"]), tuple(arrays["shape"]))
    booster = xgboost.Booster({"nthread": 1}, model_file=model)
    kinds = list(booster.feature_types or ()) or None
    data = xgboost.DMatrix(rows, feature_names=booster.feature_names, feature_types=kinds,
                           enable_categorical="c" in (kinds or ()), nthread=1)  # fmt: skip
    margins = booster.predict(data, output_margin=True)
    np.save(os.path.join(folder, "margins.npy"), np.asarray(margins, dtype=np.float32))


if __name__ == "__main__":
    try:
        _main(sys.argv[1], sys.argv[2])
    except Exception as error:
        message = str(error).strip().splitlines() or [type(error).__name__]
        sys.exit(message[0].partition("Check failed: ")[2] or message[0])
