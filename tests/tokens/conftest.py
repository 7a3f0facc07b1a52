"""A small byte-level vocabulary, templates that behave like those of model families, and conversations with them."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("tokenizers", reason="the extra 'tokens' is not installed")
pytest.importorskip("jinja2", reason="the extra 'tokens' is not installed")

from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Rust

from ludus.parsers import Parser
from ludus.tokens.codec import Codec
from ludus.tokens.render import Renderer
from ludus.tokens.sequences import TokenSequence
from ludus.tokens.session import TokenSession
from ludus.tokens.template import Template, read_template
from ludus.tokens.tokenizer import Tokenizer
from ludus.tokens.toy_engine import ToyEngine
from ludus.types import Call, Completion, Message, Sampling, ToolSpec

WORDS = """The quick brown fox looks at the world, and the world looks back. Let me see what is in the file.
You can call these functions: {"name": "look", "arguments": {"at": "here"}} <tool_call> </tool_call> <tool_response>
user assistant system tool think result answer question weather city Paris Grüße 世界 naïve café 12345"""

# ChatML: replies as they are, tools in the system text.
PLAIN = read_template("chatml")

# Drops the thinking of finished rounds, and puts an empty block into the last message.
THINKING = """
{%- macro block(role, text) %}{{ '<|im_start|>' + role + '\n' + text + '<|im_end|>\n' }}{% endmacro %}
{%- set ns = namespace(last=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- if tools %}{{ block('system', 'Tools: ' + tools | tojson) }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- set content = m.content.split('</think>')[-1].lstrip('\n') %}
{%- set thought = m.content.split('</think>')[0].split('<think>')[-1].strip('\n') if '</think>' in m.content else '' %}
{{- '<|im_start|>assistant\n' }}
{%- if loop.index0 > ns.last and (loop.last or thought) %}{{ '<think>\n' + thought + '\n</think>\n\n' }}{% endif %}
{{- content }}
{%- for c in m.tool_calls or [] %}
{{- '\n<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments | tojson }}
{{- '}\n</tool_call>' }}
{%- endfor %}{{ '<|im_end|>\n' }}
{%- else %}{{ block(m.role, m.content) }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

# Tools go before the last user message, the system text into the last message only; ids are nine long; roles alternate.
MOVING = """
{%- set system = messages[0].content if messages[0].role == 'system' else '' %}
{%- set rest = messages[1:] if system else messages %}
{%- set users = rest | selectattr('role', 'equalto', 'user') | list %}
{%- for m in rest | rejectattr('role', 'equalto', 'tool') | selectattr('tool_calls', 'undefined') %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- endfor %}
{{- '<s>' }}
{%- for m in rest %}
{%- if m.role == 'user' %}
{%- if tools and m == users[-1] %}{{ '[TOOLS]' + tools | tojson + '[/TOOLS]' }}{% endif %}
{{- '[INST]' + (system + '\n\n' if loop.last and system else '') + m.content + '[/INST]' }}
{%- elif m.tool_calls is defined %}
{%- for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('nine letters') }}{% endif %}{% endfor %}
{{- '[TOOL_CALLS]' + m.tool_calls | tojson + '</s>' }}
{%- elif m.role == 'assistant' %}{{ m.content + '</s>' }}
{%- else %}
{%- if m.tool_call_id | length != 9 %}{{ raise_exception('ids must be nine long') }}{% endif %}
{{- '[RESULT]' + m.content + '[/RESULT]' }}{% endif %}
{%- endfor %}"""

# Tool results are quoted, only the first one gets an opening, content is trimmed, no newline after the end.
QUOTING = """
{%- set ns = namespace(answered=false) %}
{{- '<s>' }}
{%- if tools %}{{ 'Tools: ' + tools | tojson + '</s>' }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{{- '' if ns.answered else '[OUTPUTS]' }}{% set ns.answered = true %}{{ '[RESULT]' + m.content | tojson + '[/RESULT]' }}
{%- else %}{{ '[' + m.role + ']' + m.content | trim + '</s>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"""

TEMPLATES = {"plain": PLAIN, "thinking": THINKING, "moving": MOVING, "quoting": QUOTING}

LOOK = ToolSpec("look", "Looks at a place.", {"type": "object", "properties": {"at": {"type": "string"}}})


def make_tokenizer(extra: Sequence[str] = ()) -> Tokenizer:
    rust = Rust(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    rust.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    rust.train_from_iterator(
        [WORDS], trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    )
    special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", *extra]
    rust.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return Tokenizer(rust, bos="<s>", eos="<|im_end|>")


THOUGHT = "<think>\nLet me see, 世界.\n</think>\n\n"


@dataclass
class Conversation:
    """A conversation with the toy engine: the session, and what the engine knows about it."""

    codec: Codec
    engine: ToyEngine
    session: TokenSession
    messages: list[Message]
    completions: list[Completion] = field(default_factory=list)
    tools: tuple[ToolSpec, ...] = (LOOK,)
    foreign: int = 0
    """Assistant messages that were sent and not sampled in the session."""

    def sample(self, text: str, messages: Sequence[Message] | None = None, **sampling: Any) -> Completion:
        """Make the engine reply `text`, and add the reply to the session."""
        self.engine.replies = lambda _: text
        sent = self.messages if messages is None else messages
        _, matched = self.session._find_node(sent, self.tools)
        self.foreign += sum(message.role == "assistant" for message in sent[matched:])
        prompt = self.session.build_prompt(sent, self.tools)
        drawn = asyncio.run(self.engine.generate(prompt.ids, Sampling(**{"max_tokens": 2000, **sampling})))
        completion = self.session.add_completion(prompt, drawn[0], stop=sampling.get("stop", ()))
        self.completions.append(completion)
        if messages is None:
            self.messages.append(completion.message)
        return completion

    def add_results(self, completion: Completion, text: str = "It is there.") -> None:
        self.messages += [Message("tool", text, call_id=call.id) for call in completion.message.calls]

    def run(self, turns: int, *, thinks: bool = False, users: Sequence[int] = (), calls: int = 1) -> "Conversation":
        """Run turns that call a tool. At `users` the model replies in text, and a user message follows."""
        thought = THOUGHT if thinks else ""
        for turn in range(turns):
            if turn in users:
                self.sample(f"{thought}Fertig {turn}: naïve \U0001f600.")
                self.messages.append(Message("user", f"Go on, {turn}."))
                continue
            made = [Call("", "look", json.dumps({"at": f"wörld {turn}.{i}"})) for i in range(calls)]
            completion = self.sample(self.codec.parser.render(made, f"{thought}I look."))
            assert len(completion.message.calls) == calls
            self.add_results(completion, f'A "quoted" result\n of {turn}, 世界 ')
        return self

    @property
    def rows(self) -> list[TokenSequence]:
        return self.session.build_sequences()

    def is_exact(self) -> bool:
        """Whether every reply of the engine is in a row, marked and with its logprobs, after its own prompt, and
        nothing else is marked."""
        rows = self.rows
        for draw in self.engine.log:
            start, end = len(draw.prompt), len(draw.prompt) + len(draw.ids)
            marked = [
                row
                for row in rows
                if row.tokens.ids[:end] == (*draw.prompt, *draw.ids)
                and all(row.tokens.sampled[start:end])
                and row.tokens.logprobs[start:end] == draw.logprobs
            ]
            if draw.ids and not marked:
                return False
        return sum(sum(row.tokens.sampled) for row in rows) == sum(len(draw.ids) for draw in self.engine.log)


class TokenKit:
    """What the tests of this folder share, as one fixture."""

    LOOK = LOOK
    TEMPLATES = TEMPLATES
    THOUGHT = THOUGHT
    make_tokenizer = staticmethod(make_tokenizer)

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def codec(self, template: str = "plain", parser: str = "hermes", **options: Any) -> Codec:
        read = Parser(parser)
        source = TEMPLATES.get(template, template)
        variables = options.pop("variables", None)
        made = Template(source, tokens={"bos_token": "<s>", "eos_token": "<|im_end|>"}, variables=variables)
        return Codec(
            self.tokenizer,
            Renderer(made, self.tokenizer, lambda text, calls: read.render(calls, text), **options),
            read,
        )

    def start(
        self, template: str = "plain", *, system: str = "Be brief.", seed: int = 0, **options: Any
    ) -> Conversation:
        """A new conversation with a system text and a user message."""
        codec = self.codec(template, **options)
        messages = [*([Message("system", system)] if system else []), Message("user", "Grüße, 世界 \U0001f600!")]
        end = "</s>" if template in ("moving", "quoting") else "<|im_end|>"
        return Conversation(codec, ToyEngine(self.tokenizer, [], seed=seed, end=end), TokenSession(codec), messages)

    @staticmethod
    def call_text(codec: Codec, content: str = "", **arguments: Any) -> str:
        """A reply that calls `look`, as the model would write it."""
        return codec.parser.render((Call("", "look", json.dumps(arguments, ensure_ascii=False)),), content)


@pytest.fixture(scope="session")
def small() -> Tokenizer:
    return make_tokenizer()


@pytest.fixture(scope="session")
def tokens(small: Tokenizer) -> TokenKit:
    return TokenKit(small)
