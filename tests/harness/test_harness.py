"""Agents of their own in slots: a tiny one with every fault there is, and three real ones."""

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from ludus.cli import main
from ludus.config.secrets import find_agents_folder
from ludus.encoding import to_json
from ludus.engine import run_group
from ludus.env import Env
from ludus.envs.terminal_test import TerminalTest
from ludus.errors import BudgetExhausted, ModelError, ModelUnusable, SandboxError, SlotEvidence
from ludus.harness import Harness, HarnessAgent, fill_fields, render_prompt
from ludus.harness.known import KNOWN, MINI_SWE_AGENT, find_installation
from ludus.models import Model
from ludus.models.ledger import Budget, Ledger, MeteredModel
from ludus.models.scripted import ScriptedModel, call, say
from ludus.policy import Limits, Policy
from ludus.reflact.transcript import render_transcript
from ludus.replay import find_differences, restore_policy
from ludus.rl.rows import build_rows
from ludus.rollout import run, run_retrying
from ludus.runner import Job, Runner, RunOptions
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.profiles import open_pool
from ludus.skill import Skill, SkillFile
from ludus.skill_library import make_library, make_package
from ludus.tools import tool
from ludus.types import Call, Message, Replayed, Rollout, Score, SkillUse, StopReason, Task, ToolSpec

AGENT = '''
"""An agent in forty lines: one tool, and the model's word for when to stop."""
import glob, json, os, subprocess, sys, urllib.error, urllib.request

TOOL = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
BASH = {"type": "function", "function": {"name": "bash", "description": "Run a command.", "parameters": TOOL}}


def ask(messages, key=os.environ["KEY"], url=os.environ["URL"]):
    body = json.dumps({"model": os.environ["MODEL"], "messages": messages, "tools": [BASH]}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/chat/completions", body, headers)) as reply:
        return json.load(reply)["choices"][0]["message"]


def run(command):
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    return done.stdout + done.stderr


def main():
    skills = [open(path).read() for path in glob.glob(os.path.expanduser("~/.tiny/skills/*/SKILL.md"))]
    messages = [{"role": "system", "content": "".join(["I am tiny.", *skills])}]
    messages.append({"role": "user", "content": sys.stdin.read()})
    while True:
        reply = ask(messages)
        messages.append(reply)
        if not reply.get("tool_calls"):
            return print(reply["content"])
        for call in reply["tool_calls"]:
            result = run(json.loads(call["function"]["arguments"])["command"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


if __name__ == "__main__":
    main()
'''
TINY = Harness(
    name="tiny",
    command="python3 ~/tiny.py",
    env={"URL": "{url}", "KEY": "{key}", "MODEL": "{model}"},
    files={"~/tiny.py": AGENT},
    skills="~/.tiny/skills",
)
MAKE = "printf %s 'Hello from the sandbox' > greeting.txt; echo made"
GREETING = Task(id="greeting.txt", prompt="Make the greeting.", answer="Hello from the sandbox")


def tiny(code: str) -> Harness:
    """The tiny agent with something else to do; what it asks and runs is `ask` and `run`."""
    text = (
        f"import sys, os, time, socket\nsys.path.insert(0, os.path.expanduser('~'))\nfrom tiny import ask, run\n{code}"
    )
    files = {**TINY.files, "~/mine.py": text}
    return msgspec.structs.replace(TINY, command="python3 ~/mine.py", files=files)


def maker(*more: Message) -> ScriptedModel:
    return ScriptedModel([call("bash", command=MAKE), *more, say("Done.")], "teacher")


@pytest.fixture(autouse=True, scope="module")
def slots(bwrap_problem: str) -> None:
    if bwrap_problem:
        pytest.skip(bwrap_problem)
    if not Path("/usr/bin/python3").exists():
        pytest.skip("no python3 in the slot")


async def once(
    harness: Harness, model: Model, *, env: Env = TerminalTest(), task: Task = GREETING, tries: int = 0, **fields: Any
) -> Rollout:
    async with asyncio.timeout(600), open_pool("bwrap") as pool:
        job = Job(task, Policy(model, **fields, agent=HarnessAgent(harness)), seed=5)
        runner = Runner(env, pool, options=RunOptions(retries=tries))
        return await (run_retrying if tries else run)(job, runner)


