"""The docstrings of all public names are complete by the rules of numpydoc.

The test checks the functions, classes and objects of `fedtrees.__all__`, and the public methods and
properties of these classes, including methods that they inherit from another class of the project.
It also checks the modules that authors of protocols, defenses and attacks import: their public
functions and classes, and the public methods and properties that these classes define.
"""

import ast
import dataclasses
import enum
import inspect
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import FunctionType

import pytest
from numpydoc.docscrape import get_doc_object
from numpydoc.validate import Validator, validate

import fedtrees

#: Rules of `numpydoc.validate`: a docstring exists (GL08), its summary is a sentence in the
#: imperative mood (SS), its sections are known and in order (GL), parameters are those of the
#: signature, in order, with types and descriptions (PR), and results are described (RT, YD).
#: Rules on the layout and on sections that are optional in this project are left out.
RULES = {
    "GL01", "GL02", "GL05", "GL06", "GL07", "GL08",
    "SS01", "SS02", "SS03", "SS04", "SS05",
    "PR01", "PR02", "PR03", "PR04", "PR05", "PR07", "PR10",
    "RT01", "RT03", "YD01",
}  # fmt: skip

#: Modules that authors of protocols, defenses and attacks import, below `fedtrees`.
MODULES = (
    "core.attack", "core.channel", "core.claims", "core.composition", "core.defense",
    "core.deterministic_channels", "core.endpoint", "core.guarantee", "core.local_data",
    "core.messages", "core.network", "core.parameters", "core.party", "core.reasons",
    "core.registry", "core.requests", "core.results", "core.schema", "core.specs", "core.streams",
    "core.threat", "core.transcript", "core.view",
    "data.dataset",
    "experiments.federation", "experiments.plan", "experiments.suite",
    "messages.additive", "messages.aggregation", "messages.captured", "messages.forests",
    "messages.horizontal", "messages.lightgbm", "messages.models", "messages.networks",
    "messages.regression", "messages.vertical",
    "metrics.leaf_counts", "metrics.metric", "metrics.victims_rows",
    "model_audit.audit", "model_audit.exposure", "model_audit.readers", "model_audit.scrub",
    "privacy.noise",
    "protocols.base", "protocols.horizontal.histogram_parties",
    "protocols.horizontal.histogram_protocols",
)  # fmt: skip


class PublicObject(Validator):
    """Docstring and signature of a function, class, property or object."""

    def __init__(self, obj_name):
        super().__init__(get_doc_object(obj_name, config={"show_class_members": False}))

    @property
    def signature_parameters(self):
        """Parameters that a section Parameters has to describe.

        Members of an enumeration and interfaces (`typing.Protocol`) are not constructed. Fields of
        a dataclass or named tuple may be described under Attributes. A base class may describe the
        parameters that it defines.
        """
        if not inspect.isclass(self.obj):
            return super().signature_parameters
        if issubclass(self.obj, enum.Enum) or getattr(self.obj, "_is_protocol", False):
            return ()
        names = super().signature_parameters
        if type(self.obj).__call__ is not type.__call__:  # a metaclass that passes all arguments on
            constructor = self.obj.__init__
            names = (
                ()
                if constructor is object.__init__
                else PublicObject(constructor).signature_parameters
            )
        has_fields = dataclasses.is_dataclass(self.obj) or issubclass(self.obj, tuple)
        described = described_by(self.obj, "Attributes") if has_fields else set()
        for base in self.obj.__mro__[1:]:
            described |= described_by(base, "Attributes") | described_by(base, "Parameters")
        described -= {*self.doc_parameters}  # a class may describe inherited parameters again
        return tuple(name for name in names if name not in described and not name.startswith("_"))

    @property
    def method_returns_something(self):
        """Whether a section Returns is required.

        The summary is enough for a method without arguments that starts with "Return".
        """
        if not self.signature_parameters and self.summary.startswith("Return "):
            return False
        return super().method_returns_something


def described_by(cls, section):
    """Return the names that a section of the docstring of a class of the project describes."""
    if not (cls.__doc__ or "").strip() or not cls.__module__.startswith("fedtrees."):
        return set()
    entries = get_doc_object(cls, config={"show_class_members": False})[section]
    return {name for names, kind, text in entries if kind and text for name in names.split(", ")}


