"""Conversations as text."""

from ludus.compat.hermes_env.display import format_messages


def test_a_conversation_is_shown_with_calls_and_shortened_texts():
    call = {"function": {"name": "terminal", "arguments": "x" * 250}}
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": None, "reasoning_content": "t" * 301, "tool_calls": [call]},
        {"role": "tool", "content": "r" * 501, "tool_call_id": "1"},
        {"role": "assistant", "content": "done"},
    ]
    parts = format_messages(messages).split("\n\n")
    assert parts[:2] == ["[SYSTEM]\ns", "[USER]\nu"]
    assert parts[2] == f"[ASSISTANT thinking]\n{'t' * 300}..."
    assert parts[3] == f"[TOOL CALL] terminal({'x' * 200}...)"
    assert parts[4] == f"[TOOL RESULT] {'r' * 500}..."
    assert parts[5:] == ["[ASSISTANT]\ndone"]
