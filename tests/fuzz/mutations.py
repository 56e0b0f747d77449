"""Small real files, and random damage of them. Everything is drawn from the given generator."""

import copy
import functools
import io
import json
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
from sklearn.ensemble import RandomForestClassifier

from fedtrees.core.schema import Feature, Schema
from fedtrees.trees.files.forests import (
    from_sklearn,
    save_random_decision_forest,
    save_random_forest,
)
from fedtrees.trees.forest.random_decision import RandomDecisionForest, RandomSplits

TESTS = Path(__file__).parents[1]
# Replacements of a number, a name or a part of a file.
UNUSUAL = (
    "0", "-1", "1", "2", "7", "1e9", "1000000000", "100000", "2147483647", "-2147483648",
    "4294967296", "9" * 30, "9" * 5000, "1e999", "-1e999", "1e308", "1e-320", "nan", "inf", "-inf",
    "NaN", "Infinity", "", " ", "x", "12x", "1_000", "٣", "½", "null", "true", "none", "-", "?",
    "=1+1", "@x", "\x1b[2J", "\0", "\u2028", "\ud800", "é", '"', "'", ",", ",,", ";", "|", "[", "]",
    "{", "}", "[[", "(", "1.234,5", "12:30", "2021-02-30", "01.13.2020", "0x10", "1,2", "a" * 300,
    "\n", "\r\n", "\t", "\\",
)  # fmt: skip
JSON_UNUSUAL = (
    None, True, -1, 0, 7, 1e39, 10**9, 10**30, 2**31, float("nan"), float("inf"), "", "x",
    "9" * 5000, "1000000000", "[1,2]", "\x1b[2J", [], {}, [[1], 2], {"a": 1}, 65535, [0] * 50,
    "\ud800",
)  # fmt: skip


def pick(rng, choices):
    """Return one of several choices."""
    return choices[int(rng.integers(len(choices)))]


def change_bytes(data, rng):
    """Change, remove, repeat or replace some bytes."""
    data = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        if not data:
            break
        at, size = int(rng.integers(len(data))), int(rng.integers(1, 40))
        how = rng.integers(7)
        if how == 0:
            data[at] ^= 1 << int(rng.integers(8))
        elif how == 1:
            data[at] = int(rng.integers(256))
        elif how == 2:
            del data[at : at + size]
        elif how == 3:
            data[at:at] = data[at : at + size]
        elif how == 4:
            data[at : at + size] = rng.integers(0, 256, size, dtype=np.uint8).tobytes()
        elif how == 5:
            data[at : at + 8] = int(rng.choice([0, 2**31 - 1, 2**62, 2**63 - 1])).to_bytes(8, "big")
        elif rng.random() < 0.3:
            del data[at:]
    return bytes(data)


def change_tokens(text, rng, separators=" =,;\n"):
    """Replace some tokens of a text by unusual ones, or remove, repeat or reorder its lines."""
    for _ in range(int(rng.integers(1, 4))):
        if rng.random() < 0.25:
            lines = text.split("\n")
            at = int(rng.integers(len(lines)))
            text = "\n".join(
                pick(
                    rng,
                    [
                        lines[:at] + lines[at + 1 :],
                        lines[: at + 1] + lines[at:],
                        lines[:at],
                        lines[::-1],
                    ],
                )
            )
            continue
        at = int(rng.integers(len(text) + 1))
        ends = (text.find(s, at) for s in separators)
        begin = max((text.rfind(s, 0, at) for s in separators), default=-1) + 1
        end = min((e for e in ends if e >= 0), default=len(text))
        text = text[:begin] + pick(rng, UNUSUAL) + text[end:]
    return text


def change_json(model, rng):
    """Replace some values of a parsed JSON by unusual ones, or remove or repeat them."""
    model = json.loads(json.dumps(model))
    for _ in range(int(rng.integers(1, 4))):
        node = model
        while True:
            keys = list(node) if isinstance(node, dict) else range(len(node))
            key = pick(rng, list(keys))
            deeper = isinstance(node[key], dict | list) and len(node[key])
            if not deeper or rng.random() < 0.1:
                break
            node = node[key]
        how = rng.random()
        if how < 0.15:
            del node[key]
        elif how < 0.3 and isinstance(node, list):
            node += node[key : key + 1] * int(rng.choice([1, 2, 50]))
        elif how < 0.4 and isinstance(node[key], str):
            node[key] = pick(rng, UNUSUAL)
        else:
            node[key] = copy.deepcopy(pick(rng, JSON_UNUSUAL))
        if not model:
            break
    return json.dumps(model).encode("utf-8", "surrogatepass")


