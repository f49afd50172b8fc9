"""Workloads: what is trained, and what may be chosen for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
import json
from typing import TYPE_CHECKING, ClassVar

from dse._text.suggest import hint
from dse.config import check_data
from dse.errors import ConfigError
from dse.machine import Precision
from dse.sharding import plan_to_json
from dse.workload._job import Job
from dse.workload._metrics import COMMON_METRICS
from dse.workload._parameters import named
from dse.workload._programs import find_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from dse.machine import Cluster, LinkSpec, NetworkSpec
    from dse.machine.platforms import Platform
    from dse.model import EmbeddingTable
    from dse.sharding import TableConstraints
    from dse.workload._configuration import Configuration
    from dse.workload._metrics import Metric
    from dse.workload._parameters import Parameter, ParametersBlock, ParameterValue
    from dse.workload._prediction import Prediction
    from dse.workload._programs import Program

#: Begins the name of a parameter that places one table, with `plan: joint`.
PLACEMENT_PREFIX = "plan."


class Workload(ABC):
    """Something to train; each kind has one implementation.

    A package that is not part of `dse` adds a kind through the entry point group
    ``dse.workloads``, whose entries are subclasses of this class.

    Attributes:
        kind: Name of the kind, as files and studies have it.
        title: What the kind is called in messages, in the singular.
        parameters: What a search space may choose; its fields are the parameters.
        metrics: What objectives, limits, tables and the report may name, in the order of columns.
        programs: Training programs by name.
        default_program: Program that runs a job unless parameters name another; empty where a kind
            has no programs.
        rank_word: What one entry of a breakdown stands for; that of its jobs.
        brings_machine: Whether the workload fixes its machine, as captured steps do.
        bounds_time: Whether jobs know a time that they cannot beat, so that a search can prove
            that configurations are dominated without evaluating them.
        finds_plans: Whether jobs have a sharding plan, which is searched for each configuration.
        frameworks: Training frameworks in whose form a configuration can be written.
        summarized: Parameters that tables show as one text.
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    parameters: ClassVar[type[ParametersBlock]]
    metrics: ClassVar[tuple[Metric, ...]] = COMMON_METRICS
    programs: ClassVar[Mapping[str, Program]] = {}
    default_program: ClassVar[str] = ""
    bounds_time: ClassVar[bool] = False
    finds_plans: ClassVar[bool] = False
    frameworks: ClassVar[tuple[str, ...]] = ()
    summarized: ClassVar[frozenset[str]] = frozenset()
    brings_machine: ClassVar[bool] = False
    rank_word: ClassVar[str] = Job.rank_word

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the model, or of the file that it was captured in."""

    @property
    def description(self) -> str:
        """One line for listings; may be empty."""
        return ""

    @property
    def sizes(self) -> Mapping[str, float]:
        """What listings say of its size, by name."""
        return {}

    @property
    def contents(self) -> Mapping[str, object]:
        """What it consists of, by name, as `dse model show` lists it."""
        return {
            "name": self.name,
            "kind": self.kind,
            "description": self.description,
            **self.sizes,
        }

    @property
    def precision(self) -> Precision:
        """Arithmetic of the model's own recipe."""
        return Precision.BF16

    @property
    def global_batch_size(self) -> int:
        """Samples of one iteration in the model's own recipe.

        Raises:
            ConfigError: The model has no recipe.
        """
        raise ConfigError(f"{self.name} has no batch size of its own; name one")

    @property
    def tokens_per_sample(self) -> int:
        """Tokens of one sample; 0 where nothing but samples is counted."""
        return 0

    @classmethod
    def program_name(cls, parameters: Mapping[str, ParameterValue]) -> str:
        """Returns the program that runs a job; empty where this kind has no programs.

        Args:
            parameters: Value of each parameter; without ``program`` the default counts.

        Raises:
            UnknownNameError: There is no such program; the message names those that there are.
        """
        name = str(parameters.get("program", "")) or cls.default_program
        return find_program(cls.programs, name, trains=cls.title).name if name else ""

    @classmethod
    def metric(cls, name: str) -> Metric:
        """Returns one of the metrics.

        Raises:
            ConfigError: This kind of workload has no metric of that name.
        """
        for metric in cls.metrics:
            if metric.name == name:
                return metric
        names = [metric.name for metric in cls.metrics]
        raise ConfigError(f"a {cls.title} has no metric `{name}`; {hint(name, names)}")

    @classmethod
    def from_text(cls, text: str, *, file: str = "<string>") -> Workload:
        """Returns the workload that a model file describes.

        Args:
            text: YAML of a model of this kind.
            file: File name for messages.

        Raises:
            ConfigError: The text is wrong; every problem is listed with its place, or this kind
                has no model files.
        """
        del text
        raise ConfigError(f"{file}: a {cls.title} is not described by a model file")

    @classmethod
    def details(cls, configuration: Configuration) -> tuple[tuple[str, str], ...]:
        """Returns labelled facts about a configuration that only this kind of workload has.

        Args:
            configuration: What was chosen.
        """
        del configuration
        return ()

    @classmethod
    def summary(cls, configuration: Configuration) -> str:
        """Returns what :attr:`summarized` parameters amount to; empty if there are none.

        Args:
            configuration: What was chosen.
        """
        del configuration
        return ""

    @property
    def tables(self) -> Sequence[EmbeddingTable]:
        """Embedding tables that plans place."""
        return ()

    def with_table_constraints(
        self, constraints: Mapping[str, tuple[TableConstraints, ...]]
    ) -> Workload:
        """Returns the workload with constraints on tables that parameters may name.

        Args:
            constraints: Constraints by name; a workload without tables leaves them aside.
        """
        del constraints
        return self

    @classmethod
    def batch_grain(cls, configuration: Configuration) -> int:
        """Returns the samples by which the global batch of a configuration can grow.

        Args:
            configuration: What was chosen.
        """
        return configuration.world_size

    @classmethod
    def document(cls, configuration: Configuration, model_name: str) -> dict[str, object]:
        """Returns a whole configuration as the names and values of a YAML or JSON file.

        Args:
            configuration: What was chosen.
            model_name: Name of the model.
        """
        found: dict[str, object] = {
            "schema_version": 1,
            "model": model_name,
            "platform": configuration.platform,
            "world_size": configuration.world_size,
            "global_batch_size": configuration.global_batch_size,
        }
        found |= dict(configuration.parameters)
        if configuration.program:
            found["program"] = configuration.program
        if configuration.plan is not None:
            found["planner"] = configuration.planner
            found["plan"] = json.loads(plan_to_json(configuration.plan, model_name))
        return found

    @classmethod
    def single_values(
        cls, parameters: Mapping[str, object], *, named: Callable[[str], str] = str
    ) -> dict[str, ParameterValue]:
        """Returns one value of each parameter as a study keeps it.

        Args:
            parameters: As a search space has them: a mapping or a list where one value has that
                form. Those that every space has must be there.
            named: What a parameter is called in messages.

        Raises:
            ConfigError: A search space would not allow them, or one has several values.
        """
        try:
            block = check_data(dict(parameters), cls.parameters, file="")
        except ConfigError as error:
            problems = []
            for problem in error.diagnostics:
                name = problem.field.partition("[")[0].partition(".")[0]
                problems.append(f"{named(name)}: {problem.message}" if name else problem.message)
            raise ConfigError("\n".join(problems)) from None
        choices = {one.name: one.choices for one in block.expand()}
        for name in parameters:
            if len(choices[name]) > 1:
                several = ", ".join(map(str, choices[name]))
                raise ConfigError(f"{named(name)}: expected one value, found {several}")
        return {name: choices[name][0] for name in parameters}

    @classmethod
    def deployment(cls, configuration: Configuration, model_name: str) -> str:
        """Returns what a training job takes from a configuration, as JSON text.

        Args:
            configuration: What was chosen.
            model_name: Name of the model.
        """
        return json.dumps(cls.document(configuration, model_name), indent=1) + "\n"

    def framework_text(
        self, configuration: Configuration, framework: str, platform: Platform
    ) -> str:
        """Returns a configuration in the form of a training framework.

        Args:
            configuration: What was chosen.
            framework: One of :attr:`frameworks`.
            platform: The configuration's platform.

        Raises:
            ConfigError: This kind of workload has no form for the framework.
        """
        del configuration, platform
        raise ConfigError(
            f"--format {framework}: not for a {self.title}; use one of "
            f"{', '.join((*self.frameworks, 'json', 'yaml'))}"
        )

    def framework_files(
        self,
        configuration: Configuration,
        framework: str,
        platform: Platform,
        *,
        module_path: str = "",
        prediction: Prediction | None = None,
    ) -> Mapping[str, str]:
        """Returns a folder from which a configuration can be trained: texts by file name.

        Args:
            configuration: What was chosen.
            framework: One of :attr:`frameworks`.
            platform: The configuration's platform.
            module_path: Path of the module that the plan is for; the framework's usual one if
                empty.
            prediction: What is predicted, if that is known.

        Raises:
            ConfigError: This kind of workload has no such folder for the framework.
        """
        del configuration, platform, module_path, prediction
        raise ConfigError(
            f"--format {framework}: a {self.title} is written as one file; give --out a name with "
            "an ending"
        )

    def candidates(
        self, platform: Platform, parameters: Mapping[str, ParameterValue]
    ) -> Iterator[Mapping[str, ParameterValue]]:
        """Yields the usual ways to run this workload on a machine that fit its memory.

        A time that the given parameters cannot beat by their arithmetic alone
        (:meth:`Job.optimistic_time_s`) has to hold for all of them.

        Args:
            platform: The machine.
            parameters: What is given: ranks, batch, precision and program, and what else all ways
                have in common.
        """
        del platform
        yield parameters

    def favourable(
        self,
        parameters: Mapping[str, ParameterValue],
        choices: Mapping[str, Sequence[ParameterValue]],
    ) -> Mapping[str, ParameterValue]:
        """Returns parameters whose best step is never slower than that of the given ones.

        A bound on its time is then a bound for all that are mapped to it, so it is computed once
        for many configurations.

        Args:
            parameters: One value of each parameter.
            choices: Choices of the search space, by the name of the parameter.
        """
        del choices
        return parameters

    @abstractmethod
    def job(
        self,
        platform: Platform | None,
        parameters: Mapping[str, ParameterValue],
        *,
        links: Sequence[LinkSpec] = (),
        networks: Sequence[NetworkSpec] = (),
    ) -> Job:
        """Returns the workload on a machine under one choice of parameters.

        Args:
            platform: Device, node, networks and prices; None for the machine that a captured
                step brings.
            parameters: One value of each parameter; others have their defaults.
            links: Interconnects that may be named in addition to the platform's own.
            networks: Networks that may be named in addition to the platform's own.

        Raises:
            ConfigError: The job is impossible, or a value does not exist on the platform.
        """

    def connected(
        self,
        platform: Platform | None,
        parameters: Mapping[str, ParameterValue],
        *,
        basis: str = "on_demand",
        provider: str = "",
    ) -> dict[str, ParameterValue]:
        """Returns parameters with the network between nodes, where they name none.

        A price is that of instances with their own network, so both come from one offer: the
        platform's own network where it can be rented, or nothing can, else that of the cheapest
        instances. Inside one domain there is none, and a captured step has its own.

        Args:
            platform: Where the job runs; None for the machine of a captured step.
            parameters: One value of each parameter.
            basis: Which list prices count.
            provider: Provider to rent from; the cheapest if empty.
        """
        found = dict(parameters)
        if platform is None or self.brings_machine:
            return found
        world_size = int(found["world_size"])
        if platform.needs_network(world_size) and not named(found, "network"):
            found["network"] = platform.rented_network(world_size, basis=basis, provider=provider)
        return found

    def chosen(
        self,
        platform: Platform | None,
        given: Mapping[str, object],
        *,
        basis: str = "on_demand",
        provider: str = "",
        named: Callable[[str], str] = str,
    ) -> dict[str, ParameterValue]:
        """Returns the parameters of a job, with the network and the program that are not named.

        Args:
            platform: Where the job runs; None for the machine of a captured step.
            given: One value of each parameter that was given, as a search space has it.
            basis: Which list prices count.
            provider: Provider to rent from; the cheapest if empty.
            named: What a parameter is called in messages.

        Raises:
            UnknownNameError: There is no such program.
            ConfigError: A search space would not allow a value.
        """
        single = self.single_values(given, named=named)
        found = self.connected(platform, single, basis=basis, provider=provider)
        runs = self.program_name(found)
        return {**found, "program": runs} if runs else found

    def cluster(
        self,
        platform: Platform | None,
        parameters: Mapping[str, ParameterValue],
        *,
        links: Sequence[LinkSpec] = (),
        networks: Sequence[NetworkSpec] = (),
    ) -> Cluster:
        """Returns the ranks of a job with their link and network; arguments as :meth:`job`.

        What makes no difference is the platform's own: the network inside one domain, and the link
        of a single rank. So jobs that differ in nothing else are equal.

        Raises:
            ConfigError: There is no platform, it cannot have that many ranks, or a link or network
                does not exist.
        """
        if platform is None:
            raise ConfigError(f"a {self.title} needs a platform; name one")
        cluster = platform.cluster(
            int(parameters["world_size"]),
            link=named(parameters, "link"),
            network=named(parameters, "network"),
            extra_links=tuple(links),
            extra_networks=tuple(networks),
        )
        if cluster.domain_count == 1:
            own = platform.cluster(cluster.world_size)
            cluster = replace(cluster, network=own.network)
            if cluster.world_size == 1:
                cluster = replace(cluster, link=own.link)
        return cluster

    def placement_parameters(
        self, platforms: Mapping[str, Platform], choices: Mapping[str, Sequence[ParameterValue]]
    ) -> tuple[Parameter, ...]:
        """Returns parameters that decide the plan, for a sampler that chooses it as well.

        Their names begin with :data:`PLACEMENT_PREFIX`, by which others tell them from what people
        choose.

        Args:
            platforms: Every platform that may be chosen, by name.
            choices: Choices of the other parameters, by name.

        Raises:
            ConfigError: This workload has no plan, or it is too large for a sampler.
        """
        raise ConfigError(f"a {self.title} has no sharding plan to search")
