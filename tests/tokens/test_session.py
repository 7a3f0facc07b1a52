"""Rows hold exactly what the engine saw and sampled, whatever the template and the conversation."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.errors import ModelError
from ludus.tokens import Generation
from ludus.types import Call, Finish, Message, Reasoning, Sampling, ToolSpec


@pytest.mark.parametrize("template", ["plain", "thinking", "moving", "quoting"])
@pytest.mark.parametrize("thinks", [False, True], ids=["plain", "thinks"])
@pytest.mark.parametrize("system", ["", "Be brief."], ids=["no-system", "system"])
@pytest.mark.parametrize("users", [(), (2, 5), (0, 1, 2, 3, 4, 5, 6, 7)], ids=["tools", "mixed", "chat"])
def test_every_sampled_id_is_in_one_row_after_its_own_prompt(tokens, template, thinks, system, users):
    talk = tokens.start(template, system=system).run(8, thinks=thinks, users=users)
    assert talk.is_exact()
    assert talk.session._trusts_short
    assert talk.foreign == 0


def test_parallel_calls_stay_one_sequence(tokens):
    talk = tokens.start().run(5, calls=3)
    assert talk.is_exact()
    assert len(talk.rows) == 1


# ---- ends of turns ------------------------------------------------------------------------------------------------


def test_a_stop_token_is_neither_doubled_nor_lost(tokens):
    talk = tokens.start().run(4, users=(1,))
    text = talk.codec.tokenizer.decode(talk.rows[0].tokens.ids)
    assert "<|im_end|><|im_end|>" not in text
    assert text.count("<|im_end|>") == text.count("<|im_start|>")


def test_a_reply_that_was_cut_gets_its_end_from_the_template(tokens):
    talk = tokens.start()
    completion = talk.sample("A long reply that goes on and on and on", max_tokens=5)
    assert completion.finish is Finish.LENGTH
    talk.messages.append(Message("user", "Go on."))
    talk.sample("More.")
    assert talk.is_exact()
    (row,) = talk.rows
    end = row.tokens.sampled.index(True) + 5
    assert talk.codec.tokenizer.stop_tokens[row.tokens.ids[end]] == "<|im_end|>"
    assert not row.tokens.sampled[end]


def test_another_end_token_stands_for_the_templates(tokens):
    talk = tokens.start()
    prompt = talk.session.build_prompt(talk.messages, talk.tools)
    other = talk.codec.tokenizer.find_id("</s>")
    ids = (*talk.codec.tokenizer.encode("Done."), other)
    drawn = Generation(ids=ids, logprobs=(-1.0,) * len(ids), finish=Finish.STOP)
    completion = talk.session.add_completion(prompt, drawn)
    assert completion.message.content == "Done."
    after = talk.session.build_prompt([*talk.messages, completion.message, Message("user", "And?")], talk.tools)
    assert "Done.</s>\n<|im_start|>user\nAnd?" in talk.codec.tokenizer.decode(after.ids)


def test_an_empty_completion_is_a_turn(tokens):
    talk = tokens.start()
    prompt = talk.session.build_prompt(talk.messages, talk.tools)
    completion = talk.session.add_completion(prompt, Generation(ids=(), logprobs=(), finish=Finish.STOP))
    assert completion.message.content == ""
    assert completion.tokens is not None and not any(completion.tokens.sampled)
    talk.messages += [completion.message, Message("user", "Hello?")]
    talk.sample("Yes.")
    assert talk.is_exact()
    assert "assistant\n<|im_end|>\n<|im_start|>user\nHello?" in talk.codec.tokenizer.decode(talk.rows[0].tokens.ids)


# ---- what callers send back ---------------------------------------------------------------------------------------


def test_history_is_matched_by_meaning_and_the_recorded_ids_are_used(tokens):
    talk = tokens.start()
    call = '<tool_call>\n{"name":"look",  "arguments":{"at": "a", "deep":true}}\n</tool_call>'
    text = f"<think>\nhm\n</think>\n\nI look.\n{call}"
    sampled = talk.sample(text)
    (call,) = sampled.message.calls
    copied = Message("assistant", " I look. ", (Call("other_id", "look", '{"deep":true,"at":"a"}'),))
    history = [talk.messages[0], talk.messages[1], copied, Message("tool", "ok", call_id="other_id")]
    talk.sample("Done.", messages=history)
    assert talk.completions[1].splice is None
    assert talk.is_exact()
    assert call.arguments != copied.calls[0].arguments


@pytest.mark.parametrize(
    "edited",
    [
        Message("assistant", "I look elsewhere.", (Call("call_0", "look", '{"at": "a"}'),)),
        Message("assistant", "I look.", (Call("call_0", "look", '{"at": "b"}'),)),
        Message("assistant", "I look.", (Call("call_0", "look", '{"at": true}'),)),
        Message("assistant", "I look.", (Call("call_0", "see", '{"at": "a"}'),)),
        Message("assistant", "I look."),
        Message("assistant", "I look.", (Call("call_0", "look", '{"at": "a"}'),), reasoning=Reasoning("no", "think")),
    ],
    ids=["words", "arguments", "type", "tool", "no-call", "reasoning"],
)
def test_an_edited_reply_starts_a_branch(tokens, edited):
    talk = tokens.start()
    sampled = talk.sample(tokens.THOUGHT + tokens.call_text(talk.codec, "I look.", at="a"))
    talk.sample("Done.", messages=[*talk.messages[:2], edited, Message("tool", "ok", call_id="call_0")])
    assert talk.completions[1].splice is not None
    assert talk.foreign == 1
    assert talk.is_exact()
    assert len(talk.rows) == 2
    assert sampled.message != edited


def test_a_compacted_history_starts_a_branch(tokens):
    talk = tokens.start().run(4)
    talk.sample("Fine.", messages=[talk.messages[0], Message("user", "Summary: you looked four times.")])
    assert len(talk.rows) == 2
    assert talk.rows[1].shared > 0  # the system text with the tools
    assert talk.is_exact()


async def test_several_samples_of_one_prompt_are_branches_that_share_it(tokens):
    talk = tokens.start()
    prompt = talk.session.build_prompt(talk.messages, talk.tools)
    talk.engine.replies = lambda _: "Same words."
    for drawn in await talk.engine.generate(prompt.ids, Sampling(max_tokens=50), 3):
        talk.session.add_completion(prompt, drawn)
    assert talk.is_exact()
    rows = talk.rows
    assert [row.steps for row in rows] == [(0,), (1,), (2,)]
    assert [row.shared >= len(prompt.ids) for row in rows] == [False, True, True]


def test_a_retry_of_the_same_prompt_uses_the_same_node(tokens):
    talk = tokens.start()
    first = talk.session.build_prompt(talk.messages, talk.tools)
    again = talk.session.build_prompt(list(talk.messages), talk.tools)
    assert again.node is first.node


def test_sub_agents_with_other_tools_do_not_disturb_each_other(tokens):
    talk = tokens.start()
    both = (tokens.LOOK, ToolSpec("ask", "Asks somebody.", {"type": "object", "properties": {}}))
    main, side = list(talk.messages), [talk.messages[0], Message("user", "Only look.")]
    for turn in range(3):
        for history, tools in ((main, both), (side, both[:1])):
            talk.tools = tools
            completion = talk.sample(tokens.call_text(talk.codec, at=f"{turn}"), messages=history)
            history += [completion.message, Message("tool", f"{turn}", call_id=completion.message.calls[0].id)]
    assert talk.is_exact()
    assert len(talk.rows) == 2


async def test_two_requests_at_once_in_one_session(tokens):
    talk = tokens.start()
    one = talk.session.build_prompt(talk.messages, talk.tools)
    two = talk.session.build_prompt(talk.messages, talk.tools)
    talk.engine.replies = lambda _: "Reply."
    drawn = [(await talk.engine.generate(p.ids, Sampling(max_tokens=50)))[0] for p in (one, two)]
    talk.session.add_completion(two, drawn[1])
    talk.session.add_completion(one, drawn[0])
    assert talk.is_exact()


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from(["go on", "edit", "again", "shorten", "user"]), min_size=1, max_size=12), st.integers(0, 3)
)
def test_any_course_of_events_is_exact(tokens, events, which):
    talk = tokens.start(["plain", "thinking", "moving", "quoting"][which], seed=len(events))
    for number, event in enumerate(events):
        if event == "edit" and len(talk.messages) > 3:
            talk.messages[2] = Message("assistant", f"Edited {number}.")
            talk.messages[3:] = [Message("user", "So?")]
        elif event == "shorten":
            del talk.messages[2:]
        elif event == "again" and talk.messages[-1].role != "assistant":
            talk.sample("Another try.", messages=talk.messages)
        thought = tokens.THOUGHT if number % 2 else ""
        completion = talk.sample(
            thought + (f"Say {number}." if event == "user" else tokens.call_text(talk.codec, at=f"ü{number}"))
        )
        if completion.message.calls:
            talk.add_results(completion)
        else:
            talk.messages.append(Message("user", f"Next {number}."))
    assert talk.is_exact()


# ---- cost ---------------------------------------------------------------------------------------------------------


def test_a_template_that_changes_in_long_conversations_is_rendered_whole(tokens):
    """Longer than what it is tried out with, a conversation begins differently."""
    odd = tokens.TEMPLATES["plain"].replace(
        "{%- macro", "{{ 'Long talk. ' if messages | length > 25 else '' }}{%- macro", 1
    )
    talk = tokens.start(odd).run(24, users=range(24))
    assert not talk.session._trusts_short
    assert talk.is_exact()
    assert talk.codec.tokenizer.decode(talk.rows[-1].tokens.ids).startswith("Long talk.")


# ---- engines that do not tell the truth ---------------------------------------------------------------------------


def drawn(talk, **changes):
    ids = (*talk.codec.tokenizer.encode("Hello."), next(iter(talk.codec.tokenizer.stop_tokens)))
    fields = {"ids": ids, "logprobs": (-0.5,) * len(ids), "finish": Finish.STOP, "text": "Hello."}
    return Generation(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt": (1, 2, 3)}, "another prompt than it was sent"),
        ({"prompt_tokens": 3}, "counted 3 ids in a prompt of"),
        ({"logprobs": (-0.5,)}, "1 logprobs for"),
        ({"text": "Hello, and much more than the ids say."}, "ids are missing"),
        ({"text": "Hello.<tool_call>{}</tool_call>"}, "ids are missing"),
        ({"text": "Goodbye, dear."}, "ids are missing"),
        ({"ids": (-1, 5), "logprobs": (-1.0, -1.0)}, "an id that no vocabulary has: -1"),
        ({"ids": (5, 2**31), "logprobs": (-1.0, -1.0)}, "an id that no vocabulary has: 2147483648"),
    ],
)
def test_an_inconsistent_reply_is_a_model_error(tokens, changes, words):
    talk = tokens.start()
    prompt = talk.session.build_prompt(talk.messages, talk.tools)
    with pytest.raises(ModelError, match=words):
        talk.session.add_completion(prompt, drawn(talk, **changes))
    assert not talk.session.steps


@pytest.mark.parametrize("text", [None, "", "Hel", " Hello. ", "Hello.<|im_end|>", "Hello.</s>"])
def test_a_text_that_is_shorter_or_names_the_end_fits_the_ids(tokens, text):
    talk = tokens.start()
    prompt = talk.session.build_prompt(talk.messages, talk.tools)
    assert talk.session.add_completion(prompt, drawn(talk, text=text)).message.content == "Hello."


def test_logprobs_that_are_no_numbers_are_none(tokens):
    talk = tokens.start()
    good = drawn(talk)
    values = [-0.5] * len(good.ids)
    values[:3] = [float("-inf"), float("nan"), None]
    prompt = talk.session.build_prompt(talk.messages, talk.tools)
    completion = talk.session.add_completion(prompt, drawn(talk, logprobs=tuple(values)))
    assert completion.tokens.logprobs[-len(values) :] == (None, None, None, *[-0.5] * (len(values) - 3))


def test_a_stop_string_inside_of_a_character(tokens):
    """The engine stops in the middle of a character: the ids stay, the text has a replacement."""
    talk = tokens.start()
    data = "Gut \U0001f600".encode()[:-2]
    ids = tuple(talk.engine._bytes[byte] for byte in data)
    prompt = talk.session.build_prompt(talk.messages, talk.tools)
    made = Generation(ids=ids, logprobs=(-0.1,) * len(ids), finish=Finish.STOP, text="Gut ", prompt=tuple(prompt.ids))
    completion = talk.session.add_completion(prompt, made)
    assert completion.message.content.startswith("Gut \ufffd")
    talk.messages += [completion.message, Message("user", "What?")]
    after = talk.session.build_prompt(talk.messages, talk.tools)
    assert after.ids[len(prompt.ids) : len(prompt.ids) + len(ids)] == list(ids)


def test_a_stop_string_is_cut_from_the_text_but_not_from_the_ids(tokens):
    talk = tokens.start()
    completion = talk.sample("One. STOP Two.", stop=("STOP",))
    assert completion.message.content == "One. "
    assert "STOP" in talk.codec.tokenizer.decode(talk.engine.log[-1].ids)
    talk.messages.append(Message("user", "Go on."))
    talk.sample("Three.")
    assert talk.is_exact()


def test_ids_beyond_the_vocabulary_are_kept_for_the_check_to_find(tokens):
    talk = tokens.start()
    prompt = talk.session.build_prompt(talk.messages, talk.tools)
    completion = talk.session.add_completion(prompt, Generation(ids=(10**6,), logprobs=(-1.0,), finish=Finish.STOP))
    assert completion.tokens.ids[-1] == 10**6
