"""The sizes of steps and requests of a training run side by side, for `ludus train --dry-run`."""

from collections.abc import Sequence
from typing import Any

from ludus.command.terminal import format_count, format_duration, format_money, make_console, make_table
from ludus.reflact.estimate import SizeEstimate
from ludus.reflact.request_sizes import RequestSizes, SizeChoice


def print_size_options(options: Sequence[SizeEstimate], own: RequestSizes, choice: SizeChoice | None) -> None:
    """Print what the run would take with each of some sizes, and why its own were chosen."""
    if not options:
        return
    table = make_table("step", "request", "text", "rollouts", "requests", "tokens", "cached", "cost", "time", "")
    for option in options:
        sizes, guess = option.sizes, option.estimate
        tokens = guess.count_tokens("agent").likely + guess.count_tokens("optimizer").likely
        table.add_row(
            str(sizes.batch),
            str(sizes.minibatch),
            str(sizes.block),
            str(guess.count_calls("agent").likely),
            str(guess.count_calls("optimizer").likely),
            format_count(round(tokens)),
            format_count(round(option.cached)),
            format_money(option.dollars) if option.dollars else "",
            "" if option.seconds is None else format_duration(option.seconds),
            "this run" if sizes == own else "",
        )
    print("\nWith other tasks per step, rollouts per request and tasks per text, at the same number of rollouts:\n")
    make_console().print(table)
    if options[0].seconds is None:
        print("The time of training is known when a run in the same folder has measured it.")
    for reason in choice.reasons if choice else ():
        print(f"{reason}.")


def describe_size_options(options: Sequence[SizeEstimate], choice: SizeChoice | None) -> dict[str, Any]:
    """The same as plain values."""
    found = [
        {
            "batch_size": option.sizes.batch,
            "minibatch_size": option.sizes.minibatch,
            "block_size": option.sizes.block,
            "rollouts": option.estimate.count_calls("agent").likely,
            "requests": option.estimate.count_calls("optimizer").likely,
            "tokens": option.estimate.count_tokens("agent").likely + option.estimate.count_tokens("optimizer").likely,
            "cached_tokens": option.cached,
            "dollars": option.dollars,
            "seconds": option.seconds,
        }
        for option in options
    ]
    return {"options": found, "reasons": list(choice.reasons) if choice else []}
