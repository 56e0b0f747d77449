"""Registry: maps names to classes through decorators, entry points and plug-in files.

The built-in protocols, defenses, attacks and data sets use the same entry points as external
packages: the groups ``fedtrees.protocols``, ``.defenses``, ``.attacks``, ``.behaviours``,
``.metrics`` and ``.datasets``. A class of a package therefore needs both a decorator, for example
``@register.defense("name")``, and an entry point in ``pyproject.toml``. A class in a plug-in file
(option ``--plugin``) needs only the decorator.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from fedtrees.core.errors import PLUGIN, UsageError, describe_error, did_you_mean, short
from fedtrees.core.limits import TimeLimit, limited_if_possible
from fedtrees.core.specs import Spec, parse_grid

Registered = TypeVar("Registered", bound=Callable[..., Any])
#: Seconds that the import of a plug-in may take if no ``--time-limit`` is given.
IMPORT_SECONDS = 120.0
_OURS = "fedtrees."
#: Reserved names in a suite: no defense, and all applicable attacks.
RESERVED = {"defense": "none", "attack": "all"}
#: Former names. They work in this release.
_FORMER_NAMES = {("attack", "told-bins"): "bucket-reading"}
#: Former names of parameters. They work in this release.
_FORMER_PARAMETERS = {
    ("attack", "timberstrike"): {
        "most": "max_level",
        "clues": "linkage_statistics",
        "starts": "base_scores",
    },
    ("attack", "joint"): {"most": "max_level"},
    ("attack", "tableak"): {"most": "max_rows"},
    ("attack", "leaf-inversion"): {"most": "max_rows"},
}
#: Removed parameters, and removed values of parameters (``name=value``), with the reason.
_REMOVED_OPTIONS = {
    ("attack", "timberstrike"): {
        "solver=milp": "it reconstructs less than solver=max-ent (docs/studies/exact-solvers.md)",
        "time_limit": "it limited solver=milp, which is removed as well",
    },
    ("attack", "draft-dp"): {
        "mode=cpsat-cells": "it reconstructs less than the default (docs/studies/exact-solvers.md)",
    },
}


class FormerNameWarning(FutureWarning):
    """A user typed the former name of a parameter, which still works in this release.

    It is a `FutureWarning`, because Python shows those to users, in contrast to a
    `DeprecationWarning`. The command line prints it as a note in one line.
    """


KINDS = ("protocol", "defense", "attack", "behaviour", "metric", "dataset")


def _registration(
    kind: str, described: str
) -> Callable[[Registry, str], Callable[[Registered], Registered]]:
    """Return the method of `Registry` that registers one kind, such as ``@register.defense``."""

    def method(self: Registry, name: str) -> Callable[[Registered], Registered]:
        return self._register(kind, name)

    article = "an" if described[0] == "a" else "a"
    method.__name__, method.__qualname__ = kind, f"Registry.{kind}"
    method.__doc__ = f"""Register {article} {described}.

        Parameters
        ----------
        name : str
            Name of the {kind} on the command line.

        Returns
        -------
        decorator : callable
            It registers the class or function and returns it. It raises `UsageError` if the name is
            reserved or already in use.
        """
    return method


@dataclass
class PluginImports:
    """How this process imports plug-ins.

    Attributes
    ----------
    describe : callable or None
        Set in a process that has the ground truth (`fedtrees.isolation.plugins`). ``describe(path,
        sha256)`` registers stand-ins for the attacks of a plug-in file without running the file
        here. It returns whether the file has any attacks.
    installed : callable or None
        The same for one attack of an installed package: it returns its stand-in.
    elsewhere : dict of str to str
        Path and sha256 of the plug-in files that `describe` registered.
    attacks_here : bool
        Whether this process runs attacks. All plug-in files are then run here.
    unprotected : bool
        Whether plug-in attacks run on systems that cannot restrict them.
    seconds : float
        Seconds that the import of a plug-in may take. 0 sets no limit.
    """

    describe: Callable[[str, str], bool] | None = None
    installed: Callable[[str], Any] | None = None
    elsewhere: dict[str, str] = field(default_factory=dict)
    attacks_here: bool = False
    unprotected: bool = False
    seconds: float = IMPORT_SECONDS


class Registry:
    """All classes and functions that have a name on the command line.

    Attributes
    ----------
    imports : PluginImports
        How this process imports plug-ins.

    Examples
    --------
    >>> from fedtrees import register
    >>> "fedtree-hist" in register.names("protocol")
    True
    """

    def __init__(self) -> None:
        self.imports = PluginImports()
        self._known: dict[str, dict[str, Callable[..., Any]]] = {kind: {} for kind in KINDS}
        self._origin: dict[tuple[str, str], str] = {}

    protocol = _registration("protocol", "protocol class")
    defense = _registration("defense", "defense class")
    attack = _registration("attack", "attack class")
    behaviour = _registration("behaviour", "behaviour, which replaces the honest class of a party")
    metric = _registration("metric", "metric class")
    dataset = _registration("dataset", "function that loads a dataset")

    def _register(self, kind: str, name: str) -> Callable[[Registered], Registered]:
        """Return a decorator that registers a class or function."""

        def mark(plugin: Registered) -> Registered:
            origin = f"{plugin.__module__}:{plugin.__qualname__}"
            if kind == "attack" and self.imports.describe and not self.imports.attacks_here:
                _check_loaded_as_attack(name, plugin)
            _check_name(kind, name)
            # A built-in class may be loaded later than a plug-in, and its name is taken even so.
            # The entry points are read without importing the classes.
            taken = next((e.value for e in _entries(kind) if e.name == name), origin)
            registered_origin = self._origin.setdefault((kind, name), taken)
            if registered_origin != origin:
                raise UsageError(
                    f"{kind} {name!r} is already defined by {registered_origin}; rename {origin}"
                )
            if isinstance(plugin, type):
                plugin.name = name  # type: ignore[attr-defined]
            self._known[kind][name] = plugin
            return plugin

        return mark

    def names(self, kind: str) -> list[str]:
        """Return all names of a kind, without importing the classes.

        Parameters
        ----------
        kind : {"protocol", "defense", "attack", "behaviour", "metric", "dataset"}
            Kind of the class or function.

        Returns
        -------
        names : list of str
            In alphabetical order.
        """
        return sorted({*self._known[kind], *(e.name for e in _entries(kind))})

    def is_ours(self, kind: str, name: str) -> bool:
        """Return whether a name belongs to this package only, so that no outside code is loaded.

        Parameters
        ----------
        kind : {"protocol", "defense", "attack", "behaviour", "metric", "dataset"}
            Kind of the class or function.
        name : str
            A registered name.

        Returns
        -------
        built_in : bool
            False if a plug-in or another package defines the name, or if it is unknown.
        """
        values = [e.value for e in _entries(kind) if e.name == name]
        return bool(values) and all(value.startswith(_OURS) for value in values)

    @property
    def is_built_in(self) -> bool:
        """Whether every name of a protocol, a defense, ... belongs to this package only.

        Facts about the registered names then depend on the source of fedtrees alone.
        """
        return not self.imports.elsewhere and all(
            self.is_ours(kind, name) for kind in KINDS for name in self.names(kind)
        )

    def get(self, kind: str, name: str) -> Callable[..., Any]:
        """Return the class or function with this name.

        Parameters
        ----------
        kind : {"protocol", "defense", "attack", "behaviour", "metric", "dataset"}
            Kind of the class or function.
        name : str
            A registered name.

        Returns
        -------
        plugin : class or function
            A dataset is a function, every other kind is a class.

        Raises
        ------
        UsageError
            If the name is unknown, if several packages register it, or if its package cannot be
            imported in time. For an unknown name, the message suggests the most similar known one.
        """
        if name not in self._known[kind]:
            entries = [entry for entry in _entries(kind) if entry.name == name]
            _check_one_package(kind, name, entries)
            for entry in entries[:1]:
                runs_here = self.imports.attacks_here or kind != "attack"
                stand_in = None if runs_here else self.imports.installed
                is_built_in = entry.value.startswith(_OURS)
                try:
                    with importing(
                        f"{kind} {name!r} of the package {_package_version(entry)}", is_built_in
                    ):
                        loaded = entry.load() if is_built_in or stand_in is None else stand_in(name)
                except ImportError as err:
                    raise UsageError(f"{kind} {name!r} ({entry.value}): {err}") from err
                self._known[kind].setdefault(name, loaded)
        if name not in self._known[kind]:
            raise UsageError(
                f"unknown {kind} {short(name)!r}{did_you_mean(name, self.names(kind))}"
            )
        return self._known[kind][name]

    def summary(self, kind: str, name: str) -> str:
        """Return the first line of the docstring of a class or function.

        Parameters
        ----------
        kind : {"protocol", "defense", "attack", "behaviour", "metric", "dataset"}
            Kind of the class or function.
        name : str
            A registered name.

        Returns
        -------
        summary : str
            Empty if there is no docstring.

        Raises
        ------
        UsageError
            As in `get`.
        """
        return (inspect.getdoc(self.get(kind, name)) or "").split("\n")[0]

    def make(self, kind: str, spec: Spec) -> Any:
        """Create the object that a spec describes.

        Parameters
        ----------
        kind : {"protocol", "defense", "attack", "behaviour", "metric", "dataset"}
            Kind of the class or function.
        spec : Spec
            A registered name with parameters.

        Returns
        -------
        instance : object
            Result of a call of the class or function with the parameters.

        Raises
        ------
        UsageError
            If the name or a parameter is unknown, if a parameter is missing, or if its value is
            refused. For a removed parameter or value, the error states why it was removed.
        """
        spec = with_present_names(kind, spec)
        _check_removed_options(kind, spec)
        maker = self.get(kind, spec.name)
        parameters = _parameters(maker)
        for key in spec.params:
            if key not in parameters:
                raise UsageError(
                    f"{kind} {spec.name!r} has no parameter {short(key)!r}"
                    f"{did_you_mean(key, parameters)}"
                )
        for key, parameter in parameters.items():
            if parameter.default is parameter.empty and key not in spec.params:
                raise UsageError(f"{kind} {spec.name!r} needs a value: {spec.name}[{key}=...]")
        try:
            return maker(**spec.params)
        except (ArithmeticError, TypeError, ValueError) as err:  # a UsageError is a ValueError
            raise UsageError(f"{short(spec, 200)}: {err}") from err


def with_present_names(kind: str, spec: Spec) -> Spec:
    """Replace former names, which still work in this release, and warn about them.

    Parameters
    ----------
    kind : str
        Kind of the class that the spec describes.
    spec : Spec
        A name with parameters, as typed by a user.

    Returns
    -------
    spec : Spec
        With the present names.

    Raises
    ------
    UsageError
        If a parameter is given by both of its names.
    """
    if present := _FORMER_NAMES.get((kind, spec.name)):
        warnings.warn(
            f"the {kind} {spec.name!r} is called {present!r}; the former name is removed in the "
            "next release",
            FormerNameWarning,
            stacklevel=3,
        )
        spec = replace(spec, name=present)
    former = _FORMER_PARAMETERS.get((kind, spec.name), {})
    if not former.keys() & spec.params.keys():
        return spec
    params: dict[str, Any] = {}
    for key, value in spec.params.items():
        name = former.get(key, key)
        if name != key:
            warnings.warn(
                f"{kind} {spec.name!r}: the parameter {key!r} is called {name!r}; the former name "
                "is removed in the next release",
                FormerNameWarning,
                stacklevel=3,
            )
        if name in params:
            raise UsageError(f"{kind} {spec.name!r} has two values of {name!r}; give one")
        params[name] = value
    return replace(spec, params=params)


def _check_removed_options(kind: str, spec: Spec) -> None:
    """Raise `UsageError` with the reason if a spec has a removed parameter or value."""
    removed = _REMOVED_OPTIONS.get((kind, spec.name), {})
    for key, value in spec.params.items():
        for option in (key, f"{key}={value}"):
            if option in removed:
                raise UsageError(
                    f"{kind} {spec.name!r}: {option} is removed, because {removed[option]}"
                )


def _check_name(kind: str, name: str) -> None:
    """Raise `UsageError` if a name is reserved or cannot be written in a suite."""
    if RESERVED.get(kind) == name or [s.name for s in parse_grid(name)] != [name]:
        raise UsageError(f"{kind} {name!r}: this name is reserved; choose another one")


def _check_loaded_as_attack(name: str, plugin: Any) -> None:
    """Refuse an attack of a plug-in file that was not recognised as a file of attacks."""
    if plugin.__module__ in sys.modules and plugin.__module__.startswith(PLUGIN):
        raise UsageError(
            f"attack {name!r} is registered by a file without the decorator @register.attack; "
            "write it there, so that only processes without the truth import the file"
        )


def _check_one_package(kind: str, name: str, entries: list[Any]) -> None:
    """Raise `UsageError` if installed packages register different things under one name."""
    if len({entry.value for entry in entries}) < 2:  # one installation may be listed twice
        return
    listed = " and ".join(f"{_package_version(entry)} ({entry.value})" for entry in entries)
    raise UsageError(
        f"{kind} {name!r} is registered by several installed packages: {listed}; uninstall all but "
        "one of them, or rename the entry point in one"
    )


def _package_version(entry: Any) -> str:
    """Return name and version of the installed package of an entry point."""
    package = getattr(entry, "dist", None)
    return "?" if package is None else f"{package.name} {package.version}"


@contextmanager
def importing(what: str, trusted: bool = False) -> Iterator[None]:
    """Limit the time in which a plug-in is imported (`PluginImports.seconds`).

    The process of attacks sets no limit, because the bench ends it when the limit is over.

    Parameters
    ----------
    what : str
        Name of the plug-in, for the error message.
    trusted : bool
        Whether it is a part of fedtrees, which has no limit.

    Yields
    ------
    None
        The block of the ``with`` statement, which imports the plug-in.

    Raises
    ------
    UsageError
        If the limit is over. If the limit of an enclosing block is over before, its `TimeLimit` is
        raised.
    """
    seconds = 0.0 if trusted or register.imports.attacks_here else register.imports.seconds
    begin = time.monotonic()
    try:
        with limited_if_possible(seconds):
            yield
    except TimeLimit:
        if not seconds or time.monotonic() - begin < seconds:
            raise
        raise UsageError(
            f"{what} was not imported within {seconds:g} seconds; look for a loop, a sleep or a "
            "request to a network at the top level of its file, or give a larger --time-limit"
        ) from None


@cache
def _parameters(maker: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a class or function."""
    return inspect.signature(maker).parameters


