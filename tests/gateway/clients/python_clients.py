"""Client libraries at a gateway. Prints what one of them saw, as JSON.

python python_clients.py LIBRARY OPENAI_URL ANTHROPIC_URL

Every library is asked for a plain reply, a call of a tool with its result, a reply of a schema, and a stream, as
its own documentation does it.
"""

import asyncio
import base64
import json
import sys

from pydantic import BaseModel

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Sum(BaseModel):
    """A sum."""

    sum: int


def use_litellm(url, anthropic_url):
    import litellm

    shared = {"model": "openai/m", "api_base": url, "api_key": "k"}
    words = [{"role": "user", "content": "hi"}]
    tool = {
        "type": "function",
        "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    }
    forced = litellm.completion(**shared, messages=words, tools=[tool], tool_choice="required").choices[0].message
    parsed = litellm.completion(**shared, messages=words, response_format=Sum).choices[0].message.content
    stream = litellm.completion(**shared, messages=words, stream=True)
    picture = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}]
    shown = litellm.completion(**shared, messages=[{"role": "user", "content": picture}])
    other = litellm.completion(model="anthropic/m", api_base=anthropic_url, api_key="k", messages=words)
    return {
        "plain": litellm.completion(**shared, messages=words).choices[0].message.content,
        "forced": forced.tool_calls[0].function.name,
        "structured": Sum.model_validate_json(parsed).sum,
        "stream": "".join(chunk.choices[0].delta.content or "" for chunk in stream),
        "picture": shown.choices[0].message.content,
        "anthropic": other.choices[0].message.content,
    }


def use_langchain(url, anthropic_url):
    from langchain_anthropic import ChatAnthropic
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def add(a: int) -> int:
        """Adds."""
        return a

    model = ChatOpenAI(model="m", base_url=url, api_key="k")
    other = ChatAnthropic(model="m", base_url=anthropic_url, api_key="k")
    return {
        "plain": model.invoke("hi").content,
        "forced": model.bind_tools([add], tool_choice="any").invoke("hi").tool_calls[0]["name"],
        "structured": model.with_structured_output(Sum, method="json_schema").invoke("hi").sum,
        "stream": "".join(chunk.content for chunk in model.stream("hi")),
        "anthropic": other.invoke("hi").content,
        "anthropic forced": other.bind_tools([add], tool_choice="add").invoke("hi").tool_calls[0]["name"],
    }


def use_openai_agents(url, anthropic_url):
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
    from agents.models.openai_responses import OpenAIResponsesModel
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=url, api_key="k")

    @function_tool
    def add(a: int) -> int:
        """Adds."""
        return a

    async def main():
        seen = {}
        for name, kind in (("chat", OpenAIChatCompletionsModel), ("responses", OpenAIResponsesModel)):
            model = kind(model="m", openai_client=client)
            with_tools = Agent(name="a", model=model, tools=[add])
            typed = Agent(name="b", model=model, output_type=Sum)
            seen[f"{name}: tools"] = (await Runner.run(with_tools, "go")).final_output
            seen[f"{name}: structured"] = (await Runner.run(typed, "hi")).final_output.sum
            streamed = Runner.run_streamed(with_tools, "go")
            async for _ in streamed.stream_events():
                pass
            seen[f"{name}: stream"] = streamed.final_output
        return seen

    return asyncio.run(main())


def use_pydantic_ai(url, anthropic_url):
    """Not its Anthropic models: they do not work with the newest SDK of Anthropic."""
    from pydantic_ai import Agent, BinaryContent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=url, api_key="k")
    models = {
        "chat": OpenAIChatModel("m", provider=provider),
        "responses": OpenAIResponsesModel("m", provider=provider),
    }
    picture = BinaryContent(base64.b64decode(PIXEL), media_type="image/png")

    def add(a: int) -> int:
        """Adds."""
        return a

    seen = {}
    for name, model in models.items():
        seen[f"{name}: tools"] = Agent(model, tools=[add]).run_sync("go").output
        seen[f"{name}: picture"] = Agent(model).run_sync([picture]).output
        seen[f"{name}: structured"] = Agent(model, output_type=NativeOutput(Sum)).run_sync("hi").output.sum
    return seen


def use_smolagents(url, anthropic_url):
    from smolagents import OpenAIServerModel, ToolCallingAgent, tool

    @tool
    def add(a: int) -> int:
        """Adds.

        Args:
            a: a number
        """
        return a

    model = OpenAIServerModel(model_id="m", api_base=url, api_key="k")
    plain = model.generate([{"role": "user", "content": [{"type": "text", "text": "hi"}]}]).content
    agent = ToolCallingAgent(tools=[add], model=model, max_steps=2, verbosity_level=0)
    agent.run("go")
    used = [call.name for step in agent.memory.steps for call in getattr(step, "tool_calls", None) or ()]
    return {"plain": plain, "tools": used[0]}


if __name__ == "__main__":
    library, *urls = sys.argv[1:]
    print(json.dumps(globals()[f"use_{library}"](*urls)))
