"""Replies that must have a form: JSON of a schema, or a call of a tool.

A request asks for JSON with `response_format` (in `sampling.extra`, as the chat API writes it), and for a call with the
tool choice `required`. `make_guide` turns that into a `Guide`, and engines with guided decoding keep to it: they leave
out of every sample the tokens that the form does not allow. The recorded logprobs are then not those of the policy. So
the completion is marked (`Completion.guided`), and its ids are no data for RL.

The grammar of a call is made from the parser's own rendering of one, with the rules of the tool's schema in place of
the arguments. Formats whose arguments are not written as JSON cannot be forced.
"""

import re
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from ludus.errors import ModelError, Unsupported
from ludus.models.json_grammar import COMMON_RULES, build_object_rule, quote_literal
from ludus.parsers import ReplyParser
from ludus.tokens import Engine, Guide, GuidedEngine
from ludus.types import RESPONSE_FORMAT, Call, Completion, Finish, JsonObject, Sampling, ToolSpec

_THOUGHT = r'[^<]* "</think>" [ \n]*'
"""The rest of a think block that the prompt has opened."""
_NAME, _ARGUMENTS = "ludus_probe", '{"key":"value"}'
_WRITTEN_ARGUMENTS = re.compile(r'\{\s*"key"\s*:\s*"value"\s*\}')


def asks_for_form(sampling: Sampling, tools: Sequence[ToolSpec]) -> bool:
    """Whether replies are sampled under guided decoding."""
    return (sampling.tool_choice == "required" and bool(tools)) or read_schema(sampling) is not None


def make_guide(
    sampling: Sampling, tools: Sequence[ToolSpec], parser: ReplyParser, *, opens_thought: bool = False
) -> Guide | None:
    """The form of the reply that a request asks for; None if it asks for none. A forced call goes before a schema.

    Raises:
        Unsupported: no grammar can describe it.
    """
    if sampling.tool_choice == "required" and tools:
        return Guide(grammar=build_call_grammar(parser, tools, opens_thought=opens_thought))
    schema = read_schema(sampling)
    if schema is not None and opens_thought:
        raise Unsupported(
            "response_format: the chat template begins every reply with an open think block, and JSON cannot be forced "
            "after it. Turn thinking off in the template, or leave the field out."
        )
    return None if schema is None else Guide(schema=schema)


def read_schema(sampling: Sampling) -> JsonObject | None:
    """The JSON schema of the reply; None for plain text.

    Raises:
        Unsupported: the field has another form.
    """
    wanted: Any = sampling.extra.get(RESPONSE_FORMAT)
    match wanted:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"type": "object"}
        case {"type": "json_schema", "json_schema": {"schema": dict()}}:
            return cast(JsonObject, wanted["json_schema"]["schema"])
        case _:
            raise Unsupported(
                "response_format: expected the type 'json_schema' with a `json_schema.schema`, 'json_object' or 'text'"
            )


def build_call_grammar(parser: ReplyParser, tools: Sequence[ToolSpec], *, opens_thought: bool = False) -> str:
    """The grammar of one call of one of the tools, as the parser writes it.

    Raises:
        Unsupported: the parser's format does not write arguments as JSON.
    """
    written = parser.render([Call("call_0", _NAME, _ARGUMENTS)])
    found = _WRITTEN_ARGUMENTS.search(written)
    if found is None or written.count(_NAME) != 1:
        raise Unsupported(
            f"tool_choice: a call cannot be forced in the format '{parser.name}', whose arguments are not JSON. Ask "
            "for the call in the prompt."
        )
    before, after = written[: found.start()], written[found.end() :]
    calls = [_build_call_rule(tool, before, after) for tool in tools]
    thought = f"{_THOUGHT} " if opens_thought else ""
    return f"root ::= {thought}({' | '.join(calls)}){COMMON_RULES}"


def _build_call_rule(tool: ToolSpec, before: str, after: str) -> str:
    head, tail = (quote_literal(text.replace(_NAME, tool.name)) for text in (before, after))
    return f"{head} {build_object_rule(tool.parameters)} {tail}"


def add_guide(engine: Engine, guide: Guide, sampling: Sampling) -> Sampling:
    """The sampling with the engine's own fields for a form.

    Raises:
        Unsupported: the engine has no guided decoding.
    """
    if not isinstance(engine, GuidedEngine):
        raise Unsupported(
            f"{'response_format' if guide.schema is not None else 'tool_choice'}: the engine of '{engine.name}' has no "
            "guided decoding, so nothing can force the form of a reply. Leave the field out."
        )
    extra = {name: value for name, value in sampling.extra.items() if name != RESPONSE_FORMAT}
    return msgspec.structs.replace(sampling, extra={**extra, **engine.write_guide(guide)})


def mark_guided(completion: Completion, guide: Guide) -> Completion:
    """A completion that was sampled under a guide, with the mark.

    Raises:
        ModelError: the reply has another form, so the engine has ignored the guide.
    """
    if completion.finish is not Finish.LENGTH and not _has_form(completion, guide):
        raise ModelError(
            "the engine ignored the form that the reply must have. Is guided decoding switched on there, and is its "
            "version recent?",
            retryable=False,
        )
    return msgspec.structs.replace(completion, guided=True)


def _has_form(completion: Completion, guide: Guide) -> bool:
    if guide.schema is None:
        return bool(completion.message.calls)
    try:
        msgspec.json.decode(completion.message.content)
    except (ValueError, RecursionError):
        return False
    return True