def runs(command: bytes) -> bool:
    """Whether a process with this command line runs on the host."""
    for process in Path("/proc").glob("[1-9]*/cmdline"):
        with suppress(OSError):
            if process.read_bytes() == command:
                return True
    return False


# ---- a life -------------------------------------------------------------------------------------------------------


async def test_a_command_line_agent_is_scored_like_any_other():
    rollout = await once(TINY, maker())
    assert rollout.failure is None, rollout.exit
    assert rollout.score is not None
    assert rollout.score.passed
    assert rollout.stop is StopReason.FINISHED
    assert rollout.opening == (Message("system", "I am tiny."), Message("user", "Make the greeting."))
    first, last = rollout.turns
    assert (first.results[0].call.name, first.results[0].content) == ("bash", "made\n")
    assert (last.completion.message.content, last.stop) == ("Done.", StopReason.FINISHED)
    assert rollout.answer == "Done."
    assert rollout.exit is not None
    assert (rollout.exit.code, rollout.exit.output) == (0, "Done.\n")
    made = rollout.provenance
    assert (made.model, made.tools, made.toolsets, made.versions["agent"]) == ("teacher", ("bash",), (), "tiny")
    assert msgspec.json.decode(to_json(rollout), type=Rollout) == rollout
    seen = render_transcript(rollout, reference=False)  # what those who improve a skill get to see
    assert "[calls bash]" in seen
    assert "[result] made" in seen


async def test_a_record_is_played_to_the_agent_again_and_another_model_can_go_on():
    recorded = await once(TINY, maker(call("bash", command="cat greeting.txt")))
    policy, origin = Policy(ScriptedModel([], "teacher"), agent=HarnessAgent(TINY)), Replayed("runs/first", "k" * 32, 3)
    async with open_pool("bwrap") as pool:
        runner = Runner(TerminalTest(), pool)
        played = restore_policy(policy, runner.env, origin, recorded)
        now = await run(Job(GREETING, played, seed=5), runner)
        assert find_differences(recorded, now) == []
        other = replace(policy, model=ScriptedModel(lambda *_: say("I stop here."), "other"))
        goes_on = restore_policy(other, runner.env, msgspec.structs.replace(origin, turns=1), recorded, goes_on=True)
        fork = await run(Job(GREETING, goes_on, seed=5), runner)
    assert (len(fork.turns), fork.answer, fork.provenance.model) == (2, "I stop here.", "other")
    assert fork.score is not None and fork.score.passed


async def test_sampling_is_the_policys_and_every_call_has_a_seed_of_its_own():
    seeds: list[int | None] = []

    def script(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Any) -> Message:
        seeds.append(sampling.seed)
        return say("Done.") if messages[-1].role == "tool" else call("bash", command=MAKE)

    await once(TINY, ScriptedModel(script))
    assert len(set(seeds)) == 2
    assert None not in seeds


async def test_a_group_runs_side_by_side_and_every_member_has_its_own_turns():
    def script(messages: Sequence[Message], *_: object) -> Message:
        return say("Done.") if messages[-1].role == "tool" else call("bash", command=MAKE)

    async with open_pool("bwrap") as pool:
        policy = Policy(ScriptedModel(script), agent=HarnessAgent(TINY))
        rollouts = list((await run_group(GREETING, policy, Runner(TerminalTest(), pool), size=3)).rollouts)
    assert [len(rollout.turns) for rollout in rollouts] == [2, 2, 2]
    assert all(rollout.score is not None and rollout.score.passed for rollout in rollouts)


async def test_other_messages_of_an_agent_to_the_model_are_recorded():
    code = """
messages = [{"role": "user", "content": "go"}]
for _ in range(2):
    reply = ask(messages)
    messages += [reply, {"role": "user", "content": "I ran it: " + run(reply["content"])}]
"""
    rollout = await once(tiny(code), ScriptedModel([say(MAKE), say("true")]))
    assert rollout.turns[0].notices == (Message("user", "I ran it: made\n"),)
    assert rollout.turns[1].notices == ()
    assert [message.role for message in rollout.messages] == ["user", "assistant", "user", "assistant"]
    assert rollout.score is not None
    assert rollout.score.passed


