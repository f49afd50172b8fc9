"""Groups of ranks on nodes, and configurations that cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dse.errors import ConfigError
from dse.machine.collectives import Group
from dse.model import load_model
from dse.workload.transformer import DataSharding, Parallelism, check_parallelism
from dse.workload.transformer.step._groups import Groups
from tests.conftest import make_cluster


def test_groups_of_a_configuration():
    parallelism = Parallelism(tensor=4, context=2, data=4, pipeline=2)
    groups = Groups.of(make_cluster(64, 8), parallelism)
    assert groups.tensor == Group(1, 4)
    assert groups.context == Group(1, 2)
    # Gradients are summed over context and data: eight ranks that are four apart.
    assert groups.replicas == Group(4, 2, 4)
    assert groups.stages == Group(2, 1, 8, domain_stride=4)


def test_stages_are_on_two_nodes_where_any_pair_is():
    # Stages of four ranks on nodes of eight: the second and the third are on different nodes, and
    # four ranks of a node send at the same time.
    parallelism = Parallelism(tensor=4, pipeline=4)
    assert Groups.of(make_cluster(16, 8), parallelism).stages == Group(2, 1, 4)
    parallelism = Parallelism(tensor=2, pipeline=4)
    assert Groups.of(make_cluster(8, 8), parallelism).stages == Group(1, 2)


def refused(model="gpt_22b", batch=64, world_size=8, **parallelism):
    cluster = make_cluster(world_size, 8)
    with pytest.raises(ConfigError) as caught:
        check_parallelism(load_model(model), cluster, batch, Parallelism(**parallelism))
    return str(caught.value)


def test_what_cannot_be_is_refused_with_value_limit_and_next_step():
    assert "= 4 ranks, but the cluster has 8" in refused(tensor=4)
    message = refused("mpt_3b", tensor=8)
    assert "tensor 8 does not divide the 20 attention heads of mpt_3b; 4 does" in message
    message = refused("gpt_175b", world_size=64, tensor=8, pipeline=8, interleave=5)
    assert "interleave 40 does not divide the 96 layers of gpt_175b" in message
    assert message.endswith("; 32 does")
    message = refused("gpt_175b", world_size=48, tensor=8, pipeline=6, interleave=3)
    assert "interleave 18 does not divide the 96 layers of gpt_175b" in message
    assert message.endswith("; 12 does")
    message = refused("gpt_175b", world_size=104, tensor=8, pipeline=13)
    assert "interleave 13 does not divide the 96 layers of gpt_175b" in message
    assert message.endswith("; 8 does")
    assert "× interleave 11 does not divide the 48 layers" in refused(data=8, interleave=11)
    assert "needs pipeline stages" in refused(data=8, interleave=2)
    message = refused(pipeline=4, data=2, interleave=2, batch=12)
    assert "rounds of 4, but there are 6" in message
    message = refused(data=8, batch=20, micro_batch_size=2)
    assert "global batch size 20 is no multiple of data 8 × micro batch 2; use 16 or 32" in message
    assert refused(data=8, batch=4).endswith("micro batch 1; use 8")
    assert "use tensor > 1" in refused(data=8, sequence_parallel=True)
    assert "context × sequence-parallel 3" in refused(world_size=24, data=8, context=3)
    assert "micro_batch_size 0: expected at least 1" in refused(data=8, micro_batch_size=0)


def test_tensor_parallelism_divides_the_columns_of_experts():
    message = refused("grok1_314b", world_size=24, tensor=24)
    assert "tensor 24 does not divide the 32768 columns of an expert; 16 does" in message


def test_experts_are_checked_before_the_shards_of_their_ranks():
    spread = {"data": 2, "expert": 8, "data_sharding": DataSharding.OPTIMIZER}
    message = refused("mixtral_8x7b", world_size=2, sharding_degree=1, **spread)
    assert message.startswith("expert 8 has to divide")


def test_whole_experts_are_named_where_they_would_fit():
    cut = refused("mixtral_8x7b", world_size=8, tensor=2, data=4, expert=8, sequence_parallel=True)
    assert cut.endswith("4 does, or `expert_tensor` 1")
    whole = {"tensor": 2, "data": 4, "expert": 8, "expert_tensor": 1, "sequence_parallel": True}
    check_parallelism(load_model("mixtral_8x7b"), make_cluster(8, 8), 64, Parallelism(**whole))
    assert "expert_tensor" not in refused("mixtral_8x7b", world_size=2, data=2, expert=8)


def test_ranks_share_heads_of_keys_and_values_in_equal_groups():
    model = replace(load_model("mpt_3b"), kv_heads=4)
    check_parallelism(model, make_cluster(20, 10), 8, Parallelism(tensor=20))
    with pytest.raises(ConfigError, match="4 heads of keys and values"):
        check_parallelism(model, make_cluster(10, 10), 8, Parallelism(tensor=10))


def test_what_can_be_is_accepted():
    parallelism = Parallelism(tensor=2, pipeline=2, data=2, interleave=2, sequence_parallel=True)
    check_parallelism(load_model("gpt_22b"), make_cluster(8, 8), 64, parallelism)
