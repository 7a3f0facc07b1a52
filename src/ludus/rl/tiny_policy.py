"""A small policy that knows how to call tools, and nothing else: 0.3 million weights.

It makes a whole RL run affordable on two cores. Its tokenizer, its template and its weights are made here, from
demonstrations: conversations of the kind that `ludus.envs.parcels` has, in which the desk is sampled at random. So it
learns to name the color and a desk, the form of a call, to copy a number and to copy a stamp, but not which desk is
right: that is left to RL. In other demonstrations the system text has random notes such as "- red: north", and the desk
follows them. So it learns to look the color up in its instructions, as it should with a skill of that form.

So small a net does not find out by itself that notes are to be looked up. Two things make it easy: a note is one token,
so that no more than the color has to match, and the first demonstrations have one note, the next two, then more.

Making it takes about a minute on one free core. The result is kept in the cache folder under a hash of everything that
decides it.
"""

import hashlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, cast

from msgspec import Struct

from ludus.encoding import canonical
from ludus.envs.parcels import COLORS, DESKS, NUMBERS, STAMPS, THINGS, WRONG_DESK, make_desks
from ludus.progress import ProgressPace
from ludus.rl.net_files import save_net
from ludus.rl.policy_net import NetShape, PolicyNet
from ludus.rl.rows import retokenize
from ludus.rl.torch_import import torch
from ludus.tokens.codec import Codec
from ludus.types import Call, Message, Task, Tokens

PARSER = "pythonic"
SPECIAL = ("[end]", "[system]", "[tools]", "[user]", "[assistant]", "[tool]")
TEMPLATE = Path(__file__).with_name("tiny_template.jinja")
JOINED = ("(number) Stamp.\n", "(number=")
"""Texts that are one token each, because nothing in them is ever decided."""
NOTES = tuple(f"- {color}: {desk}" for color in COLORS.split() for desk in DESKS)
"""All notes, and what the policy says before a call. Each is one token."""

HABIT = 0.2
"""How often a demonstration without a note follows the habit of its color, and is not sampled at random."""
HABITS = {color: DESKS[place % len(DESKS)] for place, color in enumerate(COLORS.split())}
"""The habit of each color. It has nothing to do with the right desk: it makes the policy look at the color."""

LESSONS = (1, 2, 4, 8)
"""How many notes the demonstrations of a lesson have at most, and half as many at least. Without an order like this, a
net of this size follows none."""
NOTED_IN_THE_END = 0.5
"""How many of the demonstrations after the lessons have notes, of any number."""
UNNOTED_COLOR = 0.1
"""How often the notes say nothing about the color of the parcel."""

T = TypeVar("T")
_FORMAT = 2
"""Raised when the same recipe makes other weights."""


class TinyRecipe(Struct, frozen=True, kw_only=True):
    """Everything that decides the tiny policy."""

    seed: int = 0
    demonstrations: int = 3600
    steps: int = 600
    lessons: float = 0.5
    """The share of the demonstrations, and of the steps, that the lessons have."""
    note_weight: float = 4.0
    """The weight of a sampled note in the loss; that of other ids is 1."""
    batch: int = 32
    learning_rate: float = 3e-3
    hidden_size: int = 96
    layers: int = 2
    heads: int = 4
    vocabulary: int = 520


def find_tiny_policy(
    cache: Path, recipe: TinyRecipe = TinyRecipe(), tell: Callable[[str], None] = lambda _: None
) -> Path:
    """The folder of the tiny policy. It is made if the cache does not have it."""
    digest = hashlib.sha256(canonical((_FORMAT, recipe, TEMPLATE.read_text(), torch.__version__))).hexdigest()[:12]
    folder = cache / f"tiny-{digest}"
    if (folder / "model.safetensors").exists():
        return folder
    tell("making the tiny policy from demonstrations, once: about a minute on two free cores")
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{folder.name}.", dir=cache) as parent:  # another run may be making it, too
        draft = Path(parent, folder.name)
        draft.mkdir()
        make_tiny_policy(draft, recipe, tell)
        try:
            draft.rename(folder)
        except OSError:
            if not (folder / "model.safetensors").exists():  # else the other run was faster, and made the same
                raise
    return folder


def make_tiny_policy(folder: Path, recipe: TinyRecipe, tell: Callable[[str], None] = lambda _: None) -> float:
    """Write tokenizer, template and trained weights into a folder. Returns the last loss. `tell` is called from time to
    time with how far it is."""
    conversations = sample_demonstrations(recipe)
    _write_tokenizer(folder, conversations, recipe.vocabulary)
    codec = Codec.open(folder, PARSER)
    tools = tuple(tool.spec for tool in make_desks(Task(id="", prompt="")))
    told = _tell_progress("demonstrations", conversations, tell)
    rows = [retokenize(messages, tools, codec)[-1].tokens for messages in told]
    notes = [id for note in NOTES for id in codec.tokenizer.encode(note)]
    with _use_one_thread():
        net, loss = _imitate(rows, notes, recipe, codec.tokenizer.size, tell)
    save_net(net, folder)
    return loss


def _tell_progress(what: str, items: Sequence[T], tell: Callable[[str], None]) -> Iterator[T]:
    """The items, and from time to time how many of them were taken."""
    pace = ProgressPace()
    for number, item in enumerate(items):
        if pace.is_due(number, len(items)):
            tell(f"the tiny policy: {number} of {len(items)} {what} after {pace.elapsed:.0f} s")
        yield item


# ---- demonstrations -------------------------------------------------------------------------------------------------