async def test_the_skill_is_in_the_folder_where_the_agent_looks():
    seen: list[Message] = []

    def script(messages: Sequence[Message], *_: object) -> Message:
        seen.extend(messages)
        return say("Done.")

    class Looks(TerminalTest, frozen=True):
        async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
            assert box is not None
            return Score.of(1.0, (await box.exec("ls -A /workspace")).text)

    rollout = await once(TINY, ScriptedModel(script), env=Looks(), skill=Skill("Be exact."), skill_as="file")
    assert "name: task-skill" in seen[0].content
    assert "Be exact." in seen[0].content
    assert seen[1].content.startswith("Your skill is in ~/.tiny/skills/task-skill/SKILL.md.")
    assert rollout.score is not None
    assert rollout.score.feedback == ""  # nothing of it is in the workspace
    assert rollout.provenance.skill == Skill("Be exact.").hash


PACKAGE = Skill(
    "---\nname: greet\ndescription: How to greet.\n---\n\nAlways greet from the sandbox.\n"
    "Read references/words.md for the words.\n",
    (SkillFile("references/words.md", "The words are hello and welcome.\n"),),
)


async def test_a_package_is_loaded_when_the_agent_s_model_got_it_and_not_when_the_agent_listed_it():
    rollout = await once(TINY, maker(), skill=PACKAGE, skill_as="listed")  # gives all documents to its model
    assert rollout.opening[1].content == "Make the greeting.", "the agent finds the skill by its own rules"
    assert rollout.skill_use == SkillUse(loaded=True, opened=("SKILL.md",), shown=("SKILL.md",))
    lists = "import glob\nfor path in glob.glob(os.path.expanduser('~/.tiny/skills/*/SKILL.md')): open(path).read()\n"
    only = tiny(lists + "print(ask([{'role': 'user', 'content': 'There is a skill: greet.'}])['content'])")
    rollout = await once(only, ScriptedModel([say("Done.")]), skill=PACKAGE, skill_as="listed")
    assert rollout.skill_use == SkillUse(loaded=False, opened=("SKILL.md",))


async def test_a_library_lies_where_the_agent_looks_and_what_its_model_got_is_known_of_each_package():
    other = Skill("---\nname: part\ndescription: How to part.\n---\n\nAlways part from the sandbox with care.\n")
    library = make_library([make_package(PACKAGE), make_package(other)])
    reads = "text = open(os.path.expanduser('~/.tiny/skills/greet/SKILL.md')).read()\n"
    tell = "print(ask([{'role': 'user', 'content': text}])['content'])"
    rollout = await once(tiny(reads + tell), ScriptedModel([say("Done.")]), library=library)
    assert "There are skills" not in rollout.opening[0].content, "the agent finds them by its own rules"
    assert rollout.library_use == {
        "greet": SkillUse(loaded=True, opened=("SKILL.md",), shown=("SKILL.md",)),
        "part": SkillUse(loaded=False),
    }
    without = await once(tiny(reads + tell), ScriptedModel([say("Done.")]), library=library.leave_out("part"))
    assert list(without.library_use or {}) == ["greet"]
    assert without.provenance.policy != rollout.provenance.policy


@pytest.mark.parametrize("name", ["claude-code", "codex"])
def test_known_agents_have_a_folder_of_their_own_for_every_package(name: str):
    policy = Policy(maker(), agent=HarnessAgent(KNOWN[name]), library=make_library([make_package(PACKAGE)]))
    ((path, skill),) = policy.skill_files
    assert path == f"{KNOWN[name].skills}/greet/SKILL.md" and skill == PACKAGE and policy.lists_skills


async def test_the_skill_as_text_is_part_of_what_is_asked():
    rollout = await once(TINY, maker(), skill=Skill("Be exact."), system="Be kind.")
    assert rollout.opening[1].content == "Be kind.\n\nBe exact.\n\nMake the greeting."


def test_the_agent_is_part_of_the_policys_fingerprint():
    model = maker()
    prints = {
        Policy(model, agent=h and HarnessAgent(h)).fingerprint
        for h in (None, TINY, msgspec.structs.replace(TINY, name="other"))
    }
    assert len(prints) == 3
    moved = msgspec.structs.replace(TINY, mounts=(("/somewhere", "/opt/tiny"),))
    assert Policy(model, agent=HarnessAgent(moved)).fingerprint in prints
    assert Policy(model, agent=HarnessAgent(msgspec.structs.replace(TINY, version="2"))).fingerprint not in prints


