"""`ludus show RUN --replies`: what the optimizer was asked and what it replied."""

import json
from collections.abc import Iterator

from ludus.command.terminal import format_count, make_console, make_text
from ludus.encoding import to_json
from ludus.reflact.optimizer import CallRecord, read_calls
from ludus.reflact.transcript import shorten
from ludus.store import RunDir

_SHOWN = 3
"""The number of replies that are printed: the latest. --json has all of them."""
_LONGEST = 4_000
"""The number of characters of a reply that are printed."""


def show_replies(run: RunDir, *, as_json: bool) -> None:
    """Print the replies of the optimizer in a run, finished or not."""
    calls = list(read_calls(run))
    if as_json:
        print(json.dumps({"run": str(run.path), "replies": [json.loads(to_json(call)) for call in calls]}))
        return
    console = make_console()
    for call in calls[-_SHOWN:]:
        for number, words in enumerate(_describe_call(call)):
            console.print(make_text(words, "" if number else "bold"), soft_wrap=True)
    more = f"; the last {_SHOWN} are shown, --json has all of them with their requests" if len(calls) > _SHOWN else ""
    console.print(make_text(f"{len(calls)} {'reply' if len(calls) == 1 else 'replies'}{more}", "dim"))


def _describe_call(call: CallRecord) -> Iterator[str]:
    tries = f", try {call.attempt}" if call.attempt > 1 else ""
    tokens = f"{format_count(call.completion.usage.tokens)} tokens"
    yield f"{call.stage} {call.place} ({call.prompt}{tries}, {tokens}, ended by {call.completion.finish.value})"
    yield f"{shorten(call.completion.message.content.strip(), _LONGEST) or '(nothing)'}\n"
