"""Which Python packages are here, which are missing, and what for. Nothing is imported."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from dse.doctor._types import Finding, PackageFacts, Status, Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


@dataclass(frozen=True, slots=True)
class Package:
    """One package that `dse` uses.

    Attributes:
        names: Names on the package index, any of which serves; the first is recommended.
        needed_for: What uses it.
        extra: Extra that brings it; empty for what everybody has.
        install: Command, where no extra brings it.
    """

    names: tuple[str, ...]
    needed_for: str
    extra: str = ""
    install: str = ""


_TORCHREC = "see docs/torchrec.md: its versions belong together, and pip needs --no-deps"

PACKAGES = (
    Package(("numpy",), "everything"),
    Package(("scipy",), "everything"),
    Package(("pydantic",), "reading models, platforms and search spaces"),
    Package(("pyyaml",), "reading models, platforms and search spaces"),
    Package(("pint",), "units in files"),
    Package(("typer",), "the command line"),
    Package(("rich",), "the command line"),
    Package(("optuna",), "dse run"),
    Package(("pandas",), "tables of trials"),
    Package(("pyarrow",), "trials.parquet"),
    Package(("plotly",), "the report"),
    Package(("jinja2",), "the report"),
    Package(("xgboost-cpu", "xgboost"), "fitted kernels of GPUs"),
    Package(("msgspec",), "dse trace"),
    Package(
        ("torch",),
        "dse calibrate, validate, replay, trace capture; sampler gp",
        extra="validate",
    ),
    Package(("ray",), "dse run --executor ray", extra="ray"),
    Package(("psycopg",), "dse run --storage postgresql://…", extra="postgresql"),
    Package(("pymysql",), "dse run --storage mysql://…", extra="mysql"),
    Package(
        ("torchrec",),
        "plans as live objects of TorchRec; JSON needs none",
        install=_TORCHREC,
    ),
    Package(
        ("fbgemm-gpu", "fbgemm-gpu-cpu"),
        "TorchRec",
        install=_TORCHREC,
    ),
)


def installed_version(name: str) -> str | None:
    """Returns the version of an installed package; None if there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def package_facts(
    version_of: Callable[[str], str | None] = installed_version,
    requirements: Iterable[str] | None = None,
) -> tuple[PackageFacts, ...]:
    """Returns what is installed.

    Args:
        version_of: Version of an installed package, None if there is none.
        requirements: Lines of `dse`'s own requirements; read from its installation if omitted.
    """
    wanted = dict(_wanted(_requirements() if requirements is None else requirements))
    return tuple(_facts(package, version_of, wanted) for package in PACKAGES)


def package_findings(packages: Iterable[PackageFacts]) -> Iterator[Finding]:
    """Yields one line for each package."""
    for package in packages:
        if package.version is None:
            status = Status.BROKEN if package.required else Status.MISSING
            text = f"not installed; needed for {package.needed_for}"
        elif not package.fits:
            status = Status.BROKEN if package.required else Status.WARNING
            text = f"{package.version}, wanted {package.wanted}; for {package.needed_for}"
        else:
            status, text = Status.OK, package.version
        step = "" if status is Status.OK else package.install
        yield Finding(Topic.PACKAGES, package.name, status, text, step)


def _facts(
    package: Package, version_of: Callable[[str], str | None], wanted: dict[str, str]
) -> PackageFacts:
    found = {name: version_of(name) for name in package.names}
    name = next((name for name in package.names if found[name]), package.names[0])
    version, specifier = found[name], wanted.get(name, "")
    required = not (package.extra or package.install)
    install = package.install or (
        f"pip install '.[{package.extra}]' in the project's folder"
        if package.extra
        else f"pip install '{name}{specifier}'"
    )
    return PackageFacts(
        name=name,
        version=version,
        required=required,
        wanted=specifier,
        fits=version is not None and _fits(version, specifier),
        needed_for=package.needed_for,
        install=install,
    )


def _requirements() -> list[str]:
    try:
        return metadata.requires("dse") or []
    except metadata.PackageNotFoundError:  # run from its folder, without installing
        return []


def _wanted(requirements: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields names with the versions that are asked for, such as `numpy`, `>=1.26`."""
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ImportError:  # it comes with Optuna
        return
    for line in requirements:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        yield requirement.name.lower().replace("_", "-"), str(requirement.specifier)


def _fits(version: str, specifier: str) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion

    try:
        # Builds such as 2.13.0+cpu are the same version.
        return SpecifierSet(specifier).contains(version, prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return True