@cache  # what is installed does not change under a process, and reading it takes 5 ms
def _entries(kind: str) -> tuple[Any, ...]:
    """Return the entry points of a kind."""
    return tuple(entry_points(group=f"fedtrees.{kind}s"))


register = Registry()


def loaded_plugins(attacks: bool = True) -> tuple[tuple[str, str], ...]:
    """Return path and sha256 of every plug-in file in use.

    Parameters
    ----------
    attacks : bool
        Whether to include the files of attacks, which do not run in this process.

    Returns
    -------
    tuple of (str, str)
        Path and SHA-256 digest of each file.
    """
    plugins = (m for name, m in sys.modules.items() if name.startswith(PLUGIN))
    imported = ((str(m.__file__), str(vars(m)["__sha256__"])) for m in plugins)
    return (*imported, *register.imports.elsewhere.items()) if attacks else tuple(imported)


def load_plugin(path: str | Path, sha256: str = "") -> str:
    """Run a Python file so that its ``@register`` decorators take effect.

    In a process that has the ground truth, a file with attacks is not run
    (`PluginImports.describe`). A file with the same content as an earlier one is not run again.

    Parameters
    ----------
    path : str or Path
        The file, whose name ends in ``.py``.
    sha256 : str
        Expected SHA-256 digest of the file. By default, every content is accepted.

    Returns
    -------
    str
        SHA-256 digest of the file.

    Raises
    ------
    UsageError
        If the file does not exist, cannot be imported, does not have the given digest, or contains
        attacks and other classes.
    """
    file = Path(path).resolve()
    if not file.is_file():
        raise UsageError(f"plugin {str(path)!r} is not a file")
    # The file is read once: the code that runs has this digest.
    source = file.read_bytes()
    digest = hashlib.sha256(source).hexdigest()
    if sha256 not in ("", digest):
        raise UsageError(f"plugin {str(path)!r} was changed after it was loaded; start again")
    name = f"{PLUGIN}{digest[:12]}"
    # A plug-in with the same content is loaded once.
    if name in sys.modules or register.imports.elsewhere.get(str(file)) == digest:
        return digest
    runs_here = register.imports.attacks_here or b"attack" not in source
    describe = None if runs_here else register.imports.describe
    if describe is not None:
        with importing(f"plugin {str(path)!r}"):
            has_attacks = describe(str(file), digest)
        if has_attacks:
            register.imports.elsewhere[str(file)] = digest
            return digest
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"plugin {str(path)!r} is not a Python file; give a path ending in .py")
    module = importlib.util.module_from_spec(spec)
    vars(module)["__sha256__"] = digest
    sys.modules[name] = module
    try:
        with importing(f"plugin {str(path)!r}"):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as err:
        text = describe_error(err)  # it looks for the file among the modules
        del sys.modules[name]
        if isinstance(err, UsageError):
            raise
        raise UsageError(f"plugin {str(path)!r}: {text}") from err
    except BaseException:  # the user, or the limit of an enclosing block, ends it
        del sys.modules[name]
        raise
    return digest