def change_arrays(data, rng):
    """Write the arrays of an archive again, with one of them changed or with a wrong header."""
    with np.load(io.BytesIO(data)) as archive_arrays:
        arrays = {name: archive_arrays[name] for name in archive_arrays.files}
    name = pick(rng, list(arrays))
    array, how = arrays[name], int(rng.integers(9))
    if how == 0:
        del arrays[name]
    elif how == 1:
        with suppress(ValueError):  # A text cannot be converted to a number.
            kind = pick(rng, ["<i2", "<f4", "<f8", "<u8", "?", "<c8", "<U3"])
            arrays[name] = array.astype(kind)
    elif how == 2:
        arrays[name] = array[..., : int(rng.integers(3))] if array.ndim else array.reshape(1)
    elif how == 3:
        arrays[name] = np.resize(array, int(rng.integers(1, 400)))
    elif how == 4:
        arrays[name] = np.full(array.shape, rng.choice([0, -1, 1, 2**31 - 1])).astype(array.dtype)
    elif how < 8 and array.size:
        flat = array.copy().reshape(-1)
        at = rng.integers(0, flat.size, int(rng.integers(1, 4)))
        unusual = [0, -1, 1, 2, 10**6, 2**31 - 1] + [np.nan, np.inf] * (flat.dtype.kind == "f")
        if flat.dtype.kind in "iufb":
            flat[at] = np.array([pick(rng, unusual) for _ in at]).astype(flat.dtype)
        arrays[name] = flat.reshape(array.shape)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for other, values in arrays.items():
            text = io.BytesIO()
            np.save(text, values)
            raw = text.getvalue()
            if how == 8 and other == name:
                size = int(rng.choice([0, 1, 10**6, 10**12, 2**62]))
                header = (
                    f"{{'descr': {values.dtype.str!r}, 'fortran_order': False, 'shape': ({size},)}}"
                )
                raw = raw[:10] + header.ljust(117).encode() + b"\n" + raw[128:]
            archive.writestr(f"{other}.npy", raw)
    return out.getvalue()


@functools.cache
def models():
    """Return small models of other frameworks, scikit-learn and fedtrees, by name."""
    contents = {}
    for folder in ("trees/models", "audit/models"):
        for path in sorted((TESTS / folder).iterdir()):
            if path.suffix in (".json", ".ubj", ".txt") and path.name[:4] in (
                "xgbo", "ligh", "flow", "nvfl",
            ):  # fmt: skip
                contents[path.name] = path.read_bytes()
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 4)).astype(np.float32)
    y = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 0.7)
    path = io.BytesIO()
    for k, labels in ((2, np.minimum(y, 1)), (3, y)):
        forest = RandomForestClassifier(3, max_depth=4, random_state=0).fit(X, labels)
        contents[f"scikit-learn-{k}.npz"] = _saved_bytes(save_random_forest, from_sklearn(forest))
    schema = Schema(tuple(Feature(f"x{k}", "continuous", -4.0, 4.0) for k in range(4)), "y")
    tests = RandomSplits(
        rng.integers(0, len(schema.features), (3, 7)).astype(np.int32),
        rng.normal(size=(3, 7)).astype(np.float32),
    )
    counts = tests.count(X, np.minimum(y, 1), 2)
    private = RandomDecisionForest(tests, counts, 80)
    contents["private.npz"] = _saved_bytes(save_random_decision_forest, private, "geometric", 1.0)
    path.close()
    return contents


