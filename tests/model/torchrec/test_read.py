from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

import dse
from dse.config import parse_document
from dse.errors import ConfigError, UnknownNameError
from dse.indices import IdOrder, Uniform, Zipf
from dse.machine import Precision
from dse.model import (
    DataType,
    InteractionKind,
    ModelDocument,
    Optimizer,
    PoolingDistribution,
    dense_parameter_count,
)
from dse.model.torchrec import read_torchrec
from tests.model.torchrec.live import (
    Bags,
    Batch,
    Config,
    Dlrm,
    InteractionArch,
    Jagged,
    LowRankCrossNet,
    Rows,
    drawn,
    mlp,
    rng,
)

USER = Config("user", 1000, 16, ["viewer", "owner"])
ITEM = Config("item", 500, 16, ["item"], "FP16")


def live(*configs, interaction=None, **widths):
    return Dlrm(Bags(*(configs or (USER, ITEM))), interaction or InteractionArch(), **widths)


def batches(count=4, samples=256):
    random = rng()
    for _ in range(count):
        jagged = Jagged(
            viewer=drawn(random, Zipf(1.1), 1000, samples, 3.0),
            owner=drawn(random, Zipf(1.1), 1000, samples, 1.5),
            item=([2] * samples, Uniform().sample(random, 500, 2 * samples)),
        )
        yield Batch(torch.zeros(samples, 13), jagged)


def test_tables_and_features_are_those_of_the_module():
    model = read_torchrec(live()).model
    user, item = model.tables
    assert (user.name, user.rows, user.dim, user.feature_count) == ("user", 1000, 16, 2)
    assert (item.rows, item.data_type) == (500, DataType.FP16)
    assert user.indices == Uniform()


def test_the_dense_part_of_a_dlrm_is_its_own():
    model = read_torchrec(live()).model
    assert model.dense_features == 13
    assert model.bottom_mlp == (32, 16)
    assert model.top_mlp == (8, 1)
    assert model.interaction.kind is InteractionKind.DOT


def test_cross_layers_are_read_with_their_rank():
    cross = torch.nn.Module()
    cross.crossnet = LowRankCrossNet(64, 3, 4)
    interaction = read_torchrec(live(interaction=cross)).model.interaction
    assert interaction.kind is InteractionKind.DCNV2_LOW_RANK
    assert (interaction.layers, interaction.low_rank) == (3, 4)


@pytest.mark.parametrize("given", ["x", None, Dlrm, torch.zeros(2)])
def test_what_is_no_module_is_refused(given):
    with pytest.raises(ConfigError, match="expected a torch module"):
        dse.model_from_torchrec(given)


@pytest.mark.parametrize("wrong", ["precision", "dense_optimizer", "sparse_optimizer"])
def test_unknown_precisions_and_update_rules_are_refused(wrong):
    with pytest.raises(UnknownNameError, match=wrong):
        dse.model_from_torchrec(live(), **{wrong: "nope"})


def test_any_other_dense_part_becomes_an_mlp_of_as_many_parameters():
    module = torch.nn.Module()
    module.bags, module.net = Bags(USER, ITEM), mlp(48, 100, 70, 30, 2)
    found = read_torchrec(module)
    assert found.model.interaction.kind is InteractionKind.CONCAT
    assert len(found.model.top_mlp) == 4
    own = sum(parameter.numel() for parameter in module.net.parameters())
    assert dense_parameter_count(found.model) == pytest.approx(own, rel=0.03)
    assert any(f"{own:,}" in note for note in found.notes)


def test_lookups_are_measured():
    model = read_torchrec(live(), batches(40)).model
    user, item = model.tables
    assert user.pooling_factors == pytest.approx((3.0, 1.5), rel=0.03)
    assert item.pooling_factors == (2.0,)
    assert user.pooling_distribution is PoolingDistribution.POISSON
    assert item.pooling_distribution is PoolingDistribution.FIXED
    assert user.indices.alpha == pytest.approx(1.1, rel=0.02)
    assert item.indices == Uniform()
    assert model.global_batch_size == 256


def test_the_file_is_the_model():
    found = read_torchrec(live(), batches(), name="mine", precision=Precision.BF16)
    again = parse_document(found.text, ModelDocument).to_model()
    assert again == found.model
    assert (again.name, again.precision) == ("mine", Precision.BF16)


def test_a_source_that_is_given_stands_in_place_of_the_class():
    module = live()
    name = f"{type(module).__module__}.{type(module).__qualname__}"
    assert f"tables: {name}," in read_torchrec(module).model.source
    given = read_torchrec(module, source="our repository").model.source
    assert "tables: our repository," in given
    assert name not in given


def test_equal_names_carry_their_collections():
    module = torch.nn.Module()
    module.left, module.right = Bags(USER), Bags(USER)
    assert [table.name for table in read_torchrec(module).model.tables] == [
        "left.user",
        "right.user",
    ]


