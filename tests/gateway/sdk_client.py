"""An agent made of the providers' own SDKs. Runs in an environment that has them; prints what it saw as JSON.

python sdk_client.py OPENAI_URL ANTHROPIC_URL KEY
"""

import json
import sys

import anthropic
import openai
import pydantic

TOOL = {
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}


def with_chat(client):
    tools = [{"type": "function", "function": TOOL}]
    messages = [{"role": "user", "content": "go"}]
    first = client.chat.completions.create(model="m", messages=messages, tools=tools).choices[0].message
    (made,) = first.tool_calls
    messages += [first.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": made.id, "content": "2"}]
    usage = 0
    with client.chat.completions.stream(
        model="m", messages=messages, tools=tools, stream_options={"include_usage": True}
    ) as stream:
        for event in stream:
            if event.type == "chunk" and event.chunk.usage:
                usage = event.chunk.usage.completion_tokens
        last = stream.get_final_completion().choices[0].message
    with client.chat.completions.stream(model="m", messages=messages[:1], tools=tools) as stream:
        again = stream.get_final_completion().choices[0].message.tool_calls[0].function.arguments
    return [made.function.arguments, last.content, usage > 0, again]


def with_responses(client):
    tools = [{"type": "function", **TOOL}]
    first = client.responses.create(model="m", input="go", tools=tools)
    (made,) = [item for item in first.output if item.type == "function_call"]
    result = {"type": "function_call_output", "call_id": made.call_id, "output": "2"}
    with client.responses.stream(model="m", input=[result], previous_response_id=first.id, tools=tools) as stream:
        for _ in stream:
            pass
        last = stream.get_final_response()
    whole = [{"role": "user", "content": "go"}, *(item.model_dump() for item in first.output), result]
    return [made.arguments, last.output_text, client.responses.create(model="m", input=whole).output_text]


def with_messages(client):
    tools = [{"name": "add", "description": "Adds.", "input_schema": TOOL["parameters"]}]
    messages = [{"role": "user", "content": "go"}]
    shared = {"model": "m", "max_tokens": 2000, "tools": tools, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    first = client.messages.create(messages=messages, **shared)
    (used,) = [block for block in first.content if block.type == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": used.id, "content": "2"}
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    with client.messages.stream(messages=messages, **shared) as stream:
        last = stream.get_final_message()
    with client.messages.stream(messages=messages[:1], **shared) as stream:
        kinds = [block.type for block in stream.get_final_message().content]
    counted = client.messages.count_tokens(model="m", messages=messages[:1]).input_tokens
    return [used.input, last.content[-1].text, kinds, counted > 0]


def with_parallel_calls(client):
    messages = [{"role": "user", "content": "both"}]
    shared = {"model": "m", "messages": messages, "tools": [{"type": "function", "function": TOOL}]}
    first = client.chat.completions.create(**shared).choices[0].message
    with client.chat.completions.stream(**shared) as stream:
        second = stream.get_final_completion().choices[0].message
    return [[call.function.name, call.function.arguments] for reply in (first, second) for call in reply.tool_calls]


def with_parallel_blocks(client):
    tools = [{"name": "add", "description": "Adds.", "input_schema": TOOL["parameters"]}]
    shared = {"model": "m", "max_tokens": 2000, "tools": tools, "messages": [{"role": "user", "content": "both"}]}
    with client.messages.stream(**shared) as stream:
        blocks = stream.get_final_message().content
    return [[block.name, block.input] for block in blocks if block.type == "tool_use"]


def force_calls(client, other):
    """Calls that must be made: any tool, and one by name."""
    words = [{"role": "user", "content": "hi"}]
    tools = [{"type": "function", "function": TOOL}]
    named = {"type": "function", "function": {"name": "add"}}
    chat = [
        [call.function.name for call in reply.choices[0].message.tool_calls]
        for reply in (
            client.chat.completions.create(model="m", messages=words, tools=tools, tool_choice=choice)
            for choice in ("required", named)
        )
    ]
    response = client.responses.create(
        model="m", input="hi", tools=[{"type": "function", **TOOL}], tool_choice={"type": "function", "name": "add"}
    )
    message = other.messages.create(
        model="m",
        max_tokens=2000,
        messages=words,
        tools=[{"name": "add", "description": "Adds.", "input_schema": TOOL["parameters"]}],
        tool_choice={"type": "any"},
    )
    return [
        *chat,
        [item.name for item in response.output if item.type == "function_call"],
        [block.name for block in message.content if block.type == "tool_use"],
    ]


class Sum(pydantic.BaseModel):
    sum: int


def parse_replies(client, other):
    """Replies of a schema, by the SDKs' own `parse`."""
    words = [{"role": "user", "content": "hi"}]
    chat = client.chat.completions.parse(model="m", messages=words, response_format=Sum).choices[0].message.parsed
    response = client.responses.parse(model="m", input="hi", text_format=Sum).output_parsed
    message = other.messages.parse(model="m", max_tokens=2000, messages=words, output_format=Sum).parsed_output
    return [chat.sum, response.sum, message.sum]


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def show_pictures(client, other):
    url = f"data:image/png;base64,{PIXEL}"
    chat = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    items = [{"role": "user", "content": [{"type": "input_image", "image_url": url, "detail": "auto"}]}]
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    blocks = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    return [
        client.chat.completions.create(model="m", messages=chat).choices[0].message.content,
        client.responses.create(model="m", input=items).output_text,
        other.messages.create(model="m", max_tokens=2000, messages=blocks).content[0].text,
    ]


def read_slowly(client, other):
    """A model that takes longer than the time limit of the client."""
    words = [{"role": "user", "content": "slow"}]
    quick, brisk = client.with_options(timeout=2, max_retries=0), other.with_options(timeout=2, max_retries=0)
    chunks = quick.chat.completions.create(model="m", messages=words, stream=True)
    chat = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    with quick.responses.stream(model="m", input="slow") as stream:
        for _ in stream:
            pass
        response = stream.get_final_response().output_text
    with brisk.messages.stream(model="m", max_tokens=2000, messages=words) as stream:
        message = stream.get_final_text()
    return [chat, response, message]


def hang_up(client, other):
    """Read the first word of an endless reply in each API, and go away."""
    words = [{"role": "user", "content": "long"}]
    chunks = client.chat.completions.create(model="m", messages=words, stream=True)
    chat = next(chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content)
    chunks.close()
    with client.responses.stream(model="m", input="long") as stream:
        response = next(event.delta for event in stream if event.type == "response.output_text.delta")
    with other.messages.stream(model="m", max_tokens=2000, messages=words) as stream:
        message = next(iter(stream.text_stream))
    return [chat[:5], response[:5], message[:5]]


def refused(call, kind):
    try:
        call()
    except kind as error:
        return error.status_code
    return 0


def main():
    url, anthropic_url, key = sys.argv[1:]
    client = openai.OpenAI(base_url=url, api_key="unused")
    other = anthropic.Anthropic(base_url=anthropic_url, api_key="unused")
    plain = openai.OpenAI(base_url=url.partition("/s/")[0] + "/v1", api_key=key)
    wrong = openai.OpenAI(base_url=url.partition("/s/")[0] + "/v1", api_key="wrong")
    root = url.partition("/s/")[0]
    azure = openai.AzureOpenAI(azure_endpoint=root, api_key=key, api_version="2024-10-21")
    words = [{"role": "user", "content": "hi"}]
    seen = {
        "chat": with_chat(client),
        "responses": with_responses(client),
        "messages": with_messages(other),
        "parallel": with_parallel_calls(client),
        "parallel messages": with_parallel_blocks(other),
        "forced": force_calls(client, other),
        "structured": parse_replies(client, other),
        "pictures": show_pictures(client, other),
        "slow": read_slowly(client, other),
        "long": hang_up(client, other),
        "azure": azure.chat.completions.create(model="m", messages=words).choices[0].message.content,
        "counted": client.responses.input_tokens.count(model="m", input="hi").input_tokens > 0,
        "embeddings": refused(lambda: client.embeddings.create(model="m", input="hi"), openai.NotFoundError),
        "retrieve": refused(lambda: client.responses.retrieve("resp_1"), openai.NotFoundError),
        "models": [model.id for model in plain.models.list()],
        "completions": plain.completions.create(model="m", prompt="go").choices[0].text,
        "wrong key": refused(lambda: wrong.models.list(), openai.AuthenticationError),
        "no messages": refused(lambda: client.chat.completions.create(model="m", messages=[]), openai.BadRequestError),
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