def _saved_bytes(save, *arguments):
    """Return the bytes that a function writes to a file."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        save(arguments[0], path, *arguments[1:])
        return path.read_bytes()


def model(rng):
    """Return the name of a model and its damaged bytes."""
    name = pick(rng, sorted(models()))
    data = models()[name]
    if rng.random() < 0.25:
        return name, change_bytes(data, rng)
    if name.endswith(".json"):
        return name, change_json(json.loads(data), rng)
    if name.endswith(".txt"):
        text = change_tokens(data.decode(), rng)
        return name, text.encode("utf-8", "surrogatepass")
    if name.endswith(".npz"):
        return name, change_arrays(data, rng)
    return name, change_bytes(data, rng)


@functools.cache
def tables():
    """Return small tables with numbers, categories, dates, ids, and several separators and
    encodings.
    """
    rng, rows = np.random.default_rng(1), range(30)
    columns = {
        "age": [str(20 + i % 50) for i in rows],
        "bmi": [f"{v:.2f}" for v in rng.normal(25, 4, 30)],
        "town": [("Bern", "Genf", "Zürich", "")[i % 4] for i in rows],
        "date": [f"{1 + i % 28:02d}.{1 + i % 12:02d}.2021" for i in rows],
        "id": [str(2024000000 + 7 * i) for i in rows],
        "note": [f'"came, at {i}"' for i in rows],
        "a": [str(int(i % 3 == 0)) for i in rows],
        "b": [str(int(i % 3 == 1)) for i in rows],
        "c": [str(int(i % 3 == 2)) for i in rows],
        "ill": ["yes" if i % 3 else "no" for i in rows],
    }
    lines = [",".join(columns), *(",".join(v[i] for v in columns.values()) for i in rows)]
    plain = "\n".join(lines) + "\n"
    german = plain.replace('"', "").replace(", at", " at").replace(".", ",").replace(",", ";")
    return {
        "commas.csv": plain.encode(),
        "semicolons.csv": german.encode("cp1252"),
        "tabs.tsv": plain.replace('"', "")
        .replace(", at", " at")
        .replace(",", "\t")
        .encode("utf-16"),
        "no-header.csv": "\n".join(lines[1:]).encode(),
        "hint.csv": b"sep=,\r\n" + plain.replace("\n", "\r\n").encode("utf-8-sig"),
    }


def table(rng):
    """Return the name of a table and its damaged bytes."""
    name = pick(rng, sorted(tables()))
    data = tables()[name]
    if rng.random() < 0.2:
        return name, change_bytes(data, rng)
    coding = {"semicolons.csv": "cp1252", "tabs.tsv": "utf-16"}.get(name, "utf-8")
    text = data.decode(coding)
    for _ in range(int(rng.integers(1, 3))):
        separator = {"semicolons.csv": ";", "tabs.tsv": "\t"}.get(name, ",")
        text = change_tokens(text, rng, f"{separator}\n")
    if rng.random() < 0.1:
        lines = text.split("\n")
        text = "\n".join(line + "," + ",".join(["1"] * 60) for line in lines)
    return name, text.encode(coding, "replace" if coding == "cp1252" else "surrogatepass")


SUITE = """
name = "tiny"
description = "words"
seeds = [0, 1]
time_limit = 10.5
[[grid]]
data = ["wine", {csv = "a.csv,b.csv", id = "id", target = "ill", keep = ["a"]}, "wine[rows=50]"]
partitions = ["iid", "dirichlet[alpha=0.5]"]
clients = [3, 5]
protocols = ["fedtree-hist[trees=1,2,max_depth=2,max_bin=8]"]
defenses = ["none", "split-only+laplace-hist[epsilon=1,4]"]
threats = ["client", "server"]
attacks = ["random-leaf", "timberstrike"]
"""


def suite(rng):
    """Return a damaged suite."""
    if rng.random() < 0.3:
        return change_bytes(SUITE.encode(), rng)
    return change_tokens(SUITE, rng, ' =,[]{}"\n').encode("utf-8", "surrogatepass")


def spec(rng, kind, register):
    """Return a specification of one kind: a registered name with unusual parameters, or a
    damaged text.
    """
    import inspect

    names = register.names(kind)
    parts = []
    for _ in range(int(rng.integers(1, 3 if kind == "defense" else 2))):
        name = pick(rng, names)
        parameter_names = [*inspect.signature(register.get(kind, name)).parameters] or ["k"]
        options = []
        for _ in range(int(rng.integers(0, 4))):
            key = pick(rng, parameter_names) if rng.random() < 0.9 else pick(rng, UNUSUAL)
            values = (pick(rng, UNUSUAL) for _ in range(int(rng.integers(1, 3))))
            options.append(f"{key}={','.join(values)}")
        parts.append(f"{name}[{','.join(options)}]" if options else name)
    text = "+".join(parts)
    return change_tokens(text, rng, "[]=,+") if rng.random() < 0.2 else text