def sample_demonstrations(recipe: TinyRecipe) -> list[list[Message]]:
    """The demonstrations in the order in which they are learned from: the lessons, then all kinds."""
    found: list[list[Message]] = []
    for lesson, numbers in enumerate(_list_lessons(recipe)):
        for number in numbers:
            random = Random(f"{recipe.seed}/{number}")
            found.append(sample_conversation(random, _choose_note_count(random, lesson)))
    return found


def _list_lessons(recipe: TinyRecipe) -> list[range]:
    """The demonstrations of each lesson, and at last those that come after them."""
    each = int(recipe.demonstrations * recipe.lessons / len(LESSONS))
    lessons = [range(each * number, each * (number + 1)) for number in range(len(LESSONS))]
    return [*lessons, range(each * len(LESSONS), recipe.demonstrations)]


def _choose_note_count(random: Random, lesson: int) -> int:
    if lesson < len(LESSONS):
        return random.randint(max(1, LESSONS[lesson] // 2), LESSONS[lesson])
    return random.randint(1, LESSONS[-1]) if random.random() < NOTED_IN_THE_END else 0


def sample_conversation(random: Random, count: int) -> list[Message]:
    """A conversation about one parcel, with so many notes."""
    colors = COLORS.split()
    noted = random.sample(colors, count)
    notes = {color: random.choice(DESKS) for color in noted}
    color = random.choice(noted if noted and random.random() >= UNNOTED_COLOR else colors)
    thing, number = random.choice(THINGS.split()), random.choice(NUMBERS)
    habit = HABITS[color] if random.random() < HABIT else random.choice(DESKS)
    desk = notes.get(color, habit)
    found = random.choice((WRONG_DESK, random.choice(STAMPS.split())))
    system = "\n".join(f"- {name}: {where}" for name, where in notes.items())
    return [
        *([Message("system", system)] if system else []),
        Message("user", f"Send {number} {color} {thing}."),
        Message("assistant", f"- {color}: {desk}", (Call("call_0", desk, f'{{"number": {number}}}'),)),
        Message("tool", found, call_id="call_0"),
        Message("assistant", "lost" if found == WRONG_DESK else found),
    ]


# ---- files ----------------------------------------------------------------------------------------------------------


def _write_tokenizer(folder: Path, conversations: Sequence[Sequence[Message]], size: int) -> None:
    """A byte-level vocabulary in which every word of the demonstrations is one token, and any other text is bytes."""
    import json

    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    rust = Tokenizer(models.BPE())
    rust.pre_tokenizer = cast(Any, pre_tokenizers.ByteLevel(add_prefix_space=False))
    rust.decoder = cast(Any, decoders.ByteLevel())
    words = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rust.train_from_iterator(_list_texts(conversations), words)
    cast(Any, rust).add_tokens([AddedToken(text, normalized=False) for text in (*JOINED, *NOTES)])
    rust.save(str(folder / "tokenizer.json"))
    settings = {
        "eos_token": SPECIAL[0],
        "chat_template": TEMPLATE.read_text(),
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


def _list_texts(conversations: Sequence[Sequence[Message]]) -> Iterator[str]:
    for messages in conversations:
        for message in messages:
            yield message.content
            yield from (f"[{call.name}" for call in message.calls)
            yield ")]"


@contextmanager
def _use_one_thread() -> Generator[None]:
    """Compute in one thread. So small a net gains little by more, and where other work runs, threads that wait for each
    other took many times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


# ---- imitation ------------------------------------------------------------------------------------------------------


def _imitate(
    rows: Sequence[Tokens], notes: Sequence[int], recipe: TinyRecipe, vocabulary: int, tell: Callable[[str], None]
) -> tuple[PolicyNet, float]:
    """Train a new net to write the sampled ids of the rows. `notes` are the ids that decide."""
    torch.manual_seed(recipe.seed)
    net = PolicyNet(
        NetShape(
            vocab_size=vocabulary,
            hidden_size=recipe.hidden_size,
            intermediate_size=3 * recipe.hidden_size,
            num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads,
            num_key_value_heads=recipe.heads,
            head_dim=recipe.hidden_size // recipe.heads,
        )
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=recipe.learning_rate, weight_decay=0.0, betas=(0.9, 0.95))
    total, lessons = 0.0, _list_lessons(recipe)
    for step in _tell_progress("steps", range(recipe.steps), tell):
        taught = lessons[min(len(LESSONS), int(step * len(LESSONS) / max(1.0, recipe.steps * recipe.lessons)))]
        chosen = Random(f"{recipe.seed}/batch/{step}").choices(rows[taught.start : taught.stop], k=recipe.batch)
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * min(1.0, (step + 1) / 50) * min(1.0, 4 * (1 - step / recipe.steps))
        ids, sampled = pad_rows(chosen)
        logprobs, _ = net.score_sampled(ids, sampled)
        deciding = torch.isin(ids[:, 1:][sampled[:, 1:]], torch.tensor(notes))
        loss = -(logprobs * torch.where(deciding, recipe.note_weight, 1.0)).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        total = loss.item()
    return net, total


def pad_rows(rows: Sequence[Tokens]) -> tuple[Any, Any]:
    """Ids (B, T) and which of them were sampled (B, T), padded on the right."""
    width = max(map(len, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    sampled = torch.zeros(len(rows), width, dtype=torch.bool)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = torch.tensor(row.ids)
        sampled[place, : len(row)] = torch.tensor(row.sampled)
    return ids, sampled