async def test_an_environment_of_pure_text_gives_the_agent_a_slot():
    class Yes(Env, frozen=True):
        name: ClassVar[str] = "yes"
        sandbox: ClassVar[SandboxSpec | None] = None

        def tasks(self, split: str) -> Iterator[Task]:
            yield GREETING

        async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
            assert box is None
            return Score.of(float(rollout.answer == "yes"))

    rollout = await once(TINY, ScriptedModel([call("bash", command="ls"), say("yes")]), env=Yes())
    assert rollout.score == Score.of(1.0)


async def test_an_environment_with_its_own_tools_is_refused():
    class Tooled(TerminalTest, frozen=True):
        def tools(self, task: Task, box: Sandbox | None) -> Any:
            @tool
            async def ring() -> str:
                """Ring."""
                return "rang"

            return [ring]

    rollout = await once(TINY, maker(), env=Tooled())
    assert rollout.failure is not None
    assert rollout.failure.boundary == "setup"
    assert "ring" in rollout.failure.message


# ---- exact tokens -------------------------------------------------------------------------------------------------


def token_model(replies: Sequence[str]) -> Any:
    """A model in token mode whose engine samples ids that no tokenizer would choose."""
    pytest.importorskip("tokenizers", reason="the extra 'tokens' is not installed")
    pytest.importorskip("jinja2", reason="the extra 'tokens' is not installed")
    from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
    from tokenizers import Tokenizer as Rust

    from ludus.parsers import Parser
    from ludus.tokens.codec import Codec
    from ludus.tokens.model import TokenModel
    from ludus.tokens.render import Renderer
    from ludus.tokens.template import Template, read_template
    from ludus.tokens.tokenizer import Tokenizer
    from ludus.tokens.toy_engine import ToyEngine

    rust = Rust(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    rust.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    rust.train_from_iterator(["system user assistant tool"], trainer)
    rust.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<|im_start|>", "<|im_end|>")])
    tokenizer = Tokenizer(rust, bos="", eos="<|im_end|>")
    parser = Parser("hermes")
    template = Template(read_template("chatml"), tokens={"eos_token": "<|im_end|>"})
    codec = Codec(tokenizer, Renderer(template, tokenizer, lambda text, calls: parser.render(calls, text)), parser)
    return TokenModel(ToyEngine(tokenizer, replies, end="<|im_end|>"), codec)


async def test_in_token_mode_its_rollouts_are_training_rows():
    wanted = json.dumps({"name": "bash", "arguments": {"command": MAKE}})
    model = token_model([f"<tool_call>\n{wanted}\n</tool_call>", "Done."])
    rollout = await once(TINY, model)
    assert rollout.score is not None, rollout.failure
    assert rollout.score.passed
    (row,) = build_rows(rollout)
    last = model.engine.log[-1]
    assert row.tokens.ids == (*last.prompt, *last.ids)
    drawn = [number for number, sampled in zip(row.tokens.ids, row.tokens.sampled, strict=True) if sampled]
    assert drawn == [number for sample in model.engine.log for number in sample.ids]


# ---- how it may end -----------------------------------------------------------------------------------------------


async def test_an_agent_without_model_calls_is_a_failure_with_its_output():
    rollout = await once(tiny("print('no model for me')"), maker())
    assert rollout.score is None
    assert rollout.failure is not None
    assert rollout.failure.boundary == "agent"
    assert (
        "tiny ended with exit code 0 and never asked the model. It printed: no model for me" in rollout.failure.message
    )
    assert rollout.turns == ()


async def test_a_crash_before_the_first_call_is_a_failure_that_is_tried_again():
    rollout = await once(tiny("raise SystemExit(3)"), maker(), tries=1)
    assert rollout.failure is not None
    assert (rollout.failure.boundary, rollout.provenance.attempt) == ("agent", 2)
    assert rollout.exit is not None
    assert rollout.exit.code == 3


async def test_a_missing_program_is_not_tried_again():
    rollout = await once(msgspec.structs.replace(TINY, command="no-such-agent"), maker(), tries=2)
    assert rollout.failure is not None
    assert "no-such-agent" in rollout.failure.message
    assert (rollout.failure.retryable, rollout.provenance.attempt) == (False, 1)


async def test_after_a_crash_the_work_is_judged():
    code = f"run({MAKE!r}); ask([{{'role': 'user', 'content': 'hi'}}]); raise SystemExit('I fell')"
    rollout = await once(tiny(code), ScriptedModel([say("hello")]))
    assert rollout.stop is StopReason.CRASHED
    assert rollout.score is not None
    assert rollout.score.passed
    assert rollout.exit is not None
    assert (rollout.exit.code, rollout.exit.output.strip()) == (1, "I fell")


async def test_an_agent_past_its_time_is_killed_and_its_work_judged(pass_time):
    async def script(messages: Sequence[Message], *_: object) -> Message:
        if messages[-1].content == "on":
            pass_time(200)
            await asyncio.sleep(4321)
        return say("hello")

    code = f"""
run({MAKE!r})
ask([{{"role": "user", "content": "hi"}}])
run("setsid sleep 4321 >/dev/null 2>&1 &")
ask([{{"role": "user", "content": "on"}}])
"""
    rollout = await once(tiny(code), ScriptedModel(script), limits=Limits(rollout_seconds=100))
    assert rollout.stop is StopReason.TIMEOUT
    assert rollout.score is not None
    assert rollout.score.passed


async def test_an_agent_that_spends_its_time_before_the_first_call_has_failed(pass_time):
    class Watched(TerminalTest, frozen=True):
        async def setup(self, task: Task, box: Sandbox) -> None:
            watching.append(asyncio.create_task(watch()))

    async def watch() -> None:
        while not runs(f"sleep\0{seconds}\0".encode()):  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.01)
        pass_time(200)

    watching: list[asyncio.Task[None]] = []
    seconds = f"4321.{os.getpid()}"  # nobody else's
    code = f"print('zzz', flush=True); run('sleep {seconds}')"
    rollout = await once(tiny(code), maker(), env=Watched(), limits=Limits(rollout_seconds=100))
    assert rollout.failure is not None
    assert rollout.failure.message == "tiny ran out of time and never asked the model. It printed: zzz"