def members_of(cls):
    """Yield the public methods and properties of a class that the project defines, with names."""
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items() if base.__module__.startswith("fedtrees.") else ():
            member = getattr(value, "__func__", value)  # of a class or static method
            kinds = FunctionType | property | cached_property
            if not name.startswith("_") and isinstance(member, kinds):
                yield name, member


def public_objects():
    """Return the objects of `fedtrees.__all__` and of `MODULES`, and members of classes, by name.

    An object such as `fedtrees.register` is replaced by its class.
    """
    objects = {}
    for name in sorted({*fedtrees.__all__} - {"__version__"}):
        public = getattr(fedtrees, name)
        objects[name] = public = public if callable(public) else type(public)
        if inspect.isclass(public):
            objects |= {f"{name}.{member}": value for member, value in members_of(public)}
    for module in MODULES:
        for name, public in defined_in(import_module(f"fedtrees.{module}")):
            objects[f"{module}.{name}"] = public
            if inspect.isclass(public):
                members = [member for member in members_of(public) if member[0] in vars(public)]
                objects |= {f"{module}.{name}.{member}": value for member, value in members}
    return objects


def defined_in(module):
    """Yield the public functions and classes that a module defines, with their names."""
    for name, value in vars(module).items():
        # The second name of an object, such as a former one, is not documented again.
        if name.startswith("_") or getattr(value, "__name__", "") != name:
            continue
        is_definition = inspect.isclass(value) or isinstance(inspect.unwrap(value), FunctionType)
        if is_definition and value.__module__ == module.__name__:
            yield name, value


def imported_modules(path):
    """Return the modules below `fedtrees` that define the names that a file imports."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedtrees."):
            source = import_module(node.module)
            objects = [getattr(source, name.name) for name in node.names]
            modules |= {getattr(value, "__module__", node.module) for value in objects}
    return {module.removeprefix("fedtrees.") for module in modules}


def findings(public):
    """Return the violations of the rules in the docstring of an object, one sentence each."""
    errors = validate(public, validator_cls=PublicObject)["errors"]
    return [f"{code}: {sentence}" for code, sentence in errors if code in RULES]


PUBLIC_OBJECTS = public_objects()


@pytest.mark.parametrize("name", PUBLIC_OBJECTS)
def test_a_public_docstring_is_complete(name):
    assert findings(PUBLIC_OBJECTS[name]) == []


ROOT = Path(__file__).parents[1]
#: Code that the documentation shows to authors of plug-ins.
SHOWN_CODE = [
    *sorted((ROOT / "docs/examples").glob("*.py")),
    *sorted((ROOT / "docs/tutorials").glob("*.py")),
    *sorted((ROOT / "fedtrees/cli/templates").glob("*.py")),
    *sorted(
        (ROOT / "tests/bench/plugins").glob("class_share*.py")
    ),  # shown in docs/how-to/extend.md
]


@pytest.mark.parametrize("path", SHOWN_CODE, ids=lambda path: path.name)
def test_modules_that_the_documentation_imports_are_checked(path):
    assert imported_modules(path) <= {*MODULES}


class Example:
    """A class for the tests of this module."""

    def incomplete(self, n, *, unit):
        """Return a length.

        Parameters
        ----------
        n
            Number of units.
        size : int
            No parameter of the method.
        """
        return n, unit

    def complete(self, n):
        """Compute a length.

        Parameters
        ----------
        n : int
            Number of units.

        Returns
        -------
        length : int
            In bytes.
        """
        return n

    def short(self):
        """Return the number of units."""
        return 1

    def without_result(self):
        """Compute the number of units."""
        return 1

    def undocumented(self):
        return 1


@pytest.mark.parametrize(
    ("method", "codes"),
    {
        "incomplete": ["PR01", "PR02", "PR04", "RT01"],
        "complete": [],
        "short": [],
        "without_result": ["RT01"],
        "undocumented": ["GL08"],
    }.items(),
)
def test_incomplete_docstrings_are_reported(method, codes):
    sentences = findings(getattr(Example, method))
    assert [sentence.partition(":")[0] for sentence in sentences] == codes


def test_fields_may_be_documented_as_attributes_of_a_dataclass():
    @dataclasses.dataclass
    class Box:
        """A box.

        Attributes
        ----------
        width : int
            In metres.
        """

        width: int
        height: int

    Box.__module__ = "fedtrees.box"  # attributes of other projects are not read
    (sentence,) = findings(Box)
    assert sentence == "PR01: Parameters {'height'} not documented"
