"""Predictions of the jobs that options describe."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from dse.cli._output import fields_of
from dse.cli.job._request import OpenJob, Request, open_job
from dse.errors import ConfigError, DseError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dse.explanation import Difference, Explanation
    from dse.machine import LinkSpec, Offer, Quote
    from dse.machine.platforms import ChangedFigure
    from dse.report.terminal import PredictionView
    from dse.workload import Job, PairedComparison, Prediction

Value = TypeVar("Value")

#: Plans that are not files: found by search, or that of the first configuration.
_SEARCH_PLAN = "search"
_SAME_PLAN = "same"

#: Figures that a remark names; of more it says how many.
_NAMED = 2


@dataclass(frozen=True)
class Predicted:
    """A predicted job.

    Attributes:
        request: The options.
        open_job: What they describe.
        job: The job with its plan.
        prediction: Its prediction.
    """

    request: Request
    open_job: OpenJob
    job: Job
    prediction: Prediction

    @cached_property
    def explanation(self) -> Explanation:
        """What determines the duration of its iteration."""
        from dse.workload import explain_job

        return explain_job(self.job)

    @property
    def ranks_per_place(self) -> int:
        """Ranks that one entry of the breakdown stands for."""
        return max(1, self.request.world_size // len(self.prediction.breakdown))

    @property
    def view(self) -> PredictionView:
        """What is printed."""
        from dse.machine.collectives import measured_by
        from dse.report.terminal import PredictionView

        opened, request = self.open_job, self.request
        precision = self.job.document().get("precision")
        wide = request.world_size > 1
        return PredictionView(
            job=f"{opened.workload.name} on {request.world_size} × {opened.platform.device.name}, "
            f"global batch {request.global_batch_size:,}"
            + (f", {precision}" if precision else ""),
            setup=self.job.setup(),
            prediction=self.prediction,
            place=self.job.rank_word,
            ranks_per_place=self.ranks_per_place,
            remarks=(
                f"host overheads: {opened.host_overheads}",
                *(
                    [f"collectives on {self._link.name}: {measured_by(self._link)}"]
                    if wide
                    else []
                ),
                *([f"price: {opened.no_price}"] if opened.no_price else []),
                *([_cheaper_text(opened.cheaper)] if opened.cheaper else []),
                *change_remarks(opened.changes),
                *self._ineffective(),
            ),
        )

    def _ineffective(self) -> list[str]:
        """Returns a remark if no figure that `--set` changed makes a difference; prices do."""
        from dse.workload import predict_job

        figures = [one.quantity for one in self.open_job.changes if not one.of_price]
        if not figures:
            return []
        plan = self.job.plan
        try:
            job = open_job(self.request.changed({"overrides": (), "host_profile": ""})).job
            job = _planned(job, _SEARCH_PLAN, None) if plan is None else job.with_plan(plan)
            before = _outcome(predict_job(job, None))
        except DseError:
            # Nodes of another size, say, are what makes the job possible.
            return []
        if before != _outcome(self.prediction):
            return []
        named = ", ".join(figures) if len(figures) <= _NAMED else f"{len(figures)} changed figures"
        return [f"no difference to this prediction: {named}"]

    def document(self) -> dict[str, object]:
        """Returns the fields of the JSON output."""
        from dse.machine.collectives import measured_by

        opened, request, prediction = self.open_job, self.request, self.prediction
        document: dict[str, object] = {
            **asked_fields(request, opened),
            "host_overheads": opened.platform.document.host.profile or opened.platform.name,
            "collectives": measured_by(self._link) if request.world_size > 1 else None,
            **self.job.document(),
            **prediction_fields(prediction, self.job),
            "no_price": opened.no_price or None,
            "bound_by": self.explanation.bound_by,
        }
        if self.job.rank_word != "rank":
            document[f"{self.job.rank_word}s"] = self._places()
        return document

    @property
    def _link(self) -> LinkSpec:
        links = self.open_job.platform.links
        return next(
            (link for link in links if link.name == self.request.parameters.get("link")), links[0]
        )

    def _places(self) -> list[dict[str, object]]:
        """Returns time and memory of what one entry of the breakdown stands for."""
        ranks, prediction = self.ranks_per_place, self.prediction
        return [
            {
                self.job.rank_word: place,
                "first_rank": place * ranks,
                "ranks": ranks,
                **fields_of(parts),
                "memory_bytes": memory.total_bytes,
                "host_memory_bytes": memory.host_bytes,
                "memory": {
                    f"{purpose.split()[0]}_bytes": size_bytes
                    for purpose, size_bytes in memory.parts
                },
            }
            for place, (parts, memory) in enumerate(
                zip(prediction.breakdown, prediction.memory, strict=True)
            )
        ]

    def paired(self, other: Predicted) -> PairedComparison:
        """Compares it with a second job under the same errors of the models."""
        from dse.workload import compare_jobs

        return compare_jobs(self.job, other.job)

    def difference(self, other: Predicted) -> Difference:
        """Returns where the iteration times of two jobs differ."""
        from dse.explanation import compare_explanations

        return compare_explanations(self.explanation, other.explanation)

    def write_timeline(self, path: Path) -> None:
        """Writes the predicted iteration for Perfetto."""
        from dse.report import write_timeline
        from dse.simulate import critical_path, simulate
        from dse.workload import task_details

        attributed, view = self.job.attributed(), self.view
        simulated = simulate(attributed.graph)
        title = ", ".join(filter(None, (view.job, view.setup, "predicted")))
        if view.place != "rank" and view.ranks_per_place > 1:
            title += f"; a process is one rank of each {view.place}"
        elif view.ranks_per_place > 1:
            title += f"; one of {view.ranks_per_place} sharding groups"
        write_timeline(
            simulated,
            path,
            critical=critical_path(simulated),
            title=title,
            details=task_details(attributed),
            arrival_arrows=self.job.rank_word == "rank",
        )


def predicted(
    request: Request, first: Predicted | None = None, beside: Request | None = None
) -> Predicted:
    """Predicts a job; finds a plan where none is given.

    Args:
        request: The options.
        first: The job to compare with, whose plan ``same`` means.
        beside: The options of the other job of a comparison.

    Raises:
        ConfigError: A name is unknown, values do not fit the platform, or the model is of another
            kind than the first one.
        PlanError: The plan is for another model or another number of ranks.
    """
    from dse.workload import predict_job

    opened = open_job(request, beside)
    if first is not None and first.open_job.workload.kind != opened.workload.kind:
        raise ConfigError(
            f"--versus: `{opened.workload.name}` is a {opened.workload.title}, "
            f"`{first.open_job.workload.name}` a {first.open_job.workload.title}; compare models "
            "of one kind"
        )
    job = _planned(opened.job, request.plan, None if first is None else first.job)
    return Predicted(request, opened, job, predict_job(job, opened.quote))


def _planned(job: Job, plan: str, first: Job | None) -> Job:
    from dse.workload import PlanEffort

    if plan in ("", _SEARCH_PLAN):
        return job.planned(PlanEffort())
    if plan == _SAME_PLAN and first is not None and first.plan is not None:
        return job.with_plan(first.plan, "the same")
    return job.with_plan_of(plan)


def _outcome(prediction: Prediction) -> tuple[object, ...]:
    """Returns what a figure of a platform may change, prices aside."""
    interval = prediction.iteration_time_p5_s, prediction.iteration_time_p95_s
    return prediction.iteration_time_s, interval, prediction.memory, prediction.fit_probability


def asked_fields(request: Request, opened: OpenJob) -> dict[str, object]:
    """Returns what a job is, before anything is known of it."""
    return {
        "model": opened.workload.name,
        "platform": opened.platform.name,
        "world_size": request.world_size,
        "global_batch_size": request.global_batch_size,
        **program_fields(opened.program),
        **change_fields(opened.changes),
    }


def program_fields(program: str | None) -> dict[str, object]:
    """Returns the program, also under former names, and whether it is only a bound."""
    from dse.workload import IDEAL

    names = dict.fromkeys(("program", "software_profile", "software"), program)
    return {**names, "is_bound": program == IDEAL}


def offer_fields(offer: Offer) -> dict[str, object]:
    """Returns an instance that can be rented, with its networks."""
    return {
        "provider": offer.provider,
        "instance": offer.instance,
        "devices": offer.devices,
        "by_device": offer.by_device,
        "networks": list(offer.networks),
        "host_memory_bytes": offer.host_memory_bytes,
        "cores": offer.cores,
        "region": offer.region or None,
        "basis": offer.basis,
        "as_of": offer.as_of,
        "usd_per_hour": offer.usd_per_hour,
        "source": offer.source,
    }


def change_fields(changes: Sequence[ChangedFigure]) -> dict[str, object]:
    """Returns the figures that `--set` changed, if any."""
    return {"changes": [fields_of(figure) for figure in changes]} if changes else {}


def change_remarks(changes: Sequence[ChangedFigure]) -> list[str]:
    """Returns a line for each figure that `--set` changed, and one for prices that became one."""
    prices: dict[tuple[str, str], list[ChangedFigure]] = {}
    lines = []
    for one in changes:
        if one.of_price:
            prices.setdefault((one.platform, one.after), []).append(one)
        else:
            lines.append(f"changed: {one.quantity}, {one.before} → {one.after}")
    for (platform, after), alike in prices.items():
        if len(alike) == 1:
            lines.append(f"changed: {alike[0].quantity}, {alike[0].before} → {after}")
        else:
            lines.append(f"changed: {len(alike)} prices of {platform} → {after}")
    return lines


def _cheaper_text(other: Quote) -> str:
    """Returns how to predict what is cheaper to rent."""
    from dse.config import UnitKind, format_quantity

    assert other.offer is not None
    price = format_quantity(other.usd_per_hour, UnitKind.PRICE)
    return (
        f"cheaper: {other.offer.provider} {other.offer.instance} for {price}, "
        f"with --network {other.offer.networks[0]}"
    )


def of_every_rank(values: Sequence[Value], job: Job) -> list[Value]:
    """Returns a value for each rank of a job, where one stands for several ranks.

    Args:
        values: Of pipeline stages, of the ranks of a sharding group, or of all ranks.
        job: The job.
    """
    copies = job.world_size // len(values) if values else 1
    group = job.represented
    if group is not None and group.part_of is not None and group.rank_stride == 1:
        return [*values] * copies
    return [value for value in values for _ in range(copies)]


def cost_fields(prediction: Prediction) -> dict[str, object]:
    """Returns what a million samples cost, and a billion tokens where there are any."""
    found: dict[str, object] = {
        "cost_usd_per_million_samples": prediction.cost_usd_per_million_samples
    }
    if prediction.counts == "tokens":
        found["cost_usd_per_billion_tokens"] = prediction.cost_usd_per_billion
    return found


def prediction_fields(prediction: Prediction, job: Job) -> dict[str, object]:
    """Returns a prediction under the names of the public contract.

    Args:
        prediction: The prediction.
        job: What it is of.
    """
    return {
        "iteration_time_s": prediction.iteration_time_s,
        "iteration_time_p5_s": prediction.iteration_time_p5_s,
        "iteration_time_p95_s": prediction.iteration_time_p95_s,
        "throughput_samples_per_s": prediction.throughput_samples_per_s,
        **dict(prediction.metrics),
        "network": prediction.network or None,
        "price_usd_per_hour": prediction.price_usd_per_hour,
        "rented": prediction.rented or None,
        **cost_fields(prediction),
        "memory_bytes_per_rank": of_every_rank(prediction.memory_bytes_per_rank, job),
        "usable_memory_bytes": prediction.usable_memory_bytes,
        "fit_probability": prediction.fit_probability,
        "feasible": prediction.feasible,
        "infeasible_reason": prediction.infeasible_reason,
        "breakdown": of_every_rank(prediction.breakdown, job),
    }
