"""constraints.txt has a version of every requirement of pyproject.toml, and the requirement allows it."""

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support import ROOT

PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def requirements() -> list[Requirement]:
    """The direct requirements of toa and of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    return [Requirement(line) for lines in (project["dependencies"], *extras) for line in lines]


def constraints() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def ends(constraint: Requirement) -> list[Version]:
    """The version of a constraint, or the first and the last one of a range."""
    found = {part.operator: Version(part.version) for part in constraint.specifier}
    assert found.keys() in ({"=="}, {">=", "<="}), f"{constraint} must be one version, or a range with both ends"
    return list(found.values())


def disagreements(wanted: list[Requirement], pinned: list[Requirement]) -> Iterator[str]:
    """What is wrong with constraints, in words."""
    versions = {canonicalize_name(one.name): ends(one) for one in pinned}
    for requirement in wanted:
        name = canonicalize_name(requirement.name)
        if name not in versions:
            yield f"{requirement} has no constraint"
        for version in versions.get(name, ()):
            if version not in requirement.specifier:
                yield f"{requirement} does not allow {version}"


def test_every_requirement_has_a_constraint_that_it_allows() -> None:
    assert len(requirements()) > 40
    assert list(disagreements(requirements(), constraints())) == []


def test_a_constraint_outside_its_requirement_and_a_missing_one_are_noticed() -> None:
    wanted = [Requirement("torch>=2.6,<3"), Requirement("Triton>=3.2,<4"), Requirement("rich>=13,<16")]
    pinned = [Requirement("torch==3.0"), Requirement('triton>=3.1,<=3.9; sys_platform == "linux"')]
    assert list(disagreements(wanted, pinned)) == [
        "torch<3,>=2.6 does not allow 3.0",
        "Triton<4,>=3.2 does not allow 3.1",
        "rich<16,>=13 has no constraint",
    ]
    with pytest.raises(AssertionError, match="torch<3 must be one version, or a range with both ends"):
        list(disagreements(wanted, [Requirement("torch<3")]))


def test_no_constraint_is_written_twice() -> None:
    names = [canonicalize_name(constraint.name) for constraint in constraints()]
    assert [name for name in set(names) if names.count(name) > 1] == []


def test_requirements_end_at_a_major_version() -> None:
    """A bound within a major version would keep out the newest release."""
    for requirement in requirements():
        (last,) = (part.version for part in requirement.specifier if part.operator == "<")
        assert last.isdigit(), requirement


def test_torch_is_the_version_of_development_on_every_platform() -> None:
    (torch,) = (constraint for constraint in constraints() if constraint.name == "torch")
    # without a local label, so that it is the CPU build or the one for CUDA
    assert str(torch) == "torch==2.13.0"


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_direct_requirements_are_pinned_on_every_platform(python, platform) -> None:
    """A marker may leave other packages free, but no direct requirement that the platform installs."""
    systems = {"linux": "Linux", "darwin": "Darwin", "win32": "Windows"}
    place = {"python_version": python, "python_full_version": f"{python}.9"}
    place |= {"sys_platform": platform, "platform_system": systems[platform]}

    def applies(requirement: Requirement) -> bool:
        return requirement.marker is None or requirement.marker.evaluate(place)

    wanted = {canonicalize_name(one.name) for one in requirements() if applies(one)}
    assert wanted - {canonicalize_name(one.name) for one in constraints() if applies(one)} == set()


def test_every_package_that_the_installed_ones_require_has_a_constraint() -> None:
    """Otherwise a new release of a requirement of a requirement would change the environment."""
    pinned = {canonicalize_name(constraint.name) for constraint in constraints()}
    found: set[str] = set()
    waiting = [
        (canonicalize_name(one.name), one.extras) for one in map(Requirement, requires("toa") or ()) if in_dev(one)
    ]
    while waiting:
        name, extras = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for requirement in map(Requirement, requires(name) or ()):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""}):
                waiting.append((canonicalize_name(requirement.name), requirement.extras))
    assert len(found) > 80
    assert {name for name in found if name not in pinned and not re.match("nvidia|cuda", name)} == set()


def in_dev(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": "dev"})
