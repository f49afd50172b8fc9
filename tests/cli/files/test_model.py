from __future__ import annotations

import json
import re

import pytest

from dse.indices import Zipf
from dse.model import InteractionKind, load_model
from tests.cli.running import answer, dse

TABLES = "name,num_embeddings,embedding_dim,pooling_factor,team\na,1000,32,2,x\nb,500,32,1,y\n"


@pytest.fixture
def tables(tmp_path):
    path = tmp_path / "tables.csv"
    path.write_text(TABLES)
    return path


def test_a_model_from_a_hugging_face_configuration_can_be_predicted(tmp_path):
    config = tmp_path / "config.json"
    sizes = {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
    config.write_text(json.dumps({"model_type": "gpt2", **sizes}))
    out = tmp_path / "mine.yaml"
    assert answer("model", "from-hf", config, "--out", out)["parameters"] == 124_439_808
    asked = ("predict", out, "--platform", "h100_sxm", "--world-size", 8)
    assert answer(*asked, "--global-batch-size", 8)["feasible"]
    assert dse("model", "from-hf", config, "--out", out).returncode == 2


def test_the_length_of_samples_that_nobody_asked_for_is_noted(tmp_path):
    config = tmp_path / "config.json"
    sizes = {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
    config.write_text(json.dumps({"model_type": "gpt2", **sizes}))
    said = [
        dse("model", "from-hf", config, "--out", tmp_path / f"{name}.yaml", *options).stderr
        for name, options in (("longest", ()), ("short", ("--sequence-length", 512)))
    ]
    assert "1,024 tokens" in said[0]
    assert not said[1]


def test_a_model_from_a_live_module_with_a_picture_of_its_lookups(tmp_path):
    pytest.importorskip("torch")
    maker = tmp_path / "maker.py"
    maker.write_text(
        "import torch\n"
        "from tests.model.torchrec.live import Bags, Config, Dlrm, InteractionArch, Jagged, Rows\n"
        "def make():\n"
        "    bags = Bags(Config('user', 1000, 16, ['viewer']))\n"
        "    batch = Jagged(viewer=([2] * 50, torch.arange(100)))\n"
        "    module = Dlrm(bags, InteractionArch())\n"
        "    module.history = Rows(Config('item', 500, 16, ['item']))\n"
        "    return module, [batch] * 3\n"
        "broken = 3\n"
    )
    out, plot = tmp_path / "mine.yaml", tmp_path / "lookups.svg"
    asked = ("model", "from-torchrec", f"{maker}:make", "--out", out)
    attention = ("--sequence", "{layers: 1, hidden: 16, heads: 1, head_dim: 16}")
    assert answer(*asked, *attention, "--plot", plot)["tables"] == 2
    user, item = load_model(str(out)).tables
    assert (user.pooling_factors, item.pooled) == ((2.0,), False)
    picture = plot.read_text()
    assert ">user<" in picture
    # The last of the lookups that were counted, and of those that are described, are near 100 %,
    # which is at a height of 14.3.
    counted, described = re.findall(r'd="M[^"]* ([0-9.]+)" fill="none"', picture)
    assert 14.3 == float(described) <= float(counted) < 25
    for wrong in (f"{maker}:absent", f"{maker}:broken", f"{tmp_path / 'no.py'}:make"):
        assert dse("model", "from-torchrec", wrong, "--out", out, "--force").returncode == 2


def test_a_function_may_say_how_the_module_is_called(tmp_path):
    pytest.importorskip("torchrec", exc_type=(ImportError, OSError))
    maker, out = tmp_path / "maker.py", tmp_path / "mine.yaml"
    maker.write_text(
        "import torch\n"
        "from tests.model.torchrec.architectures import Mlp, sparse\n"
        "def make():\n"
        "    call = lambda module, batch: module(torch.zeros(batch.stride(), 13), batch)\n"
        "    return Mlp(), [sparse(8)], call\n"
        "def wrong():\n"
        "    return (*make(), 1)\n"
    )
    asked = ("--out", out, "--json", "--force")
    assert answer("model", "from-torchrec", f"{maker}:make", *asked)["traced_products"] == 8
    assert dse("model", "from-torchrec", f"{maker}:wrong", *asked).returncode == 2


def test_a_model_from_a_csv_can_be_predicted(tables, tmp_path):
    out = tmp_path / "mine.yaml"
    done = dse("model", "from-csv", tables, "--out", out)
    assert done.returncode == 0, done.stderr
    assert f"model: {out}" in done.stdout
    assert "columns that are not used: team" in done.stderr
    assert "all rows equally popular" in done.stderr
    assert "interaction: dot" in done.stderr
    model = load_model(str(out))
    assert model.name == "mine"
    assert model.bottom_mlp == (512, 256, 32)
    predicted = answer(
        *("predict", out, "--platform", "h100_sxm", "--world-size", 2),
        *("--global-batch-size", 4096),
    )
    assert predicted["feasible"] is True


def test_every_option_reaches_the_model(tables, tmp_path):
    out = tmp_path / "mine.yaml"
    done = dse(
        *("model", "from-csv", tables, "--out", out, "--name", "other", "--dense-features", 7),
        *("--bottom-mlp", "64,16", "--top-mlp", "8,1", "--interaction", "dcnv2_low_rank"),
        *("--cross-layers", 2, "--low-rank", 4, "--alpha", 1.05, "--data-type", "fp16"),
        *("--precision", "bf16", "--dense-optimizer", "adam", "--sparse-optimizer", "adagrad"),
        *("--global-batch-size", 256),
    )
    assert done.returncode == 0, done.stderr
    model = load_model(str(out))
    assert (model.name, model.dense_features) == ("other", 7)
    assert (model.bottom_mlp, model.top_mlp) == ((64, 16), (8, 1))
    assert model.interaction.kind is InteractionKind.DCNV2_LOW_RANK
    assert (model.interaction.layers, model.interaction.low_rank) == (2, 4)
    assert {table.indices for table in model.tables} == {Zipf(1.05)}
    assert {table.data_type.value for table in model.tables} == {"fp16"}
    assert (model.precision.value, model.global_batch_size) == ("bf16", 256)
    assert (model.dense_optimizer.value, model.sparse_optimizer.value) == ("adam", "adagrad")


def test_an_existing_model_is_not_replaced_by_accident(tables, tmp_path):
    out = tmp_path / "mine.yaml"
    out.write_text("mine")
    done = dse("model", "from-csv", tables, "--out", out)
    assert done.returncode == 2
    assert "exists; choose another name, or pass --force" in done.stderr
    assert out.read_text() == "mine"
    assert dse("model", "from-csv", tables, "--out", out, "--force").returncode == 0
    assert load_model(str(out)).name == "mine"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--bottom-mlp", "64,x"), "--bottom-mlp: expected widths such as"),
        (("--top-mlp", "64,0"), "--top-mlp: expected widths such as"),
        (("--interaction", "dots"), "--interaction: expected one of `dot`"),
        (("--data-type", "fp4"), "--data-type: expected one of `fp32`"),
        (("--pooling", "-1"), "pooling"),
    ],
)
def test_wrong_options_are_one_clear_line(tables, tmp_path, options, words):
    done = dse("model", "from-csv", tables, "--out", tmp_path / "mine.yaml", *options)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "mine.yaml").exists()


