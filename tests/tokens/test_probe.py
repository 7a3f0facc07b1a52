"""A bad template or engine is found before a run."""

import pytest

from ludus.errors import ConfigError
from ludus.tokens import EngineFacts
from ludus.tokens.probe import PROBE_TEXT, check_engine, probe_template, raise_fatal
from ludus.tokens.toy_engine import ToyEngine

NO_TOOLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('must alternate') }}{% endif %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    "{{ tools | tojson if tools else '' }}"
)
NO_ANSWERS = (
    "{{ tools | tojson if tools else '' }}{% for m in messages %}{% if m.role != 'tool' %}<|im_start|>{{ m.content }}"
    "<|im_end|>{% endif %}{% endfor %}"
)
NO_PARAMETERS = NO_TOOLS.replace("{% for", "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for", 1)


def codes(tokens, template, **options):
    return {finding.code: finding for finding in probe_template(tokens.codec(template, **options))}


def test_a_good_template_has_no_findings(tokens):
    assert codes(tokens, "plain") == {}


@pytest.mark.parametrize(
    ("template", "code", "words"),
    [
        (NO_TOOLS, "drops_tools", "leaves out the tools.*Give a template that can"),
        (ALTERNATING, "refuses_answers", "cannot show a tool result .*must alternate.*Give a template"),
        (NO_ANSWERS, "drops_answers", "leaves out tool results"),
        ("{{ raise_exception('no!') if tools else messages[-1].content }}", "refuses_tools", "cannot show tools"),
    ],
)
def test_what_makes_tools_impossible_is_fatal_when_there_are_tools(tokens, template, code, words):
    found = codes(tokens, template)
    assert found[code].level == "fatal"
    raise_fatal(tuple(found.values()), tools=False)
    with pytest.raises(ConfigError, match=words):
        raise_fatal(tuple(found.values()), tools=True)


def test_a_template_that_never_works_is_refused_always(tokens):
    found = probe_template(tokens.codec("{{ raise_exception('broken') }}"))
    with pytest.raises(ConfigError, match="broken"):
        raise_fatal(found, tools=False)


def test_a_template_that_leaves_out_the_user_is_refused(tokens):
    with pytest.raises(ConfigError, match="what the user says"):
        raise_fatal(probe_template(tokens.codec("<|im_start|>assistant\n")), tools=False)


@pytest.mark.parametrize(
    ("template", "code", "level"),
    [
        (NO_PARAMETERS, "drops_parameters", "warning"),
        (NO_PARAMETERS, "drops_calls", "info"),
        ("{{ messages[-1].content }}<|im_end|>", "drops_system", "warning"),
        ("thinking", "drops_thinking", "info"),
        ("moving", "unstable", "warning"),
        ("moving", "unstable_user", "info"),
        ("moving", "drops_system_later", "warning"),
    ],
)
def test_what_is_odd_is_a_finding(tokens, template, code, level):
    assert codes(tokens, template)[code].level == level


TEMPLATE = """{% if TOOLS %}{{ '<|im_start|>system\n' + SHOWN + '<|im_end|>\n' }}{% endif %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + CONTENT + '<|im_end|>\n' }}{% endfor %}
{{- '<|im_start|>assistant\n' if add_generation_prompt else '' }}"""


def make_template(tools="tools", shown="tools | tojson", content="m.content"):
    return TEMPLATE.replace("TOOLS", tools).replace("SHOWN", shown).replace("CONTENT", f"({content})")


