"""The platforms that are shipped, as the tables of docs/platforms.md.

Usage:
    python benchmarks/platform_tables.py [--write docs/platforms.md]

Everything is read from `platforms/*.yaml`; without `--write` the page is printed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dse.machine.platforms import FAMILIES, fitted_families, list_platforms, load_platform

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dse.machine.platforms import Platform

#: Columns of arithmetic, with the rates that stand there: the first that the device has.
_RATES = {
    "FP32": ("fp32",),
    "TF32": ("tf32",),
    "BF16 or FP16": ("bf16", "fp16"),
    "FP8": ("fp8",),
    "NVFP4": ("nvfp4",),
}

_HEAD = """# Platforms

The built-in [devices](#devices), [which of their times are measured](#what-is-measured),
[networks](#networks) and [prices](#offers).

Every figure of a platform has an origin (`datasheet`, `measured`, `fitted`, `assumed`) and a
source in its file, `platforms/<name>.yaml`; `dse doctor --platform NAME` prints them. A platform
of your own can be a file like these, a mapping of what differs from one of them (in a search
space), or the result of `dse calibrate` ([formats.md](formats.md#platform)).
"""

_DEVICES = """## Devices

Rates are dense, per device; links are per device and direction. Rates of MI300X and MI325X are for
the clocks that AMD measured under sustained matrix products, not for the boost clock of the
datasheets. For MI355X there is no such measurement; its products are slowed by an assumed power.
NVIDIA has no public datasheet for H20 and H800, so their figures are those that others publish,
with the origin `assumed`.
"""

_MODELS = """## What is measured

Times of kernels and collectives come from measurements of the device (with the error on points
that were left out of the fit), from those of another device (with a wider interval), or from
formulas ([method.md](method.md)).
"""

_FABRICS = """## Networks

Networks of clouds are named by their kind and the rate of a node, InfiniBand by the rate of a
card. `--network NAME` chooses one. Latencies are assumptions if the source in the file says so.
"""

_OFFERS = """## Offers

These are the list prices in use; superseded ones are in the files. Prices change often; set your
own with `--set 'NAME.price=2.10 USD/GPU/h'` ([decisions.md](decisions.md#what-if)). Instances
smaller than a node serve only jobs with at most their number of devices.
"""

_END = (
    "Written by `python benchmarks/platform_tables.py --write docs/platforms.md`; do not edit.\n"
)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _rate(platform: Platform, *names: str) -> str:
    peak = platform.document.device.peak
    rates = [getattr(peak, name, None) for name in names]
    return next((_number(rate / 1e12) for rate in rates if rate is not None), "–")


def _bandwidth(bytes_per_s: float) -> str:
    if bytes_per_s < 1e12:
        return f"{_number(bytes_per_s / 1e9)} GB/s"
    return f"{_number(bytes_per_s / 1e12)} TB/s"


def _device_row(platform: Platform) -> list[str]:
    document = platform.document
    link = document.links[document.default_link]
    nodes = f"{document.pod.nodes} × " if document.pod else ""
    return [
        f"`{platform.name}`",
        f"{nodes}{platform.devices_per_node} × {platform.device.name}",
        *(_rate(platform, *names) for names in _RATES.values()),
        f"{document.device.memory.capacity / 2**30:.0f} GiB",
        _bandwidth(document.device.memory.bandwidth),
        f"{document.default_link}, {_number(link.bandwidth / 1e9)} GB/s",
    ]


def _model_row(platform: Platform) -> list[str]:
    fitted = {family.family: family for family in fitted_families(platform)}
    cells = []
    for name in FAMILIES:
        family = fitted.get(name)
        if family is None:
            cells.append("formulas")
        elif family.transferred:
            cells.append("another device")
        else:
            cells.append(f"measured, {100 * family.gmae:.1f} %")
    return [f"`{platform.name}`", *cells]


def _fabric_rows(platforms: Sequence[Platform]) -> list[list[str]]:
    found: dict[tuple[str, ...], list[str]] = {}
    for platform in platforms:
        for name, block in platform.document.networks.items():
            gigabits = _number(8e-9 * block.bandwidth)
            key = (
                f"`{name}`",
                f"{block.nics} × {gigabits} Gbit/s",
                f"{1e6 * block.latency:.0f} µs",
                block.origin,
            )
            found.setdefault(key, []).append(f"`{platform.name}`")
    return [[*key, ", ".join(names)] for key, names in sorted(found.items())]


def _offer_rows(platforms: Sequence[Platform]) -> list[list[str]]:
    return [
        [
            offer.provider,
            offer.instance,
            f"{offer.devices} × `{platform.name}`",
            f"{offer.usd_per_hour:.2f}",
            offer.basis.replace("_", " "),
            ", ".join(f"`{name}`" for name in offer.networks) or "–",
            offer.as_of,
        ]
        for platform in platforms
        for offer in sorted(
            platform.offers, key=lambda one: (-one.devices, one.basis, one.usd_per_hour)
        )
        if not offer.superseded
    ]


def page() -> str:
    """Returns the text of docs/platforms.md."""
    platforms = [load_platform(name) for name in list_platforms()]
    devices = _table(
        (
            "platform",
            "devices",
            *(f"{name} TFLOP/s" for name in _RATES),
            "memory",
            "bandwidth",
            "link",
        ),
        map(_device_row, platforms),
    )
    models = _table(("platform", *FAMILIES), map(_model_row, platforms))
    fabrics = _table(
        ("network", "cards of a node", "latency", "origin", "platforms"), _fabric_rows(platforms)
    )
    offers = _table(
        ("provider", "instance", "devices", "USD/h", "basis", "networks", "as of"),
        _offer_rows(platforms),
    )
    parts = (
        _HEAD,
        f"{_DEVICES}\n{devices}",
        f"{_MODELS}\n{models}",
        f"{_FABRICS}\n{fabrics}",
        f"{_OFFERS}\n{offers}",
        _END,
    )
    return "\n".join(parts)


def main() -> None:
    """Prints or writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, help="file to write, docs/platforms.md")
    options = parser.parse_args()
    if options.write:
        options.write.write_text(page())
    else:
        print(page())


if __name__ == "__main__":
    main()
