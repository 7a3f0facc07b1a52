"""Custom tools: tools whose input is one text, not a JSON object.

No other API and no chat template knows them. So they are offered to the model as functions with one argument, and calls
of them are written back as the client's API writes them.
"""

import msgspec

from ludus.chat_form import decode_arguments
from ludus.types import Call, JsonObject, ToolSpec

_PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole input, as plain text."}},
    "required": ["input"],
}


def make_custom_tool(name: str, description: str, grammar: JsonObject) -> ToolSpec:
    """The tool as a function. A grammar of its input is described, not enforced."""
    if grammar.get("definition"):
        description += f"\n\nThe input follows this {grammar.get('syntax', '')} grammar:\n{grammar['definition']}"
    return ToolSpec(name, description, _PARAMETERS)


def write_custom_arguments(text: str) -> str:
    """The arguments of a call with this input."""
    return msgspec.json.encode({"input": text}).decode()


def read_custom_input(call: Call) -> str:
    """The input of a call. If the arguments have another form, they are the input."""
    value = (decode_arguments(call.arguments) or {}).get("input")
    return value if isinstance(value, str) else call.arguments