def test_names_are_shown_and_not_obeyed(tables, tmp_path):
    evil = "[red]\x1b[2J"
    tables.write_text(TABLES.replace("team", evil))
    out = tmp_path / "mine.yaml"
    done = dse("model", "from-csv", tables, "--out", out)
    assert "columns that are not used: [red]␛[2J" in done.stderr
    out.write_text(out.read_text().replace("name: a,", r'name: "[red]\e[2Ja",'))
    shown = dse("model", "show", out).stdout
    assert "[red]␛[2Ja" in shown
    assert "\x1b" not in shown + done.stderr


def test_show_adds_up(tables, tmp_path):
    out = tmp_path / "mine.yaml"
    done = dse("model", "from-csv", tables, "--out", out, "--json")
    made = json.loads(done.stdout)
    assert made == answer("model", "show", out)
    assert (made["tables"], made["rows"], made["lookups_per_sample"]) == (2, 1500, 3.0)
    assert [row["table"] for row in made["largest_tables"]] == ["a", "b"]
    # Widths are those of the file: of layers without experts, if there are any.
    assert answer("model", "show", "deepseek_v3")["ffn_hidden"] == 18432
    assert "ffn_hidden" not in answer("model", "show", "qwen3_30b_a3b")
    gpt = answer("model", "show", "gpt_22b")
    assert gpt["layers"] == load_model("gpt_22b").layers
    words = dse("model", "show", "dlrm_criteo").stdout
    assert "dense parameters" in words
    assert "40,000,000" in words