def test_the_update_rule_of_the_tables():
    module = live()
    rule = type("RowWiseAdagrad", (), {})
    for parameter in module.sparse_arch.parameters():
        parameter._optimizer_classes = [rule]
    assert read_torchrec(module).model.sparse_optimizer is Optimizer.ROWWISE_ADAGRAD
    other = type("Muon", (), {})
    for parameter in module.sparse_arch.parameters():
        parameter._optimizer_classes = [other]
    with pytest.raises(ConfigError, match="Muon"):
        read_torchrec(module)
    given = read_torchrec(live(), sparse_optimizer=Optimizer.SGD)
    assert given.model.sparse_optimizer is Optimizer.SGD
    assert not any("row-wise" in note for note in given.notes)


def test_what_cannot_be_read_is_refused_by_name():
    with pytest.raises(ConfigError, match="EmbeddingBagCollection"):
        read_torchrec(mlp(3, 2))
    with pytest.raises(ConfigError, match="int2"):
        read_torchrec(live(Config("a", 10, 16, ["f"], "INT2")))


ATTENTION = {"layers": 2, "hidden": 32, "heads": 2, "head_dim": 16}


def test_an_embedding_collection_holds_positions_of_a_sequence():
    module = torch.nn.Module()
    module.history, module.user = Rows(ITEM), Bags(USER)
    module.net = mlp(64, 40, 24, 20, 16, 12, 1)
    jagged = Jagged(item=([3, 1], [1, 2, 3, 4]), viewer=([1, 1], [5, 6]), owner=([1, 1], [5, 6]))
    found = read_torchrec(module, [jagged], sequence=ATTENTION)
    item, user = found.model.tables
    assert (item.pooled, user.pooled) == (False, True)
    assert item.pooling_factors == (2.0,)
    assert found.model.sequence.heads == 2
    assert found.paths == {"item": "history", "user": "user"}
    assert parse_document(found.text, ModelDocument).to_model() == found.model


def test_the_mlp_stands_for_what_is_not_attention():
    """Four linear layers of the attention's two, and two more for everything else."""
    module = torch.nn.Module()
    module.history, module.net = Rows(ITEM), mlp(16, 400, 300, 200, 100, 50, 1)
    found = read_torchrec(module, sequence=ATTENTION)
    own = sum(parameter.numel() for parameter in module.net.parameters())
    assert len(found.model.top_mlp) == 2
    assert dense_parameter_count(found.model) == pytest.approx(own, rel=0.01)


@pytest.mark.parametrize(
    ("kind", "table", "sequence"),
    [(Rows, ITEM, None), (Rows, ITEM, {"layers": 2}), (Bags, USER, ATTENTION)],
)
def test_sequences_and_their_attention_belong_together(kind, table, sequence):
    with pytest.raises(ConfigError, match="sequence"):
        read_torchrec(kind(table), sequence=sequence)


def test_batches_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="no KeyedJaggedTensor"):
        read_torchrec(live(), [torch.zeros(2)])
    with pytest.raises(ConfigError, match="row 500 of a table of 500"):
        read_torchrec(live(), [Jagged(item=([1], [500]))])


def test_features_that_never_look_up_are_told():
    found = read_torchrec(live(), [Jagged(item=([1, 1], [3, 4]), viewer=([1, 0], [5]))])
    assert any("owner" in note for note in found.notes)


def test_a_model_from_python_is_accepted_everywhere():
    with pytest.warns(UserWarning, match="update rule"):
        model = dse.model_from_torchrec(live(), batches(), global_batch_size=4096)
    prediction = dse.predict(model, "h100_sxm", world_size=8, global_batch_size=4096)
    assert prediction.iteration_time_s > 0
    assert model.tables[0].indices.ids is IdOrder.HASHED


def test_real_collections_without_pooling():
    torchrec = pytest.importorskip("torchrec", exc_type=(ImportError, OSError))
    module = torch.nn.Module()
    module.history = torchrec.EmbeddingCollection(
        device=torch.device("meta"),
        tables=[
            torchrec.EmbeddingConfig(
                name="item", num_embeddings=500, embedding_dim=16, feature_names=["item"]
            )
        ],
    )
    jagged = torchrec.KeyedJaggedTensor(["item"], torch.arange(4), lengths=torch.tensor([3, 1]))
    (table,) = read_torchrec(module, [jagged], sequence=ATTENTION).model.tables
    assert (table.name, table.rows, table.dim, table.pooled) == ("item", 500, 16, False)
    assert table.pooling_factors == (2.0,)


def test_the_real_library(tmp_path):
    torchrec = pytest.importorskip("torchrec", exc_type=(ImportError, OSError))
    from torchrec.models.dlrm import DLRM

    bags = torchrec.EmbeddingBagCollection(
        device=torch.device("meta"),
        tables=[
            torchrec.EmbeddingBagConfig(
                name="user", num_embeddings=1000, embedding_dim=16, feature_names=["f", "g"]
            )
        ],
    )
    module = DLRM(bags, 13, [32, 16], [8, 1], dense_device=torch.device("meta"))
    jagged = torchrec.KeyedJaggedTensor(
        ["f", "g"], torch.arange(6), lengths=torch.tensor([1, 2, 2, 1])
    )
    found = read_torchrec(module, [jagged])
    (table,) = found.model.tables
    assert table.pooling_factors == (1.5, 1.5)
    assert found.model.bottom_mlp == (32, 16)
    assert dense_parameter_count(found.model) == sum(
        parameter.numel()
        for path, parameter in module.named_parameters()
        if "embedding_bags" not in path
    )
