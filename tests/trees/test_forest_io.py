"""Random forests survive storage as .npz files, and damaged files are refused."""

import io
import zipfile

import numpy as np
import pytest

from fedtrees.core.errors import DataError
from fedtrees.trees.cut_points import quantile_cuts
from fedtrees.trees.files.forests import load_random_forest, save_random_forest
from fedtrees.trees.files.models import load_model
from fedtrees.trees.forest.grower import grow_random_forest
from fedtrees.trees.forest.params import ForestParams
from fedtrees.trees.forest.random_forest import RandomForest


@pytest.fixture(scope="module")
def grown():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4)).astype(np.float32)
    y = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 0.5)
    cuts = quantile_cuts(X, 16)
    return grow_random_forest(X, y, cuts, ForestParams(trees=3), n_classes=3, seed=0), X


def test_a_forest_is_unchanged_by_saving_and_loading(grown, tmp_path):
    forest, X = grown
    save_random_forest(forest, tmp_path / "forest.npz")
    loaded = load_model(tmp_path / "forest.npz")
    assert isinstance(loaded, RandomForest)
    assert np.array_equal(loaded.probabilities(X), forest.probabilities(X))
    for loaded_tree, tree in zip(loaded.trees, forest.trees, strict=True):
        for name in ("feature", "threshold", "left", "right", "default_left", "counts"):
            assert np.array_equal(getattr(loaded_tree, name), getattr(tree, name)), name


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("left", lambda a: np.where(a > 0, 1, a).astype(a.dtype), "children of a node"),
        ("left", lambda a: np.where(a > 0, 10**6, a).astype(a.dtype), "children of a node"),
        ("left", lambda a: np.full_like(a, -1), "children of a node"),
        ("feature", lambda a: np.full_like(a, 1), "children of a node"),
        ("threshold", lambda a: a.astype(np.float64), "threshold is of float64"),
        ("probability", lambda a: a[:, 0], "no complete random forest"),
    ],
)
def test_trees_that_lead_nowhere_are_refused(grown, tmp_path, name, change, message):
    arrays = grown[0].to_arrays()
    arrays[name] = change(arrays[name])
    np.savez(tmp_path / "forest.npz", **arrays)
    with pytest.raises(DataError, match=message):
        load_random_forest(tmp_path / "forest.npz")


def test_damaged_and_other_files_are_refused(grown, tmp_path):
    forest, _ = grown
    path = tmp_path / "forest.npz"
    save_random_forest(forest, path)
    content = path.read_bytes()
    for data in (content[: len(content) // 2], b"", b"{}", content[:-30]):
        path.write_bytes(data)
        with pytest.raises(DataError, match="contains no complete random forest"):
            load_random_forest(path)
    np.savez(path, sizes=np.array([1]), feature=np.array([-1]))
    with pytest.raises(DataError, match="no complete random forest"):
        load_random_forest(path)
    np.save(path.with_suffix(".npy"), np.zeros(3))
    with pytest.raises(DataError, match="no complete random forest"):
        load_random_forest(path.with_suffix(".npy"))
    with pytest.raises(DataError, match="cannot read"):
        load_random_forest(tmp_path / "absent.npz")
    with pytest.raises(DataError, match="cannot write"):
        save_random_forest(forest, tmp_path / "absent" / "forest.npz")


def test_a_damaged_file_is_read_or_refused_with_a_data_error(grown, tmp_path):
    file = tmp_path / "forest.npz"
    save_random_forest(grown[0], file)
    content = file.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(content)
        for position in rng.integers(0, len(content), rng.integers(1, 4)):
            damaged[position] ^= 1 << int(rng.integers(8))
        file.write_bytes(damaged)
        try:
            assert np.isfinite(load_model(file).probabilities(grown[1])).all()
        except DataError:
            refused += 1
    assert refused > 200


def test_an_archive_that_inflates_beyond_the_limit_is_not_inflated(tmp_path, monkeypatch):
    import fedtrees.trees.files.forests as forest_io

    monkeypatch.setattr(forest_io, "MAX_MODEL_BYTES", 10**6)
    file = tmp_path / "bomb.npz"
    np.savez_compressed(file, junk=np.zeros(10**6))
    with pytest.raises(DataError, match="the limit is"):
        load_model(file)


def stored(path, arrays, compression=zipfile.ZIP_DEFLATED):
    """Write an archive of arrays, each as the bytes of its .npy file."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in arrays.items():
            archive.writestr(f"{name}.npy", data)


def npy(array, shape=None):
    """Return the bytes of an array, whose header may announce another shape."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    text = buffer.getvalue()
    if shape is None:
        return text
    header = str({"descr": array.dtype.str, "fortran_order": False, "shape": shape})
    assert len(header) < 118
    return text[:10] + header.ljust(117).encode() + b"\n" + text[128:]


@pytest.mark.parametrize("shape", [(10**12,), (10**6, 10**6), (-1,), (0, 10**12), (2**62, 4), (2,)])
def test_a_header_is_not_believed(grown, tmp_path, shape):
    arrays = {name: npy(array) for name, array in grown[0].to_arrays().items()}
    arrays["probability"] = npy(np.zeros(3), shape)
    stored(tmp_path / "forest.npz", arrays)
    with pytest.raises(DataError, match=r"probability.npy' declares float64 of shape"):
        load_model(tmp_path / "forest.npz")


def test_a_small_file_does_not_unpack_to_a_large_one(tmp_path):
    """Zeros shrink to a thousandth: 33 MB of them in 33 kB, which NumPy would unpack."""
    stored(tmp_path / "bomb.npz", {"sizes": npy(np.zeros(2**22, np.int64))})
    with pytest.raises(DataError, match="its arrays take 33554560 bytes; the limit is 4194304"):
        load_model(tmp_path / "bomb.npz")


def test_other_archives_are_refused_with_a_data_error(grown, tmp_path):
    path = tmp_path / "forest.npz"
    arrays = {name: npy(array) for name, array in grown[0].to_arrays().items()}
    stored(path, arrays, zipfile.ZIP_LZMA)
    with pytest.raises(DataError, match="compressed by another method"):
        load_model(path)
    stored(path, {**arrays, "sizes": npy(np.zeros(10**5, np.int64))})
    with pytest.raises(DataError, match="not those of trees"):
        load_model(path)
    nested_header = b"\x93NUMPY\x01\x00" + (9000).to_bytes(2, "little") + b"(" * 8999 + b"\n"
    stored(path, {**arrays, "sizes": nested_header})
    with pytest.raises(DataError, match="no complete random forest"):
        load_model(path)
    stored(path, arrays)
    with_password = path.read_bytes()
    position = with_password.index(b"PK\x01\x02")
    while position >= 0:  # The directory states that the entries have a password.
        with_password = with_password[: position + 8] + b"\x01" + with_password[position + 9 :]
        position = with_password.find(b"PK\x01\x02", position + 1)
    path.write_bytes(with_password)
    with pytest.raises(DataError, match="password required"):
        load_model(path)
