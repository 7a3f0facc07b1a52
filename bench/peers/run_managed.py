"""Run conversations with atroposlib's ManagedServer. Reads a task as JSON, prints rows and the log of its engine.

Needs a virtual environment with atroposlib. The engine replays a list of draws and records the ids that it receives.
Tools are offered, but tool calls stay text: atroposlib needs vLLM to parse them.
"""

import asyncio
import json
import sys
from types import SimpleNamespace

from atroposlib.envs.server_handling.managed_server import ManagedServer
from transformers import PreTrainedTokenizerFast


class Engine:
    def __init__(self) -> None:
        self.config = SimpleNamespace(model_name="toy")
        self.log = []
        self.next = []

    async def tokens_and_logprobs_completion(self, input_ids=None, **_):
        drawn = self.next
        self.log += [{"prompt": input_ids, "ids": d["ids"], "logprobs": d["logprobs"]} for d in drawn]
        return input_ids, [d["ids"] for d in drawn], [d["logprobs"] for d in drawn], [d["finish"] for d in drawn]


async def run_course(course, task, tokenizer):
    engine = Engine()
    server = ManagedServer(engine, tokenizer=tokenizer, tool_parser="hermes")
    messages = list(task["opening"])
    failed = False
    try:
        for number, op in enumerate(course["ops"]):
            if op["kind"] == "reply":
                engine.next = op["drawn"]
                tools = {"tools": task["tools"]} if course["tools"] else {}
                reply = await server.chat_completion(messages=messages, n=len(op["drawn"]), max_tokens=4000, **tools)
                messages.append({"role": "assistant", "content": reply.choices[-1].message.content})
                calls = op["calls"]
            elif op["kind"] == "answer":
                ids = [f"call{number:03d}{i:02d}" for i in range(calls)]
                messages += [{"role": "tool", "content": op["text"], "tool_call_id": i} for i in ids] or [
                    {"role": "user", "content": op["text"]}
                ]
            elif op["kind"] == "user":
                messages.append({"role": "user", "content": op["text"]})
            elif op["kind"] == "edit":
                messages[-1] = {"role": "assistant", "content": op["text"]}
            elif op["kind"] == "compact":
                messages[2:] = [{"role": "assistant", "content": op["text"]}, {"role": "user", "content": "Weiter."}]
    except Exception as error:  # after any failure, the rows so far are used
        print(f"{course['name']}: {type(error).__name__}: {error}", file=sys.stderr)
        failed = True
    rows = [
        {
            "ids": node.tokens,
            "trained": [mask != -100 for mask in node.masked_tokens],
            "logprobs": [None if value == 1.0 else value for value in node.logprobs],
        }
        for node in server.get_state()["nodes"]
    ]
    return {"rows": rows, "log": engine.log, "failed": failed}


def main():
    task = json.load(sys.stdin)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=task["tokenizer"], **task["tokens"])
    tokenizer.chat_template = task["template"]
    done = {course["name"]: asyncio.run(run_course(course, task, tokenizer)) for course in task["courses"]}
    print(json.dumps(done))


if __name__ == "__main__":
    main()
