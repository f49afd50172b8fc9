"""Pages of reference have every field that files may have and commands print."""

from __future__ import annotations

import json
import re

import pytest

from dse.search import validation_to_json
from tests.cli.running import answer
from tests.conftest import ROOT
from tests.search.revise.studies import SPACE, study_of
from tests.validation.studies import VALIDATION

FORMATS = (ROOT / "docs/formats.md").read_text()
OUTPUTS = (ROOT / "docs/outputs.md").read_text()
SCHEMAS = ROOT / "docs/schemas"

ON_EIGHT = ("--platform", "h100_sxm", "--world-size", 8, "--global-batch-size", 4096)
TINY = ("dlrm_tiny", *ON_EIGHT)
GPT = ("gpt_cpu", *ON_EIGHT)


def section(page, heading):
    """Returns the text under a heading, up to the next one that is not below it."""
    level = heading.split()[0]
    _, found, after = page.partition(f"\n{heading}\n")
    assert found, f"there is no heading `{heading}`"
    return re.split(rf"^#{{1,{len(level)}}} ", after, maxsplit=1, flags=re.MULTILINE)[0]


def words(text):
    return set(re.findall(r"\w+", text))


def parameters(block):
    schema = json.loads((SCHEMAS / "space.schema.json").read_text())
    return set(schema["$defs"][block]["properties"])


@pytest.mark.parametrize(
    ("block", "heading"),
    [
        ("DlrmParameters", "### Parameters of recommendation models"),
        ("TransformerParameters", "### Search space of a transformer"),
        ("RecordedParameters", "### Search space of a captured trace"),
    ],
)
def test_every_parameter_of_a_space(block, heading):
    # Former names are on the page once for all kinds.
    known = words(section(FORMATS, heading)) | {"software"}
    assert parameters(block) - known == set()


@pytest.mark.parametrize(
    ("block", "heading"),
    [
        ("TableBlock", "### Tables"),
        ("TableDefaults", "### Tables"),
        ("SequenceBlock", "### Dense part"),
        ("TransformerDocument", "## Model"),
        ("LatentBlock", "### Transformers"),
        ("WindowBlock", "### Transformers"),
    ],
)
def test_every_key_of_a_model(block, heading):
    schema = json.loads((SCHEMAS / "model.schema.json").read_text())
    # What it is called by is the same for models, platforms and spaces.
    said = words(section(FORMATS, heading)) | {"description", "aliases"}
    assert set(schema["$defs"][block]["properties"]) - said == set()


#: Commands, where their fields are, and the sections that have them.
PRINTED = [
    (("predict", *TINY), ["predict"]),
    (("predict", *TINY, "--explain"), ["predict"]),
    (("predict", *TINY, "--set", "price=2 USD/GPU/h"), ["predict"]),
    (("predict", *TINY, "--versus", "world_size=4"), ["predict"]),
    (("predict", *GPT), ["predict"]),
    (("shard", *TINY), ["predict", "shard` and `dse rank"]),
    (("collective", *ON_EIGHT[:4], "--op", "all_reduce", "--size", "64MiB"), ["collective"]),
    (("doctor", "--platform", "h100_sxm"), ["doctor` and `dse model"]),
]


@pytest.mark.parametrize(("command", "names"), PRINTED, ids=lambda value: str(value[0]))
def test_every_field_that_a_command_prints(command, names):
    said = set().union(*(words(section(OUTPUTS, f"### `dse {name}`")) for name in names))
    printed = answer(*command)
    # The command line repeats itself: what was asked for needs no explanation.
    asked = {"model", "platform", "world_size", "global_batch_size"}
    assert set(printed) - said - asked == set()


def test_every_field_of_a_recommendation():
    few = ("--platforms", "h100_sxm", "--world-sizes", 8, "--batch-sizes", 16384)
    printed = answer("recommend", "dlrm_tiny", "--target", "1M samples/s", *few)
    said = words(section(OUTPUTS, "### `dse recommend`")) | words(
        section(OUTPUTS, "### `dse predict`")
    )
    assert set(printed) - said == set()
    for part in (printed["answer"], printed["answer"]["offer"]):
        assert set(part) - said == set()


def test_every_field_of_other_inputs_and_of_two_studies():
    folder = study_of(SPACE).directory.root
    said = words(section(OUTPUTS, "### `dse whatif` and `dse compare`"))
    for printed in (
        answer("whatif", folder, "--set", "price=-10%"),
        answer("compare", folder, folder),
    ):
        assert set(printed) - said == set()
        for name in ("candidates", "best", "common", "searched_again"):
            found = printed.get(name) or {}
            fields = found if isinstance(found, dict) else found[0]
            assert set(fields) - said == set()


def test_every_field_of_a_validation():
    said = words(section(OUTPUTS, "### `dse validate`"))
    printed = json.loads(validation_to_json(VALIDATION))
    parts = (printed["agreement"], printed["candidates"][0], printed["factors"][0])
    for part in (printed, *parts, printed["setting"]):
        assert set(part) - said == set()


def test_fields_of_a_prediction_exist():
    printed = answer("predict", *TINY, "--set", "price=2 USD/GPU/h")
    table = section(OUTPUTS, "### `dse predict`").partition("Recommendation models also")[0]
    named = re.findall(
        r"`(\w+)`", " ".join(line.split("|")[1] for line in table.splitlines() if "|" in line)
    )
    assert len(named) > 15
    assert set(named) - set(printed) == set()
