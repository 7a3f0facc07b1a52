"""Templates run as their authors wrote them, in a sandbox."""

from datetime import datetime

import pytest

from ludus.errors import ConfigError
from ludus.tokens.template import Template, TemplateFault, read_template

ONE = [{"role": "user", "content": "hi"}]


def render(source, messages=ONE, tools=None, **options):
    return Template(source, **options).render(messages, tools)


def test_json_is_written_as_models_were_trained_on_it():
    tool = {"b": 1, "a": "<ü> & 'x'"}
    assert render("{{ tools[0] | tojson }}", tools=[tool]) == '{"b": 1, "a": "<ü> & \'x\'"}'
    assert render("{{ tools[0] | tojson(indent=2) }}", tools=[{"a": 1}]) == '{\n  "a": 1\n}'


def test_block_lines_leave_no_lines_behind():
    assert (
        render("{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}") == "hi\n"
    )


def test_the_date_is_fixed_when_the_template_is_made():
    template = Template("{{ strftime_now('%d %b %Y %H:%M') }}", now=datetime(2024, 7, 26, 23, 59))
    assert template.render(ONE) == template.render(ONE) == "26 Jul 2024 23:59"


def test_the_generation_tag_prints_its_inside():
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}!") == "hi!"


def test_loop_controls_work():
    assert (
        render("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% endfor %}") == ""
    )


def test_variables_and_special_tokens_are_known():
    source = "{{ bos_token }}{{ 'off' if enable_thinking is defined and not enable_thinking else 'on' }}"
    assert render(source, tokens={"bos_token": "<s>"}) == "<s>on"
    assert render(source, tokens={"bos_token": "<s>"}, variables={"enable_thinking": False}) == "<s>off"


def test_tool_use_has_a_template_of_its_own():
    sources = {"default": "plain", "tool_use": "with {{ tools | length }}"}
    assert render(sources) == "plain"
    assert render(sources, tools=[{}]) == "with 1"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('No tools here!') }}", "refused the conversation: No tools here!"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{{ messages[7].content + 'x' }}", "refused the conversation"),
    ],
)
def test_a_template_that_raises_is_a_config_error_that_quotes_it(source, words):
    with pytest.raises(TemplateFault, match=words):
        render(source)


def test_what_is_no_jinja_is_refused_at_once():
    with pytest.raises(TemplateFault, match="not valid Jinja"):
        Template("{% if %}")


def test_no_template_says_what_to_do():
    with pytest.raises(ConfigError, match="chatml"):
        Template({})


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'content': 'x'}) }}",
        "{{ messages[0].__class__ }}{{ messages[0].__init__.__globals__ }}",
        "{{ '{0.__class__}'.format(messages) }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source):
    messages = [{"role": "user", "content": "hi"}]
    try:
        text = render(source, messages)
    except TemplateFault:
        text = ""
    assert "class" not in text
    assert messages == ONE


def test_the_short_ways_of_the_sandbox_change_nothing():
    source = (
        "{{ messages[0].content.split('i')[0] }}{{ messages[0]['role'] }}{{ messages[0].missing is defined }}"
        "{{ messages[0].items() | list | length }}{% set ns = namespace(a=1) %}{{ ns.a }}{{ ns.b is defined }}"
        "{% for m in messages %}{{ loop.index0 }}{{ loop.last }}{{ loop.previtem is defined }}{% endfor %}"
    )
    assert render(source) == "huserFalse21False0TrueFalse"


def test_built_in_templates_and_files(tmp_path):
    assert "<|im_start|>" in read_template("chatml")
    (tmp_path / "own.jinja").write_text("mine")
    assert read_template(str(tmp_path / "own.jinja")) == "mine"
    with pytest.raises(ConfigError, match=r"neither a file nor a built-in template \(chatml\)"):
        read_template("chatlm")


def test_chatml_shows_everything():
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": {"at": "ü"}}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call, call]},
        {"role": "tool", "content": "Here.", "tool_call_id": "1"},
        {"role": "tool", "content": "There.", "tool_call_id": "1"},
    ]
    tools = [{"type": "function", "function": {"name": "look", "description": "d", "parameters": {}}}]
    text = Template(read_template("chatml")).render(messages, tools)
    one = '<tool_call>\n{"name": "look", "arguments": {"at": "ü"}}\n</tool_call>'
    assert text.startswith('<|im_start|>system\nBe brief.\n\nYou can call these functions:\n<tools>\n{"name": "look"')
    assert f"<|im_start|>assistant\nI look.\n{one}\n{one}<|im_end|>\n" in text
    answers = "<tool_response>\nHere.\n</tool_response>\n<tool_response>\nThere.\n</tool_response>"
    assert text.endswith(f"<|im_start|>user\n{answers}<|im_end|>\n<|im_start|>assistant\n")
