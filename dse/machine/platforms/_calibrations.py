"""Fitted models of a platform: finding, reading and adapting them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
import hashlib
import math
from pathlib import Path
from typing import TYPE_CHECKING

from dse._io.reading import read_bytes
from dse._text.suggest import hint
from dse.config import DocumentKind, builtin_folder, read_source
from dse.errors import ConfigError, UnknownNameError
from dse.machine.collectives import curves_in_use
from dse.machine.fits import NEWEST, is_version, version_parts
from dse.machine.platforms._calibration_file import CalibrationFile, calibrations_from_text
from dse.machine.platforms._moved_calibrations import transferred_curves
from dse.machine.platforms._provenance import CalibrationSource, PlatformFact

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dse.machine import LinkSpec
    from dse.machine.fits import (
        CollectiveCalibration,
        HeldOut,
        KernelCalibration,
        NetworkCalibration,
    )
    from dse.machine.platforms._schema import CalibrationBlock

#: Folder of fitted models next to the built-in platforms.
_FOLDER = "calibrations"


@dataclass(frozen=True, slots=True)
class UsedCalibration:
    """A file of fitted models with what a platform says about it."""

    block: CalibrationBlock
    source: CalibrationSource
    content: CalibrationFile

    def kernels(self) -> Iterator[KernelCalibration]:
        """Yields its kernels as the platform uses them."""
        for kernel in self.content.kernels:
            precisions = kernel.precisions
            if self.block.precisions is not None:
                precisions = tuple(self.block.precisions)
            yield replace(
                kernel,
                precisions=precisions,
                spread=math.hypot(kernel.spread, self.block.added_spread),
                transferred=self.block.transferred,
            )

    def collectives(self, link: LinkSpec) -> Iterator[CollectiveCalibration]:
        """Yields its collectives as the platform uses them.

        Those of another device move by the ratio of the figures of both links.

        Args:
            link: The platform's, without calibrations.
        """
        curves = self.content.collectives
        if self.block.transferred:
            curves = transferred_curves(curves, self.content.link, link)
        for collective in curves:
            yield replace(
                collective,
                spread=math.hypot(collective.spread, self.block.added_spread),
                transferred=self.block.transferred,
            )

    def networks(self) -> Iterator[NetworkCalibration]:
        """Yields its network models as the platform uses them."""
        for network in self.content.networks:
            yield replace(
                network,
                spread=math.hypot(network.spread, self.block.added_spread),
                transferred=self.block.transferred,
            )


def use_calibrations(
    blocks: Sequence[CalibrationBlock],
    platform_path: str,
    kept: Sequence[CalibrationSource],
    shown: str,
) -> tuple[UsedCalibration, ...]:
    """Reads the files that a platform names.

    Args:
        blocks: What the platform says.
        platform_path: Path of the platform, for files in its folder; empty where none is read.
        kept: Texts that a study keeps; they win over files.
        shown: What the platform's file is called in messages.

    Raises:
        ConfigError: A file is missing or wrong.
    """
    used = []
    for block in blocks:
        source = _source(block.file, platform_path, kept, shown)
        content = (
            calibrations_from_text(source.text, source.path)
            if source.text
            else _builtin(_builtin_path(block.file))
        )
        used.append(UsedCalibration(block, source, content))
    return tuple(used)


def builtin_calibrations() -> tuple[tuple[str, CalibrationFile], ...]:
    """Returns every built-in file of fitted models, by name."""
    return tuple((path.stem, _builtin(path)) for path in sorted(_builtin_folder().glob("*.json")))


def kernel_facts(used: Sequence[UsedCalibration]) -> Iterator[PlatformFact]:
    """Yields one figure for each fitted operator: its held-out error and where it comes from."""
    for calibration in used:
        for kernel in calibration.kernels():
            words = ["/".join(kernel.precisions) or "all"]
            if kernel.implementation:
                words.append(kernel.implementation)
            yield _fact(f"{kernel.op} ({', '.join(words)})", calibration.source.name, kernel)


def network_facts(used: Sequence[UsedCalibration]) -> Iterator[PlatformFact]:
    """Yields one figure for each fitted network: its held-out error and where it comes from."""
    for calibration in used:
        for network in calibration.networks():
            name = f"{'/'.join(network.ops)} between nodes"
            yield _fact(name, calibration.source.name, network)


def collective_facts(links: Sequence[LinkSpec]) -> Iterator[PlatformFact]:
    """Yields one figure for each measured collective that counts, with the version of its library.

    Args:
        links: Of a platform, the default first.
    """
    for link in links:
        for one in curves_in_use(link):
            version = f", NCCL {one.nccl}" if one.nccl else ""
            yield _fact(f"{one.op} on {one.ranks} ranks{version}", one.provenance.name, one)


def check_versions(links: Sequence[LinkSpec]) -> None:
    """Refuses a version of the communication library that was not measured.

    A link without curves has no use for one; some link of the platform must.

    Raises:
        UnknownNameError: No curve is of the version that its link names.
    """
    named = [link for link in links if link.nccl != NEWEST]
    measured = [link for link in named if link.calibrations]
    if named and not measured:
        raise UnknownNameError(
            f"links.{named[0].name}.nccl: collectives of this platform are not measured, so there "
            "is no version to choose; leave it out, or fit measurements with `dse fit collective`"
        )
    for link in measured:
        if not any(is_version(one.nccl, link.nccl) for one in link.calibrations):
            versions = {one.nccl for one in link.calibrations if one.nccl}
            known = sorted(versions, key=version_parts, reverse=True)
            raise UnknownNameError(
                f"links.{link.name}.nccl: NCCL {link.nccl} was not measured; there are "
                f"{', '.join(known) or 'curves of unknown versions only'}"
            )


def _fact(
    name: str, file: str, model: KernelCalibration | CollectiveCalibration | NetworkCalibration
) -> PlatformFact:
    source = model.provenance.source
    if model.transferred:
        source = f"{model.transferred}; {source}"
    return PlatformFact(
        f"calibration.{name}",
        _error(model.held_out),
        "transferred" if model.transferred else "fitted",
        f"{file}: {source}",
        model.provenance.as_of,
    )


def _error(held_out: HeldOut) -> str:
    return (
        f"held-out error {100 * held_out.gmae:.1f} % (geometric mean), "
        f"{100 * held_out.mape:.1f} % (mean) on {held_out.points} points"
    )


def _source(
    name: str, platform_path: str, kept: Sequence[CalibrationSource], shown: str
) -> CalibrationSource:
    for source in kept:
        if source.name == name:
            return source
    builtin = _builtin_source(name)
    if builtin is not None:
        return builtin
    if not name.endswith(".json"):
        names = [path.stem for path in _builtin_folder().glob("*.json")]
        raise UnknownNameError(
            f"{shown}: no built-in calibration is called `{name}`; {hint(name, names)}; "
            "a file of your own ends in .json and lies in the platform's folder"
        )
    if not platform_path:
        raise ConfigError(
            f"{shown}: the text of calibration `{name}` is not kept with the platform; run the "
            "study again"
        )
    own = Path(platform_path).parent / name
    if not own.is_file():
        raise ConfigError(
            f"{shown}: calibration {own}: no such file; put it into the platform's "
            "folder or take the line out"
        )
    read = read_source(own)
    return CalibrationSource(name, str(own), read.sha256, read.text)


def _builtin_folder() -> Path:
    return builtin_folder(DocumentKind.PLATFORM) / _FOLDER


def _builtin_path(name: str) -> Path:
    return _builtin_folder() / f"{name}.json"


# Built-in files do not change while a process runs, and several platforms share them.
@lru_cache(maxsize=64)
def _builtin_source(name: str) -> CalibrationSource | None:
    """Returns the source of a built-in file; None if there is none of this name."""
    path = _builtin_path(name)
    if not path.is_file():
        return None
    digest = hashlib.sha256(read_bytes(path)).hexdigest()
    return CalibrationSource(name, f"platforms/{_FOLDER}/{path.name}", digest, "")


@lru_cache(maxsize=64)
def _builtin(path: Path) -> CalibrationFile:
    source = read_source(path)
    return calibrations_from_text(source.text, str(path))
