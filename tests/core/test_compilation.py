"""Kernels are compiled once on a machine, and only kernels call inner kernels."""

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("fedtrees", "attacks", "defenses", "benchmarks")
DECORATORS = {"kernel", "inner_kernel"}

#: A module whose kernel calls an inner one. Compiling it takes longer than the two processes differ
#: in their start.
MODULE = """
from fedtrees.core.compilation import inner_kernel, kernel

@inner_kernel
def square(x):
    return x * x

@kernel
def total(values):
    result = 0.0
    for value in values:
        result += square(value)
    return result
"""
PROGRAM = """
import sys, time
sys.path.insert(0, {folder!r})
from numba.core import event
import numpy as np
from kernels_of_a_test import total

class Count(event.Listener):
    compiled = 0
    def on_start(self, e):
        self.compiled += e.data["dispatcher"].py_func.__module__ == "kernels_of_a_test"
    def on_end(self, e):
        pass

count = Count()
event.register("numba:compile", count)
while time.time() < {start}:
    time.sleep(0.001)
assert total(np.arange(4.0)) == 14.0
print(count.compiled)
"""


def _modules_with(words, folders=PACKAGES):
    """Yield the name and the syntax tree of each module whose text contains one of the words."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            if any(word in text for word in words):
                parts = path.relative_to(ROOT).with_suffix("").parts
                in_package = folder in ("fedtrees", "tests")
                yield ".".join(parts if in_package else ("fedtrees", *parts)), ast.parse(text)


def _decorators(node):
    return {ast.unparse(d) for d in getattr(node, "decorator_list", [])}


def test_no_python_code_refers_to_an_inner_kernel():
    """A call from Python would crash the process, because inner kernels have no wrapper."""
    inner = {
        (module, node.name)
        for module, tree in _modules_with(["inner_kernel"])
        for node in tree.body
        if "inner_kernel" in _decorators(node)
    }
    assert len(inner) > 50
    references = []
    # Another module names the module of a kernel that it imports.
    words = ["inner_kernel", *{module for module, _ in inner}]
    for module, tree in _modules_with(words, (*PACKAGES, "tests")):
        names = {
            name: (module_of_kernel, name)
            for module_of_kernel, name in inner
            if module_of_kernel == module
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    names[alias.asname or alias.name] = (node.module, alias.name)
        for node in tree.body:
            if DECORATORS & _decorators(node):
                continue
            references += [
                f"{module}: {name_node.id}"
                for name_node in ast.walk(node)
                if isinstance(name_node, ast.Name) and names.get(name_node.id) in inner
            ]
    assert not references


def test_every_kernel_is_declared_by_one_of_the_two_decorators():
    direct = [
        f"{module}.{node.name}"
        for module, tree in _modules_with(["njit"])
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and any("njit" in d for d in _decorators(node))
    ]
    assert not direct


@pytest.mark.long
def test_two_processes_compile_a_kernel_once(tmp_path):
    (tmp_path / "kernels_of_a_test.py").write_text(MODULE)
    program = PROGRAM.format(folder=str(tmp_path), start=time.time() + 4)
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    counts = sorted(int(process.communicate(timeout=120)[0]) for process in running)
    assert counts == [0, 2]  # `total` and `square`, by one of the processes


@pytest.mark.long
def test_a_change_of_an_inner_kernel_in_another_file_compiles_its_callers_again(tmp_path):
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from caller import twice; "
        "print(twice(3.0))"
    )
    start = "from fedtrees.core.compilation import inner_kernel, kernel\n"
    (tmp_path / "caller.py").write_text(
        f"{start}import middle\n@kernel\ndef twice(x):\n    return 2 * middle.shifted(x)\n"
    )
    (tmp_path / "middle.py").write_text(
        f"{start}from inner import step\n@inner_kernel\ndef shifted(x):\n    return step(x)\n"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    printed = []
    for shift in ("1", "10"):
        inner = f"{start}@inner_kernel\ndef step(x):\n    return x + {shift}\n"
        (tmp_path / "inner.py").write_text(inner)
        command = [sys.executable, "-c", program]
        printed.append(subprocess.check_output(command, text=True, env=environment).strip())
    assert printed == ["8.0", "26.0"]
