import pytest

from fedtrees.core.errors import UsageError
from fedtrees.core.registry import Registry, _entries, load_plugin, register
from fedtrees.core.specs import Spec
from fedtrees.experiments.suite import Grid


def test_names_come_with_the_installation():
    assert {"fedtree-hist", "nvflare-hist"} <= set(register.names("protocol"))
    assert {"split-only", "laplace-hist", "leaf-rounding"} <= set(register.names("defense"))
    assert {"timberstrike", "random-leaf"} <= set(register.names("attack"))


def test_unknown_names_and_parameters_are_corrected():
    with pytest.raises(UsageError, match="unknown defense 'split-onyl'; did you mean 'split-only'"):
        register.make("defense", Spec("split-onyl"))
    with pytest.raises(UsageError, match="no parameter 'epsilom'; did you mean 'epsilon'"):
        register.make("defense", Spec("laplace-hist", {"epsilom": 1}))
    with pytest.raises(UsageError, match="epsilon"):
        register.make("defense", Spec("laplace-hist"))


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "much", True])
def test_a_refused_value_is_shown(value):
    with pytest.raises(UsageError, match=r"epsilon must be a finite number > 0; got"):
        register.make("defense", Spec("laplace-hist", {"epsilon": value}))


def test_a_name_belongs_to_one_class():
    names = Registry()

    class First:
        pass

    class Second:
        pass

    names.attack("twin")(First)
    names.attack("twin")(First)  # the same one again is no clash
    with pytest.raises(UsageError, match="already defined"):
        names.attack("twin")(Second)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("protocol", "fedtree-hist"),
        ("defense", "split-only"),
        ("attack", "timberstrike"),
        ("behaviour", "lying-count"),
        ("metric", "records"),
    ],
)
def test_a_plugin_cannot_take_the_name_of_a_built_in_that_is_not_loaded_yet(kind, name):
    names = Registry()
    with pytest.raises(UsageError, match=f"{kind} '{name}' is already defined by fedtrees"):
        getattr(names, kind)(name)(type("Mine", (), {}))
    assert names.get(kind, name).__module__.startswith("fedtrees.")


@pytest.mark.parametrize(("kind", "name"), [("defense", "none"), ("attack", "all")])
def test_a_plugin_cannot_take_a_name_that_means_something_else_in_a_suite(kind, name):
    with pytest.raises(UsageError, match="this name is reserved"):
        getattr(Registry(), kind)(name)(type("Mine", (), {}))


@pytest.mark.parametrize("kind", ["protocol", "defense", "attack", "behaviour", "metric"])
def test_every_built_in_registers_itself_under_the_name_that_it_is_installed_with(kind):
    for name in register.names(kind):
        thing = register.get(kind, name)
        (entry,) = [e for e in _entries(kind) if e.name == name]
        assert f"{thing.__module__}:{thing.__qualname__}" == entry.value


def test_a_plugin_file_registers_its_extensions(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from fedtrees.core.defense import Defense\n"
        "from fedtrees.core.registry import register\n"
        "@register.defense('plugin-test-defense')\n"
        "class Mine(Defense):\n"
        "    pass\n"
    )
    digest = load_plugin(file)
    assert load_plugin(file) == digest
    assert register.get("defense", "plugin-test-defense").name == "plugin-test-defense"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("import nothing_of_that_name", "ModuleNotFoundError"),
        ("def (", "SyntaxError"),
        (None, "is not a file"),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_refused_with_the_reason(tmp_path, content, reason):
    file = tmp_path / "broken.py"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError, match=reason):
        load_plugin(file)


def test_a_former_name_of_a_parameter_works_with_a_warning():
    with pytest.warns(FutureWarning, match="the parameter 'most' is called 'max_level'"):
        attack = register.make("attack", Spec("timberstrike", {"most": "values", "chains": 2}))
    assert attack == register.make(
        "attack", Spec("timberstrike", {"max_level": "values", "chains": 2})
    )
    with (
        pytest.warns(FutureWarning, match="most"),
        pytest.raises(UsageError, match="two values of"),
    ):
        register.make("attack", Spec("joint", {"max_level": "values", "most": "values"}))


def test_the_former_name_of_an_attack_works_with_a_warning():
    with pytest.warns(FutureWarning, match="'told-bins' is called 'bucket-reading'"):
        attack = register.make("attack", Spec("told-bins"))
    assert attack == register.make("attack", Spec("bucket-reading"))
    with pytest.warns(FutureWarning, match="bucket-reading"):
        grid = Grid.parse({"protocols": ["federboost-v"], "attacks": ["told-bins"]})
    assert grid.attacks == (Spec("bucket-reading"),)
    assert "told-bins" not in register.names("attack")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (Spec("timberstrike", {"solver": "milp"}), "solver=milp is removed, because it"),
        (Spec("timberstrike", {"time_limit": 2}), "time_limit is removed, because it limited"),
        (Spec("draft-dp", {"mode": "cpsat-cells"}), "mode=cpsat-cells is removed, because it"),
    ],
)
def test_a_removed_option_is_an_error_that_states_the_reason(spec, reason):
    with pytest.raises(UsageError, match=reason):
        register.make("attack", spec)


def test_an_error_in_a_plug_in_file_names_its_line(tmp_path):
    file = tmp_path / "broken.py"
    file.write_text("import numpy as np\n\nrows = {}\nrows['x']\n")
    with pytest.raises(UsageError, match=r"KeyError: 'x' \(broken.py, line 4: rows\['x'\]\)"):
        load_plugin(file)
