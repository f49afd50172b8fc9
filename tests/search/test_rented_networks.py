"""Networks of studies: what can be rented together with the prices that are asked for."""

from __future__ import annotations

import pytest

import dse
from dse.errors import UnknownNameError
from dse.machine.platforms import load_platform
from dse.search import TrialStatus, read_inputs
from tests.cli.running import answer
from tests.cli.running import dse as run_dse

SPACE = """\
schema_version: 1
name: rented
workload: {model: dlrm_ddp}
parameters:
  program: ideal
  platform: [h100_sxm, a100_sxm_80]
  world_size: [8, 16]
  global_batch_size: [16384]
  sharding_types: [[table_wise]]
objectives:
  - {metric: throughput_samples_per_s, direction: maximize}
search: {improvement_rounds: 0, planners: [size_greedy]}
"""
COST = "  - {metric: cost_usd_per_million_samples, direction: minimize}\nsearch:"


def answers(tmp_path, text, **changes):
    path = tmp_path / "space.yaml"
    path.write_text(text)
    inputs = read_inputs(path)
    parameters = {one.name: one.choices[0] for one in inputs.space.parameters}
    return inputs.context.make_evaluator().evaluate(0, {**parameters, **changes})


@pytest.mark.parametrize(
    ("pricing", "platform", "network", "rented"),
    [
        ("", "h100_sxm", "infiniband_ndr400", "2 × Azure Standard_ND96isr_H100_v5"),
        ("pricing: {provider: AWS}\n", "h100_sxm", "efa_3200g", "2 × AWS p5.48xlarge"),
        ("pricing: {provider: AWS}\n", "a100_sxm_80", "efa_400g", "2 × AWS p4de.24xlarge"),
        ("pricing: {basis: capacity_block}\n", "h100_sxm", "efa_3200g", "2 × AWS p5.48xlarge"),
        # Without any such price the machines are as they are by default.
        ("pricing: {provider: CoreWeave}\n", "h100_sxm", "infiniband_ndr400", ""),
    ],
)
def test_the_default_follows_the_prices(tmp_path, pricing, platform, network, rented):
    cost = "" if "CoreWeave" in pricing else SPACE.replace("search:", COST)
    text = (cost or SPACE) + pricing
    found = answers(tmp_path, text, world_size=16, platform=platform)
    assert (found.prediction.network, found.prediction.rented) == (network, rented)
    named = answers(
        tmp_path,
        text.replace("parameters:\n", f"parameters:\n  network: {network}\n"),
        world_size=16,
        platform=platform,
    )
    assert named.prediction == found.prediction
    one = answers(tmp_path, text, world_size=8, platform=platform)
    assert one.prediction.network == ""


@pytest.mark.parametrize(("provider", "near"), [("Azur", "`Azure`"), ("Nope", "AWS, ")])
def test_a_provider_that_nobody_knows_is_refused(tmp_path, provider, near):
    path = tmp_path / "space.yaml"
    path.write_text(f"{SPACE}pricing: {{provider: {provider}}}\n")
    line = path.read_text().count("\n")
    with pytest.raises(UnknownNameError) as caught:
        read_inputs(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}:11: pricing.provider: ")
    assert near in message


def test_every_command_connects_nodes_alike(tmp_path):
    # Nobody rents out this machine with its own network, InfiniBand.
    text = SPACE.replace("h100_sxm, a100_sxm_80", "b200_sxm")
    found = answers(tmp_path, text, world_size=16).prediction
    quote = load_platform("b200_sxm").quote(16, network=None)
    assert found.network in quote.offer.networks
    assert (found.price_usd_per_hour, found.rented) == (quote.usd_per_hour, quote.text)
    assert answers(tmp_path, text.replace("search:", COST), world_size=16).prediction == found
    job = {"world_size": 16, "global_batch_size": 16384, "program": "ideal"}
    predicted = dse.Job("dlrm_ddp", "b200_sxm", **job).predict()
    assert (predicted.network, predicted.rented) == (found.network, found.rented)
    words = ("--platform", "b200_sxm", "--world-size", 16, "--global-batch-size", 16384)
    for command in ("predict", "shard"):
        shown = answer(command, "dlrm_ddp", *words, "--program", "ideal")
        assert (shown["network"], shown["rented"]) == (found.network, found.rented)
        printed = run_dse(command, "dlrm_ddp", *words, "--program", "ideal").stdout
        assert found.network in printed
        assert found.rented in " ".join(printed.split())


def test_a_network_that_is_not_rented_is_rejected_with_what_is(tmp_path):
    text = SPACE.replace("search:", COST) + "pricing: {provider: AWS}\n"
    text = text.replace("parameters:\n", "parameters:\n  network: infiniband_ndr400\n")
    path = tmp_path / "space.yaml"
    path.write_text(text)
    evaluator = read_inputs(path).context.make_evaluator()
    job = {"network": "infiniband_ndr400", "platform": "h100_sxm", "global_batch_size": 16384}
    reason = evaluator.reject({**job, "world_size": 16, "program": "ideal"})
    assert "p5.48xlarge has efa_3200g" in reason
    assert not evaluator.reject({**job, "world_size": 8, "program": "ideal"})


def test_a_network_that_a_space_adds_is_every_machines(tmp_path):
    text = SPACE.replace("search:", COST).replace(
        "parameters:\n", "parameters:\n  network: mine\n"
    )
    text += "networks: {mine: {kind: roce, nics: 8, bandwidth: 200 Gbit/s, latency: 5 us}}\n"
    found = answers(tmp_path, text, world_size=16)
    assert found.status is TrialStatus.FEASIBLE
    assert found.prediction.network == "mine"
    assert found.prediction.price_usd_per_hour == 110.08


def test_predictions_name_what_they_rent():
    arguments = {"world_size": 16, "global_batch_size": 16384, "program": "ideal"}
    plain = dse.predict("dlrm_ddp", "h100_sxm", **arguments)
    assert (plain.network, plain.price_usd_per_hour) == ("infiniband_ndr400", 2 * 98.32)
    aws = dse.predict("dlrm_ddp", "h100_sxm", price_provider="AWS", **arguments)
    assert (aws.network, aws.price_usd_per_hour) == ("efa_3200g", 110.08)
    assert aws.iteration_time_s > plain.iteration_time_s
    none = dse.predict(
        "dlrm_ddp", "h100_sxm", price_provider="AWS", network="infiniband_ndr400", **arguments
    )
    assert none.price_usd_per_hour is None
    assert none.iteration_time_s == plain.iteration_time_s