async def test_a_model_that_does_not_answer_in_time_is_a_time_out_as_in_the_loop(pass_time):
    async def script(*_: object) -> Message:
        pass_time(200)
        await asyncio.sleep(4321)
        return say("late")

    rollout = await once(TINY, ScriptedModel(script), limits=Limits(rollout_seconds=100))
    assert (rollout.stop, rollout.turns) == (StopReason.TIMEOUT, ())
    assert rollout.score is not None
    assert not rollout.score.passed


async def test_an_agent_whose_requests_cannot_be_served_has_failed():
    rollout = await once(tiny("ask([{'role': 'user', 'content': 7}])"), maker())
    assert rollout.failure is not None
    assert (rollout.failure.boundary, rollout.failure.retryable) == ("agent", True)
    assert rollout.failure.message.startswith("tiny ended with exit code 1 and got no reply of the model. It printed: ")


async def test_turns_are_limited():
    rollout = await once(TINY, ScriptedModel(lambda *_: call("bash", command=MAKE)), limits=Limits(turns=3))
    assert (rollout.stop, len(rollout.turns)) == (StopReason.MAX_TURNS, 3)
    assert rollout.score is not None
    assert rollout.score.passed


async def test_a_flood_of_output_ends_the_agent_and_not_the_driver():
    code = f"run({MAKE!r}); ask([{{'role': 'user', 'content': 'hi'}}])\nwhile True: os.write(1, b'x' * 65536)"
    rollout = await once(tiny(code), ScriptedModel([say("hello")]))
    assert rollout.stop is StopReason.CRASHED
    assert rollout.exit is not None
    assert (rollout.exit.code, len(rollout.exit.output)) == (137, 4_000)
    assert "wrote more than" in rollout.exit.output
    assert rollout.score is not None
    assert rollout.score.passed


async def test_a_model_that_breaks_is_the_models_failure():
    def script(messages: Sequence[Message], *_: object) -> Message:
        if messages[-1].role == "tool":
            raise ModelError("the server is down")
        return call("bash", command=MAKE)

    rollout = await once(TINY, ScriptedModel(script))
    assert rollout.failure is not None
    assert (rollout.failure.boundary, rollout.failure.message) == ("model", "the server is down")
    assert len(rollout.turns) == 1  # what happened before is kept
    assert rollout.turns[0].results == ()


