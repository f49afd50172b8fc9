"""Texts that no seed resembles, as JSON and YAML."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from dse._io.reading import JsonProblemError, load_json
from dse.config import parse_plain
from dse.errors import ConfigError
from tests.fuzzing import check_words

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON_VALUES)
def test_json_that_is_taken_can_be_written_again(value):
    try:
        data = load_json(json.dumps(value))
    except JsonProblemError:
        return
    written = json.dumps(data, allow_nan=False, ensure_ascii=False).encode()
    assert load_json(written) == data


@given(st.text() | st.text(alphabet="[]{}:,-&*!?|>#'\"% \n\tab01.~<"))
def test_any_text_as_json_and_yaml(text):
    for read, error in ((load_json, JsonProblemError), (parse_plain, ConfigError)):
        try:
            read(text)
        except error as found:
            check_words(found)


@given(st.binary())
def test_any_bytes_as_json(content):
    try:
        load_json(content)
    except JsonProblemError as found:
        check_words(found)
