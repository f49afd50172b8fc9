"""Training programs by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse._suggest import hint
from dse.errors import UnknownNameError
from dse.workload.transformer._types import COMPOSER, MEGATRON, StepSoftware

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Profiles by the names that search spaces and the command line use.
SOFTWARE_PROFILES: Mapping[str, StepSoftware] = {
    "default": StepSoftware(),
    "megatron": MEGATRON,
    "composer": COMPOSER,
}

#: What each of them stands for, and where its figures come from, for listings.
PROFILE_DESCRIPTIONS: Mapping[str, tuple[str, str]] = {
    "default": (
        "A program that overlaps and fuses all that can be, with FlashAttention-2",
        "Assumed; gradients of four bytes, one pass of a fused optimizer. Nothing fitted to it",
    ),
    "megatron": (
        "Megatron-LM of 2022 with Apex, as in its two papers",
        "Read: gradients are reduced after the last backward pass, stages wait for what they "
        "send. Counted: bytes of an update and of the loss",
    ),
    "composer": (
        "Composer over PyTorch FSDP with Triton's attention, as LLM Foundry ran MPT",
        "Read: separate elementwise kernels, PyTorch's loss. Counted: bytes of an update. Fitted "
        "on 65 published steps: time of elementwise kernels, rate of the attention kernel",
    ),
}


def software_profile(name: str) -> StepSoftware:
    """Returns the training program of that name.

    Raises:
        UnknownNameError: There is none; the message names those there are.
    """
    try:
        return SOFTWARE_PROFILES[name]
    except KeyError:
        raise UnknownNameError(
            f"no training program for transformers is called `{name}`; "
            f"{hint(name, tuple(SOFTWARE_PROFILES))}"
        ) from None
