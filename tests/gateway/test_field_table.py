"""No field of an API is dropped silently, and docs/gateway.md says what becomes of each."""

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from tests.gateway.field_table import FIELDS, get_name, judge_all, read_page, render_tables

from ludus.gateway import chat_api, completions_api, messages_api, responses_api

MODULES = {
    "chat/completions": chat_api,
    "completions": completions_api,
    "responses": responses_api,
    "messages": messages_api,
}


async def test_the_table_in_the_docs_is_what_a_gateway_does():
    made = render_tables(await judge_all())
    assert read_page()[1] == made, "run: python -m tests.gateway.field_table --write"


@pytest.mark.parametrize("path", MODULES)
def test_every_field_that_a_gateway_knows_is_in_the_table(path):
    known = set(MODULES[path]._Request.__struct_fields__) - {"model"}
    assert known == {get_name(label) for label in FIELDS[path]} - {"x_unknown"}