NAMES = "tools | map(attribute='function.name') | join(', ')"
UNSYSTEM = "'' if tools and m.role == 'system' else m.content"
CUT = "m.content[:80] if m.role == 'tool' else m.content"
LAST = "'' if m.role == 'tool' and not loop.last else m.content"
SINGLE = "raise_exception('one by one') if m.role == messages[loop.index0 - 1].role and loop.index0 else m.content"
ONCE = "raise_exception('one user') if loop.index0 > 1 and m.role == 'user' else m.content"
PARTIAL = {
    "a tool": (make_template(shown="tools[0] | tojson"), "fatal", "drops_tools", "some of the tools"),
    "tools": (
        make_template("tools and messages[0].role != 'system'"),
        "fatal",
        "drops_tools",
        "when there is system text",
    ),
    "tools later": (
        make_template("tools and messages[-1].role != 'tool'"),
        "warning",
        "drops_tools_later",
        "after a tool",
    ),
    "system text": (make_template(content=UNSYSTEM), "warning", "drops_system", "when there are tools"),
    "descriptions": (make_template(shown=NAMES), "warning", "drops_parameters", "descriptions"),
    "ends of answers": (make_template(content=CUT), "fatal", "drops_answers", "cuts long tool results"),
    "one of two answers": (make_template(content=LAST), "fatal", "drops_answers", "one of two tool results"),
    "two answers": (make_template(content=SINGLE), "warning", "refuses_parallel", "one by one"),
    "letters": (make_template(content="m.content | e"), "fatal", "drops_user", "or changes what the user says"),
    "a second user": (make_template(content=ONCE), "warning", "refuses_user", "one user"),
}


@pytest.mark.parametrize("case", PARTIAL)
def test_a_template_that_shows_only_a_part_is_found(tokens, case):
    template, level, code, words = PARTIAL[case]
    finding = codes(tokens, template)[code]
    assert finding.level == level
    assert words in finding.message


def test_a_template_that_shows_everything_but_calls_has_one_finding(tokens):
    assert codes(tokens, make_template()).keys() == {"drops_calls"}


def test_a_template_that_accepts_no_system_text_is_found(tokens):
    refusing = "{{ raise_exception('no system') if messages[0].role == 'system' }}{{ messages[-1].content }}"
    assert "no system" in codes(tokens, refusing)["refuses_system"].message


def test_appending_makes_rewriting_no_matter(tokens):
    assert "unstable" not in codes(tokens, "moving", history="append")


# ---- the engine ---------------------------------------------------------------------------------------------------


class Other(ToyEngine):
    """An engine of another model."""

    ids: list[int] | None = None
    vocabulary: int | None = None

    async def tokenize(self, text):
        return self.ids

    async def get_facts(self):
        return EngineFacts(vocabulary=self.vocabulary)


async def check(tokens, ids, vocabulary=None):
    engine = Other(tokens.tokenizer, [])
    engine.ids, engine.vocabulary = ids, vocabulary
    return await check_engine(engine, tokens.codec())


async def test_the_same_ids_on_both_sides_are_fine(tokens):
    own = tokens.tokenizer.encode(f"{PROBE_TEXT} x<|im_end|> x</s>")
    assert await check(tokens, own) == ()
    assert await check(tokens, [tokens.tokenizer.find_id("<s>"), *own]) == ()  # engines put a beginning before text
    assert await check(tokens, own, vocabulary=tokens.tokenizer.size + 100) == ()  # padded


async def test_the_same_words_with_other_special_tokens_are_a_config_error(tokens):
    codec = tokens.codec()
    codec.tokenizer = tokens.make_tokenizer(["<|eot_id|>"])  # the engine's has no such end of a turn
    assert codec.tokenizer.encode(PROBE_TEXT) == tokens.tokenizer.encode(PROBE_TEXT)
    engine = Other(tokens.tokenizer, [])
    engine.tokenize = ToyEngine(tokens.tokenizer, []).tokenize
    with pytest.raises(ConfigError, match="encodes a probe text differently"):
        await check_engine(engine, codec)


async def test_other_ids_are_a_config_error(tokens):
    with pytest.raises(ConfigError, match="encodes a probe text differently"):
        await check(tokens, [1, 2, 3])


async def test_a_smaller_vocabulary_is_a_config_error(tokens):
    with pytest.raises(ConfigError, match="only 10"):
        await check(tokens, None, vocabulary=10)


async def test_an_engine_that_cannot_encode_is_a_warning(tokens):
    (finding,) = await check(tokens, None)
    assert (finding.level, finding.code) == ("warning", "unchecked")
