"""A faster or slower network: collectives re-timed by the platform's collective model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from dse.errors import ConfigError
from dse.trace import TaskRole
from dse.trace.whatif.core import Factor, Optimization, Selector
from dse.trace.whatif.retime import retime_collectives, scaled_links, without_measurements

if TYPE_CHECKING:
    from dse.trace.whatif.core import StepEditor


class Network(Optimization):
    """Other links and networks: `network=2x`, or by name (`link`, `network`) on the platform.

    Attributes:
        factor: Bandwidth inside nodes and between them, times this.
        latency: Latency, times this.
        link: Interconnect of the platform, inside a node.
        network: Network of the platform, between nodes.
    """

    main_option: ClassVar[str] = "factor"

    optimization: Literal["network"] = "network"
    factor: Factor = 1.0
    latency: Factor = 1.0
    link: str = ""
    network: str = ""

    @model_validator(mode="after")
    def _needs_an_option(self) -> Network:
        if not self.model_fields_set - {"optimization"}:
            raise PydanticCustomError(
                "network", "expected `factor`, `latency`, `link` or `network`"
            )
        return self

    def apply(self, editor: StepEditor) -> None:
        """Re-times every collective."""
        collectives = editor.select(Selector(role=(TaskRole.COLLECTIVE,)))
        if not collectives:
            raise ConfigError("the captured step has no collective, so no network can change it")
        machine = editor.machine
        before = machine.cluster("network")
        machine = replace(
            machine, link=self.link or machine.link, network=self.network or machine.network
        )
        after = machine.cluster("network")
        same = (after.link.name, after.network.name) == (before.link.name, before.network.name)
        if self.factor != 1.0 or self.latency != 1.0:
            after = scaled_links(after, self.factor, self.latency)
            # Both sides of a ratio have to come from formulas.
            before = without_measurements(before)
        elif same:
            raise ConfigError(
                "bandwidth, latency, link and network stay as they are; give a factor other than "
                "1, such as 2x, or another link or network of the platform"
            )
        retime_collectives(editor, collectives, before, after)
        editor.machine = machine
