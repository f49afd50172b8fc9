from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.errors import UnknownNameError
from dse.machine import PeakRates, PowerSpec, Precision
from dse.machine.kernels import sustained_share
from dse.machine.platforms import (
    list_platforms,
    load_platform,
    override_platform,
    override_platforms,
)
from tests.conftest import make_device

#: 200 TFLOP/s in BF16 at 2 pJ take 400 W.
ENERGY_J = 2e-12


def share(limit_w: float, precision: Precision = Precision.BF16, **peak: float) -> float:
    rates = replace(PeakRates(20e12, 100e12, 200e12, 200e12), **peak)
    device = make_device(peak=rates, power=PowerSpec(limit_w, ENERGY_J))
    return sustained_share(device, precision)


def test_the_rate_falls_with_the_root_of_the_missing_power():
    assert share(400.0) == pytest.approx(1.0)
    assert share(100.0) == pytest.approx(0.5)
    assert share(800.0) == 1.0


def test_nothing_bounds_a_device_without_a_power():
    assert sustained_share(make_device(), Precision.BF16) == 1.0


def test_half_the_bits_at_twice_the_rate_take_the_same_power():
    fp8 = {"fp8_flops_per_s": 400e12}
    assert share(100.0, Precision.FP8, **fp8) == pytest.approx(0.5)
    # TF32 has four bytes and half the rate.
    assert share(100.0, Precision.TF32) == pytest.approx(0.5)
    # FP4 at six times the rate of BF16 takes half as much power again, scale factors aside.
    fp4 = share(100.0, Precision.NVFP4, nvfp4_flops_per_s=1200e12)
    assert fp4 == pytest.approx(0.5 / (1.5 * 9 / 8) ** 0.5)


def test_a_precision_that_a_device_lacks_takes_the_power_of_the_one_used_instead():
    assert share(100.0, Precision.FP8) == share(100.0, Precision.BF16)


@given(st.floats(50, 2000), st.floats(1.0, 5.0), st.sampled_from(list(Precision)))
def test_more_power_or_arithmetic_never_sustains_less(limit_w, factor, precision):
    assert share(factor * limit_w, precision) >= share(limit_w, precision)
    faster = share(limit_w, bf16_flops_per_s=factor * 200e12)
    assert factor * faster >= share(limit_w) * (1 - 1e-12)


def test_the_power_of_a_platform_can_be_changed():
    platform = load_platform("h100_sxm")
    capped, changed = override_platform(platform, ["power=500W"])
    ratio = sustained_share(capped.device, Precision.BF16) / sustained_share(
        platform.device, Precision.BF16
    )
    assert ratio == pytest.approx((500 / 700) ** 0.5)
    assert [one.after for one in changed] == ["500 W"]


def test_a_power_that_is_not_known_cannot_be_changed():
    v100 = load_platform("v100_dgx1")
    with pytest.raises(UnknownNameError, match=r"device\.power"):
        override_platform(v100, ["power=250W"])
    # For all platforms it changes those that have it.
    both = {"v100_dgx1": v100, "h100_sxm": load_platform("h100_sxm")}
    changed, figures = override_platforms(both, ["power=500W"])
    assert changed["v100_dgx1"] is v100
    assert [(one.platform, one.after) for one in figures] == [("h100_sxm", "500 W")]


@pytest.mark.parametrize("name", list_platforms())
def test_a_shipped_platform_sustains_most_of_its_arithmetic(name):
    device = load_platform(name).device
    assert 0.6 <= sustained_share(device, Precision.BF16) <= 1
