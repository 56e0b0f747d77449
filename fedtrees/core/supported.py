"""Versions of other frameworks with which this release was tested.

The engine reproduces XGBoost, captures decode the bytes of four frameworks, and the advisor names
settings of deployed systems. Each of these follows the source code of certain versions. Commands
print these versions, so that a user of another version knows that it was not compared.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tested:
    """Range of versions of one package.

    Attributes
    ----------
    name : str
        Name of the framework.
    package : str
        Its name on the package index.
    oldest, newest : str
        First and last series that were tested, such as ``3.0`` and ``3.2``. Versions between them
        count as tested.
    remark : str
        Difference of untested versions, as a sentence. Empty: nothing is known.
    """

    name: str
    package: str
    oldest: str
    newest: str
    remark: str = ""

    def covers(self, version: str) -> bool:
        """Return whether a version is in the range; patch releases count as their series.

        Examples
        --------
        >>> xgboost = TESTED["xgboost"]
        >>> [xgboost.covers(v) for v in ("2.1.4", "3.0.0", "3.2.1", "3.10.0", "3.4.1")]
        [False, True, True, False, False]
        """
        low, here, high = map(_series, (self.oldest, version, self.newest))
        return low <= here <= high

    @property
    def range(self) -> str:
        """The range in words.

        Examples
        --------
        >>> TESTED["xgboost"].range
        'XGBoost 3.0 to 3.2'
        """
        to = "" if self.oldest == self.newest else f" to {self.newest}"
        return f"{self.name} {self.oldest}{to}"


def _series(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version. A part that is not a number counts as 0."""
    parts = [*version.split("."), "0"][:2]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)


#: By package. `tests/test_versions.py` compares the versions with the declared dependencies.
TESTED = {
    tested.package: tested
    for tested in (
        Tested(
            "XGBoost", "xgboost", "3.0", "3.2",
            "XGBoost 3.3 sketches columns by another rule, and the wheels of 3.4 have neither "
            "column split nor the federated server",
        ),
        Tested("LightGBM", "lightgbm", "4.6", "4.7"),
        Tested("NVFlare", "nvflare", "2.9", "2.9"),
        Tested("Flower", "flwr", "1.41", "1.42"),
        Tested("Opacus", "opacus", "1.6", "1.6"),
        Tested("python-paillier", "phe", "1.5", "1.5"),
    )
}  # fmt: skip
#: Packages of each deployed system (`--deployed`). Settings of SecretFlow follow its documentation.
SYSTEMS = {
    "xgboost": ("xgboost",),
    "nvflare": ("nvflare", "xgboost"),
    "flower": ("flwr", "xgboost"),
    "secretflow": (),
}


def name_versions(packages: tuple[str, ...]) -> str:
    """Return a sentence that names the tested versions of packages.

    Examples
    --------
    >>> name_versions(("flwr", "xgboost"))
    'Tested with Flower 1.41 to 1.42 and XGBoost 3.0 to 3.2.'
    >>> name_versions(())
    'Not tested with any version.'
    """
    ranges = [TESTED[package].range for package in packages]
    return f"Tested with {' and '.join(ranges)}." if ranges else "Not tested with any version."


def untested(package: str, version: str) -> str:
    """Return why a version of a framework is not covered, and an empty text if it is.

    Examples
    --------
    >>> print(untested("flwr", "1.30.0"))
    Flower 1.30.0 was not tested; this release was tested with Flower 1.41 to 1.42
    >>> untested("xgboost", "3.2.0")
    ''
    """
    tested = TESTED.get(package)
    if tested is None or not version or tested.covers(version):
        return ""
    remark = f" ({tested.remark})" if tested.remark else ""
    return (
        f"{tested.name} {version} was not tested; this release was tested with {tested.range}"
        f"{remark}"
    )