async def test_a_model_that_cannot_be_used_stops_the_run():
    def script(*_: object) -> Message:
        raise ModelUnusable("status 401: bad key")

    with pytest.raises(ModelUnusable, match="status 401: bad key"):
        await once(TINY, ScriptedModel(script))


async def test_a_spent_budget_stops_the_run_and_scores_nothing():
    model = MeteredModel(maker(), Ledger(Budget(calls=1)), "agent")
    with pytest.raises(BudgetExhausted):
        await once(TINY, model)


async def test_a_slot_that_dies_is_the_sandboxs_failure_and_keeps_the_turns():
    class Dying(TerminalTest, frozen=True):
        async def setup(self, task: Task, box: Sandbox) -> None:
            boxes.append(box)

    boxes: list[Sandbox] = []

    async def script(messages: Sequence[Message], *_: object) -> Message:
        if messages[-1].role == "tool":
            await boxes[0].close()
        return call("bash", command=MAKE)

    rollout = await once(TINY, ScriptedModel(script), env=Dying())
    assert rollout.failure is not None
    assert rollout.failure.boundary == "sandbox"
    assert len(rollout.turns) >= 1


async def test_an_agent_that_breaks_its_slot_after_its_first_reply_has_the_score_0():
    class Watched(TerminalTest, frozen=True):
        async def setup(self, task: Task, box: Sandbox) -> None:
            boxes.append(box)

    boxes: list[Any] = []
    evidence = SlotEvidence(inside="its processes used all memory")

    async def script(messages: Sequence[Message], *_: object) -> Message:
        if messages[-1].role == "tool":
            boxes[0]._shell.fail(SandboxError("the slot ended", evidence=evidence))
        return call("bash", command=MAKE)

    rollout = await once(TINY, ScriptedModel(script), env=Watched())
    assert rollout.score is not None and rollout.stop is StopReason.BROKEN
    assert (rollout.score.value, rollout.score.feedback) == (0.0, f"The agent broke its slot: {evidence.inside}")
    assert rollout.turns[-1].stop is StopReason.BROKEN


# ---- agents that look around --------------------------------------------------------------------------------------


async def test_there_is_no_network_but_the_gateway():
    code = """
import urllib.parse
port = urllib.parse.urlsplit(os.environ["URL"]).port
found = []
for place in (("1.1.1.1", 443), ("127.0.0.1", HOST), ("127.0.0.1", port)):
    try:
        socket.create_connection(place, timeout=3).close()
        found.append("open")
    except OSError as error:
        found.append(type(error).__name__)
ask([{"role": "user", "content": " ".join(found)}])
"""
    with socket.create_server(("127.0.0.1", 0)) as host:
        rollout = await once(tiny(code.replace("HOST", str(host.getsockname()[1]))), ScriptedModel([say("I see")]))
    assert rollout.opening[-1].content == "OSError ConnectionRefusedError open"


async def test_nothing_listens_on_the_host_for_it():
    own: list[int] = []

    def script(*_: object) -> Message:
        own.append(len(_listening()))
        return say("Done.")

    before = len(_listening())
    await once(TINY, ScriptedModel(script))
    assert own == [before]


def _listening() -> set[str]:
    """This process's sockets that listen in the host's network."""
    files: set[str] = set()
    for name in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            files.add(str(name.readlink()))
    entries = (line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:])
    return {f"socket:[{fields[9]}]" for fields in entries if fields[3] == "0A"} & files


