"""Every locked package installs on the first Python that pyproject.toml names, not only on that of the maintainers."""

from importlib import metadata

from packaging.specifiers import SpecifierSet

FIRST = "3.11.0"


def refuses(requires_python: str) -> bool:
    return not SpecifierSet(requires_python).contains(FIRST)


def test_every_package_takes_the_first_python() -> None:
    about = [each.metadata for each in metadata.distributions()]
    packages = {each["Name"]: each["Requires-Python"] for each in about if "Requires-Python" in each}
    assert len(packages) > 100, "the locked packages are not installed"
    assert {name: needs for name, needs in packages.items() if refuses(needs)} == {}


def test_a_package_for_a_later_python_is_found() -> None:
    assert refuses(">=3.11.5")
    assert not refuses(">=3.9")
