"""Prompts are what the template renders, at a cost that is linear in turns."""

import pytest

from ludus.tokens.render import ConversationState, Extension, ShortPrefix, find_kind
from ludus.tokens.session_tree import Node
from ludus.types import Call, Message, Reasoning


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


# Reasoning is in a field of its own, and is shown until the round has ended. Calls stand alone.
HARMONY = """
{%- for m in messages %}
{%- if m.role != 'assistant' %}{{ '<s>' + m.role + '|' + m.content + '<|im_end|>' }}
{%- elif m.tool_calls %}
{%- if m.content and m.thinking %}{{ raise_exception('not both') }}{% endif %}
{%- set later = messages[loop.index:] | selectattr('role', 'equalto', 'assistant') | rejectattr('tool_calls') | list %}
{%- if (m.content or m.thinking) and not later %}{{ '<s>analysis|' + (m.content or m.thinking) + '</s>' }}{% endif %}
{{- '<s>call ' + m.tool_calls[0].function.name + '|' + m.tool_calls[0].function.arguments | tojson + '<|im_end|>' }}
{%- else %}{{ '<s>final|' + m.content + '<|im_end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<s>' }}{% endif %}"""


def test_reasoning_goes_into_the_field_of_a_template_that_has_one_and_knows_no_blocks(tokens):
    renderer = tokens.codec(HARMONY).renderer
    assert (renderer.style.reasoning, renderer.style.calls_alone) == ("thinking", True)
    thought, call = Reasoning("Hm.", "reasoning_content"), Call("c", "look", '{"at": "x"}')
    asked = Message("user", "Q")
    called = Message("assistant", "", (call,), reasoning=thought)
    spoken = Message("assistant", "I look.", (call,), reasoning=thought)
    answer, final = Message("tool", "R", call_id="c"), Message("assistant", "Yes.", reasoning=thought)
    shown = '<s>call look|{"at": "x"}<|im_end|><s>tool|R<|im_end|>'
    assert renderer.render_prompt((asked, called, answer), ()).endswith(f"<s>analysis|Hm.</s>{shown}<s>")
    assert renderer.render_prompt((asked, spoken, answer), ()).endswith(f"<s>analysis|Hm.\nI look.</s>{shown}<s>")
    done = (asked, called, answer, final, asked)
    assert renderer.render_prompt(done, ()) == (
        f"<s>user|Q<|im_end|>{shown}<s>final|Yes.<|im_end|><s>user|Q<|im_end|><s>"
    )


def test_a_think_block_stays_where_the_template_understands_it_or_has_no_field(tokens):
    for name in tokens.TEMPLATES:
        assert tokens.codec(name).renderer.style.reasoning == "block"


@pytest.mark.parametrize("history", ["template", "append"])
def test_a_conversation_with_a_field_for_reasoning_is_exact(tokens, history):
    talk = tokens.start(HARMONY, system="", history=history)
    for turn in range(6):
        thought = tokens.THOUGHT if turn % 3 else ""
        if turn % 3 == 2:
            talk.sample(f"{thought}Yes {turn}.")
            talk.messages.append(Message("user", "Go on."))
        else:
            talk.add_results(talk.sample(thought + tokens.call_text(talk.codec, at=f"place {turn}")))
    assert talk.is_exact()
    assert history == "template" or len(talk.rows) == 1


# Results are shown inside the message that made the calls, and its content after them.
LATE = """
{%- for m in messages %}
{%- if m.role == 'assistant' %}{{ '<s>assistant|' }}
{%- for c in m.tool_calls or [] %}{{ '[call ' + c.function.name + c.function.arguments | tojson + ']<|im_end|>' }}
{%- set answers = messages | selectattr('tool_call_id', 'defined') | selectattr('tool_call_id', 'equalto', c.id) %}
{%- for answer in answers %}{{ '[result ' + answer.content + ']' }}{% endfor %}{% endfor %}
{{- m.content + ('' if m.tool_calls else '<|im_end|>') }}
{%- elif m.role != 'tool' %}{{ '<s>' + m.role + '|' + m.content + '<|im_end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt and messages[-1].role != 'tool' %}{{ '<s>assistant|' }}{% endif %}"""


@pytest.mark.parametrize("history", ["template", "append"])
def test_results_that_are_shown_before_the_content_of_their_calls_are_not_lost(tokens, history):
    talk = tokens.start(LATE, system="", history=history)
    assert talk.codec.renderer.style.late_content
    for turn in range(4):
        talk.add_results(talk.sample(tokens.call_text(talk.codec, "I look.", at=f"place {turn}")), f"found {turn}")
    talk.sample("Done.")
    last = tokens.tokenizer.decode(talk.engine.log[-1].prompt)
    assert [last.count(f"[result found {turn}]") for turn in range(4)] == [1] * 4
    assert talk.is_exact()