async def test_one_agent_cannot_use_anothers_session():
    """Two at once: each is told the address and key of the other and tries both, at its own port and at the other's."""
    seen: dict[str, str] = {}
    both = asyncio.Event()

    async def script(messages: Sequence[Message], *_: object) -> Message:
        words = messages[-1].content
        if words.startswith("mine: "):
            seen[words] = words
            if len(seen) == 2:
                both.set()
            await both.wait()
            return say(next(other for other in seen if other != words).removeprefix("mine: "))
        return say("so be it")

    code = """
own = f"{os.environ['URL']} {os.environ['KEY']}"
url, key = ask([{"role": "user", "content": "mine: " + own}])["content"].split()
found = []
for place, secret in ((url, key), (os.environ["URL"].replace(os.environ["KEY"], key), key)):
    try:
        ask([{"role": "user", "content": "as another"}], key=secret, url=place)
        found.append("served")
    except Exception as error:
        found.append(str(getattr(error, "code", "") or type(error).__name__))
environments = run("cat /proc/*/environ 2>/dev/null | tr '\\\\0' '\\\\n' | grep -ce " + key)
ask([{"role": "user", "content": " ".join(found) + " " + environments.strip()}])
"""

    async def go() -> list[Rollout]:
        async with asyncio.timeout(300), open_pool("bwrap") as pool:
            policy = Policy(ScriptedModel(script), agent=HarnessAgent(tiny(code)))
            return list((await run_group(GREETING, policy, Runner(TerminalTest(), pool), size=2)).rollouts)

    for rollout in await go():
        assert rollout.failure is None
        elsewhere, here, others = rollout.turns[0].notices[0].content.split()
        assert elsewhere in ("URLError", "401")  # the latter if both ports happen to have the same number
        assert (here, others) == ("401", "0")
        assert len(rollout.turns) == 2


# ---- words --------------------------------------------------------------------------------------------------------


def test_fields_are_replaced_and_quoted_in_commands_only():
    fields = {"prompt": "it's", "model": "m", "url": "http://x/v1", "anthropic_url": "u", "key": "k", "workspace": "/w"}
    assert fill_fields("go -m {model} {prompt} ${model} {other} {}", fields, quoted=True) == (
        "go -m m 'it'\"'\"'s' ${model} {other} {}"
    )
    assert fill_fields("{url} {prompt}", fields) == "http://x/v1 it's"


def test_a_conversation_becomes_one_text():
    assert render_prompt([Message("user", "Do it.")]) == "Do it."
    worked = (
        Message("system", "Be brief."),
        Message("user", "Make a."),
        Message("assistant", calls=(Call("1", "write", '{"path": "a"}'),)),
        Message("tool", "Wrote a.", call_id="1"),
        Message("assistant", "Done."),
        Message("user", "Make b."),
    )
    assert render_prompt(worked).split("\n\n") == [
        "Be brief.",
        "This was said before:",
        "user: Make a.",
        'assistant: called write with {"path": "a"}',
        "tool: Wrote a.",
        "assistant: Done.",
        "This is asked now:",
        "Make b.",
    ]


# ---- settings -----------------------------------------------------------------------------------------------------


