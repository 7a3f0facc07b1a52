"""Prompts are what the template renders, at a cost that is linear in turns."""

import pytest

from ludus.tokens.render import ConversationState, Extension, ShortPrefix, find_kind
from ludus.tokens.session_tree import Node
from ludus.types import Message, Reasoning


@pytest.mark.parametrize("template", ["plain", "thinking", "quoting"])
def test_facts_say_that_short_conversations_are_enough(tokens, template):
    renderer = tokens.codec(template).renderer
    for answered, follows in ((False, False), (True, True), (True, False)):
        assert renderer.find_facts(ConversationState(True, True, answered, follows)).prefixes.keys() == {"tool", "user"}


NEEDS_TOOLS = """
{%- for m in messages %}{{ '[' + m.role + ']' + m.content + '</s>' }}
{{- '(tools)' if tools and m.role == 'tool' else '' }}
{%- endfor %}{{ '[assistant]' if add_generation_prompt else '' }}"""


@pytest.mark.parametrize(
    ("template", "leads"),
    [
        ("plain", {"tool": ShortPrefix(False, False), "user": ShortPrefix(False, False)}),
        (
            "quoting",
            {"tool": ShortPrefix(True, False), "user": ShortPrefix(False, False)},
        ),  # first answers look different
        (NEEDS_TOOLS, {"tool": ShortPrefix(False, True), "user": ShortPrefix(False, False)}),
    ],
    ids=["plain", "first-answer", "tools"],
)
def test_a_short_conversation_begins_with_no_more_than_the_template_looks_at(tokens, template, leads):
    assert tokens.codec(template).renderer.find_facts(ConversationState(True, True, True, True)).prefixes == leads


def test_facts_say_what_has_to_be_rendered_whole(tokens):
    renderer = tokens.codec("moving").renderer
    assert renderer.find_facts(ConversationState(True, True, False, False)).prefixes == {}
    assert renderer.find_facts(ConversationState(True, True, True, True)).prefixes.keys() == {"tool"}
    assert renderer.style.short_ids
    assert renderer.style.stand_in == "calls"


@pytest.mark.parametrize("template", ["plain", "quoting"])
def test_prompts_are_what_the_template_renders(tokens, template):
    """With replies in the tokenizer's own ids, the prompt is the whole conversation rendered and encoded at once."""
    talk = tokens.start(template)
    talk.engine.scatter = 0.0
    for turn in range(8):
        talk.sample(f"Reply {turn}.")
        talk.messages.append(Message("user", f"Question {turn}?"))
        prompt = talk.session.build_prompt(talk.messages, talk.tools)
        text = talk.codec.renderer.render_prompt(talk.messages, talk.tools)
        assert talk.codec.tokenizer.decode(prompt.ids) == text
        assert prompt.ids == talk.codec.tokenizer.encode(text)


def test_a_template_that_rewrites_nothing_gives_one_row(tokens):
    for template in ("plain", "quoting"):
        talk = tokens.start(template).run(12, thinks=True, users=(3, 7))
        assert len(talk.rows) == 1, template
        assert all(completion.splice is None for completion in talk.completions)


def test_dropped_thinking_starts_a_branch_where_the_round_began(tokens):
    talk = tokens.start("thinking").run(6, thinks=True, users=(2,))
    first, second = talk.rows
    assert first.steps == (0, 1, 2)
    assert second.steps == (3, 4, 5)
    shown = talk.codec.tokenizer.decode(second.tokens.ids)
    assert shown.count("Let me see") == 3  # its own round's thinking; the earlier round's is gone
    assert "Fertig 2" in shown
    assert second.shared > 0
    assert first.tokens.ids[: second.shared] == second.tokens.ids[: second.shared]


def test_append_keeps_what_the_template_would_rewrite(tokens):
    for template in ("thinking", "moving"):
        talk = tokens.start(template, history="append").run(8, thinks=True, users=(2, 5))
        assert talk.is_exact()
        assert len(talk.rows) == 1, template
        assert talk.codec.tokenizer.decode(talk.rows[0].tokens.ids).count("Let me see") == 8


@pytest.mark.parametrize("template", ["plain", "thinking", "quoting"])
def test_rendering_and_storage_are_linear_in_turns(tokens, template):
    def cost(turns):
        talk = tokens.start(template)
        talk.run(3)  # what the template does is found out first
        before = talk.codec.renderer.template.rendered_messages
        talk.run(turns, thinks=True)
        stored = sum(len(step.tokens) for step in talk.session.steps)
        assert stored == len(talk.rows[-1].tokens)
        return talk.codec.renderer.template.rendered_messages - before

    assert cost(96) <= 2.6 * cost(48) <= 2.6 * 2.6 * cost(24)


def test_long_rounds_with_thinking_stay_linear(tokens):
    def cost(rounds):
        talk = tokens.start("thinking")
        talk.run(4, thinks=True, users=(1, 3))
        before = talk.codec.renderer.template.rendered_messages
        talk.run(4 * rounds, thinks=True, users=range(3, 4 * rounds, 4))
        return talk.codec.renderer.template.rendered_messages - before

    assert cost(24) <= 2.6 * cost(12)


USER, RESULT = Message("user", "And?"), Message("tool", "There.", call_id="1")


@pytest.mark.parametrize(
    ("messages", "kind"), [((RESULT, RESULT), "tool"), ((USER,), "user"), ((RESULT, USER), "user"), ((), "user")]
)
def test_messages_are_tool_results_only_or_anything_else(messages, kind):
    assert find_kind(messages) == kind


def start(renderer, reply, *, ended=True):
    """A leaf with one sampled reply."""
    opening = (Message("user", "Where?"),)
    given = Node(Node(None, ()), opening, shape=renderer.render_prompt(opening, ()))
    return Node(given, (reply,), sampled=True, ended=ended)


def test_the_delta_has_a_stop_token_only_if_none_was_sampled(tokens):
    renderer = tokens.codec().renderer
    after = "\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n"
    for ended, delta in ((True, after), (False, "<|im_end|>" + after)):
        leaf = start(renderer, Message("assistant", "Here."), ended=ended)
        extension = renderer.extend(leaf, (USER,), ())
        assert extension == Extension(leaf, delta) == renderer.render_whole(leaf, (USER,), ())
        assert renderer.matches_whole(leaf, (USER,), extension, ())
        assert not renderer.matches_whole(leaf, (USER,), Extension(leaf, "other"), ())


def test_a_history_that_is_rewritten_is_rendered_from_where_it_still_holds(tokens):
    """The template drops the thinking of the first round as soon as the user speaks again."""
    renderer = tokens.codec("thinking").renderer
    leaf = start(renderer, Message("assistant", "Here.", reasoning=Reasoning("hm", "think")))
    extension = renderer.extend(leaf, (USER,), ())
    assert extension.parent is leaf.parent
    assert extension.text.startswith("Here.<|im_end|>\n<|im_start|>user\nAnd?")
