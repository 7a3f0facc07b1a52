"""Record any agent that uses the API of OpenAI or Anthropic: here an agent of five lines that needs only urllib.

Each session has its own secret URL. Its requests become turns, as in a rollout of Ludus.
    python examples/05_any_agent_through_the_gateway.py
"""

import asyncio
import json
from urllib.request import Request, urlopen

from ludus.gateway.service import Gateway
from ludus.models.scripted import ScriptedModel


def run_foreign_agent(url: str, key: str) -> str:
    """An agent that does not use Ludus."""
    body = json.dumps({"model": "any", "messages": [{"role": "user", "content": "What is 6 times 7?"}]}).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urlopen(Request(f"{url}/chat/completions", body, headers), timeout=10) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]


async def main() -> None:
    model = ScriptedModel(["It is 42."])
    async with Gateway(model) as gateway:
        session = gateway.open(name="six times seven")
        answer = await asyncio.to_thread(run_foreign_agent, session.url, session.api_key)
        record = await gateway.close(session)
    print(f"the agent received: {answer}")
    print(f"the record of {record.name!r}: asked {record.opening[-1].content!r}, {len(record.make_turns())} turn")


if __name__ == "__main__":
    asyncio.run(main())