def test_the_command_line_runs_a_command_of_the_users(tmp_path, capsys):
    (tmp_path / "script.py").write_text(
        f"from ludus.models.scripted import call, say\nreplies = [call('bash', command={MAKE!r}), say('Done.')]\n"
    )
    agents = {"mine": {"command": TINY.command, "env": dict(TINY.env), "files": dict(TINY.files)}}
    (tmp_path / "agents.yaml").write_text(json.dumps({"agent": {"harnesses": agents}}))
    out = tmp_path / "run"
    flags = {
        "agent.harness": "mine",
        "model.type": "scripted",
        "model.script": f"{tmp_path}/script.py:replies",
        "env.ids": '["greeting.txt"]',
        "sandbox.warm": "0",
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    words += ["--config", f"{tmp_path}/agents.yaml", "--out", str(out), "--quiet"]
    assert main(["process", "terminal-test", *words]) == 0
    (line,) = (out / "groups.jsonl").read_text().splitlines()
    (rollout,) = json.loads(line)["rollouts"]
    assert rollout["score"]["passed"]
    assert rollout["turns"] == 2
    assert main(["show", str(out), "greeting.txt"]) == 0
    assert "made" in capsys.readouterr().out


OBEDIENT = """
import json
from typing import ClassVar
from ludus.env import Env
from ludus.types import Score, Task


class Obedient(Env, frozen=True):
    name: ClassVar[str] = "obedient"

    def tasks(self, split):
        yield from (Task(id=f"{split}-{n}", prompt="Well?", split=split) for n in range(6))

    async def verify(self, rollout, box):
        return Score.of(float(rollout.answer == "yes"), "It should say yes.")


def agent(messages, tools, sampling):
    return "yes" if "Say yes." in messages[0].content else "no"


def optimizer(messages, tools, sampling):
    learned = {"op": "append", "content": "Say yes."}
    if sampling.stage == "analyst_failure":
        return json.dumps({"items": [learned]})
    return json.dumps({"items": [{"item": learned, "made_of": [1]}], "selected": [1], "guidance": "", "memory": ""})
"""


def test_a_skill_is_trained_for_an_agent_of_its_own(tmp_path):
    file = tmp_path / "obedient.py"
    file.write_text(OBEDIENT)
    mine = {"command": TINY.command, "env": dict(TINY.env), "files": dict(TINY.files), "skills": TINY.skills}
    settings = {
        "agent": {"harness": "mine", "skill_as": "file", "harnesses": {"mine": mine}},
        "model": {"type": "scripted", "script": f"{file}:agent"},
        "optimizer": {"type": "scripted", "script": f"{file}:optimizer"},
        "data": {"ratio": "1:1:1"},
        "train": {"recipe": "reflact", "epochs": 1},
        "run": {"out": str(tmp_path / "run"), "concurrency": 6},
    }
    (tmp_path / "settings.yaml").write_text(json.dumps(settings))
    assert main(["train", str(file), "--config", str(tmp_path / "settings.yaml"), "--quiet"]) == 0
    assert "Say yes." in (tmp_path / "run" / "final" / "SKILL.md").read_text(), (
        "learned; two tasks are too few to ship it"
    )


# ---- real agents --------------------------------------------------------------------------------------------------


def real(harness: Harness) -> Harness:
    if not os.environ.get("LUDUS_TEST_AGENTS"):
        pytest.skip("real agents are fetched and run by: make test-agents")
    return find_installation(harness, find_agents_folder())


AGENTS = pytest.mark.parametrize("harness", KNOWN.values(), ids=list(KNOWN))
FIRST = {
    "mini-swe-agent": ("bash", {"command": MAKE}),
    "codex": ("exec_command", {"cmd": MAKE}),
    "claude-code": ("Bash", {"command": MAKE, "description": "Make the file"}),
}
"""How each agent's own tool for commands is called."""
SUBMIT = ("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"})


def written(name: str, arguments: dict[str, str]) -> str:
    """A call as the toy engine's model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@AGENTS
async def test_a_real_agent_does_a_task_without_an_account_and_gives_exact_rows(harness: Harness):
    await check_task(harness, lambda model, **fields: once(real(harness), model, **fields))


async def check_task(harness: Harness, run_once: Callable[..., Awaitable[Rollout]]) -> None:
    """Have a real agent do a task, wherever it is run."""
    model = token_model([written(*FIRST[harness.name]), written(*SUBMIT) if harness is MINI_SWE_AGENT else "Done."])
    rollout = await run_once(model, skill=Skill("Be exact."), skill_as="file")
    assert rollout.failure is None, rollout.exit
    assert (rollout.stop, rollout.exit and rollout.exit.code) == (StopReason.FINISHED, 0)
    assert rollout.score is not None
    assert rollout.score.passed
    assert FIRST[harness.name][0] in rollout.provenance.tools
    assert "made" in rollout.turns[0].results[0].content
    told = "\n".join(message.content for message in rollout.opening)
    assert "Make the greeting." in told
    # In the agent's own list of skills, if it has one.
    assert ("- task-skill: " if harness.skills else "Your skill is in /tmp/skills/task-skill/SKILL.md.") in told
    found, log = build_rows(rollout), model.engine.log
    for sample in log:
        start, end = len(sample.prompt), len(sample.prompt) + len(sample.ids)
        whole = [row for row in found if row.tokens.ids[:end] == (*sample.prompt, *sample.ids)]
        assert any(all(row.tokens.sampled[start:end]) for row in whole)
    assert sum(sum(row.tokens.sampled) for row in found) == sum(len(sample.ids) for sample in log)


@AGENTS
async def test_a_real_agent_is_stopped_at_its_last_turn(harness: Harness):
    name, arguments = FIRST[harness.name]
    model = ScriptedModel(lambda *_: call(name, **arguments))
    rollout = await once(real(harness), model, limits=Limits(turns=2, rollout_seconds=90))
    assert (rollout.stop, len(rollout.turns)) == (StopReason.MAX_TURNS, 2)
    assert rollout.score is not None
    assert rollout.score.passed
