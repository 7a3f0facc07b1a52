"""Worked examples: what is rendered is parsed again, and nothing else is taken for an example."""

from collections.abc import Sequence
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.env import Env
from ludus.models.scripted import ScriptedModel, say
from ludus.policy import Policy
from ludus.rollout import run
from ludus.runner import Job, Runner
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.skill import Edit, Skill, apply_edits
from ludus.skill_examples import Example, parse_examples, remove_examples, render_example
from ludus.types import Message, Rollout, Sampling, Score, Task, ToolSpec

ORDER = Example("Please send 83 blue lamps.", "lamps|blue|83")
OTHER = Example("2 red hats, please.", "hats|red|2")

texts = st.text(alphabet=st.sampled_from("ab `~#\n\r:") | st.characters(codec="utf-8"), max_size=80)
examples = st.builds(Example, texts, texts)


@given(st.lists(examples, max_size=4))
def test_what_is_rendered_is_parsed(wanted: list[Example]):
    document = "\n\n".join(["# Title", *map(render_example, wanted), "The end."])
    assert parse_examples(document) == tuple(wanted)
    assert remove_examples(document).split() == ["#", "Title", "The", "end."]


@given(st.lists(examples, min_size=1, max_size=3))
def test_a_shown_document_within_a_fence_is_no_example(shown: list[Example]):
    nested = render_example(Example("How is it written?", "\n\n".join(map(render_example, shown))))
    assert len(parse_examples(nested)) == 1
    assert remove_examples(nested) == ""


@given(st.text(alphabet="#` \n~Exampl:InputO", max_size=200))
def test_other_text_stays_as_it_is(text: str):
    assert parse_examples(text) == ()
    assert remove_examples(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "## Example\n\nInput:\n\n```\na\n```\n",  # no output
        "## Example\n\nInput:\n\n```\na\n```\n\nOutput:\n\n```\nb\n",  # not closed
        "## Example\n\nInput: a\n\nOutput: b\n",
        render_example(ORDER).replace("## Example", "### Example"),
        f"~~~~markdown\n{render_example(ORDER)}\n~~~~\n",
        f"`````\n{render_example(ORDER)}\n`````\n",
        f"~~~\n{render_example(ORDER)}",
        f"```\n{render_example(ORDER)}\n",
    ],
)
def test_what_is_not_in_the_form_is_no_example(text: str):
    assert parse_examples(text) == ()
    assert remove_examples(text) == text


def test_the_form_is_the_one_that_is_documented():
    text = "\n\n".join(
        ["## Example", "Input:", f"```text\n{ORDER.input}\n```", "Output:", f"```text\n{ORDER.output}\n```"]
    )
    assert render_example(ORDER) == text
    by_hand = "## Example  \nInput:\n```\nPlease send 83 blue lamps.\n```\nOutput:\n```md\nlamps|blue|83\n```"
    assert parse_examples(by_hand) == (ORDER,)


def test_an_edit_adds_an_example_and_another_takes_its_place():
    skill, _ = apply_edits(Skill("# Orders\n"), [Edit("append", render_example(ORDER)), Edit("append", "Be brief.")])
    assert parse_examples(skill.text) == (ORDER,)
    assert remove_examples(skill.text) == "# Orders\n\nBe brief.\n"
    skill, (report,) = apply_edits(skill, [Edit("replace", render_example(OTHER), render_example(ORDER))])
    assert (report.status, parse_examples(skill.text)) == ("applied_replace", (OTHER,))


# ---- as earlier turns ---------------------------------------------------------------------------------------------


class Ask(Env, frozen=True):
    name: ClassVar[str] = "ask"
    sandbox: ClassVar[SandboxSpec | None] = None
    system: ClassVar[str] = "Make records."

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        return Score.of(1.0)


async def make_opening(policy: Policy) -> list[tuple[str, str]]:
    task = Task(id="t", prompt="3 green cups, please.")
    rollout = await run(Job(task, policy), Runner(Ask()))
    return [(message.role, message.content) for message in rollout.opening]


def echo(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Message:
    return say("ok")


SKILL = Skill(f"# Orders\n\n{render_example(ORDER)}\n\n{render_example(OTHER)}\n\nBe brief.\n")


async def test_examples_as_turns_come_before_the_task_and_leave_the_system_text():
    assert await make_opening(Policy(ScriptedModel(echo), SKILL, examples_as="turns")) == [
        ("system", "Make records.\n\n# Orders\n\nBe brief.\n"),
        ("user", ORDER.input),
        ("assistant", ORDER.output),
        ("user", OTHER.input),
        ("assistant", OTHER.output),
        ("user", "3 green cups, please."),
    ]


async def test_a_skill_of_nothing_but_examples_leaves_no_text():
    messages = await make_opening(Policy(ScriptedModel(echo), Skill(render_example(ORDER)), examples_as="turns"))
    assert [role for role, _ in messages] == ["system", "user", "assistant", "user"]
    assert messages[0] == ("system", "Make records.")


async def test_examples_as_text_are_part_of_the_skill():
    assert await make_opening(Policy(ScriptedModel(echo), SKILL)) == [
        ("system", f"Make records.\n\n{SKILL.text}"),
        ("user", "3 green cups, please."),
    ]
    assert Policy(ScriptedModel(echo), examples_as="turns").example_messages == ()


def test_where_examples_stand_is_in_the_fingerprint():
    text, turns = Policy(ScriptedModel(echo), SKILL), Policy(ScriptedModel(echo), SKILL, examples_as="turns")
    assert text.fingerprint != turns.fingerprint
