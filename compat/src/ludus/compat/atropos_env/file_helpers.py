"""Helpers of `atroposlib.utils` that files import. They decide scores, so they do exactly what the originals do, also
with what is odd: the comparison test (`make test-atropos`) tries both on random inputs."""

import json
import logging
import re
from collections.abc import Sequence
from typing import Any, cast

from ludus.compat.atropos_env.tokenizer_view import build_row

LOGGER = logging.getLogger("atroposlib")
THINK, END_THINK = "<think>", "</think>"
NO_TOOL = "-ERROR-"
_AGENT = ("agent", "assistant")


# ---- tool calls ---------------------------------------------------------------------------------------------------


def extract_tool_call(text: str, preferred_tags: Sequence[str] | None = None) -> str | None:
    """What the first block of the first tag that occurs contains; None if no tag occurs."""
    for tag in preferred_tags or ("tool_call",):
        found = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        if found is not None:
            return found[1].strip()
    return None


def parse_tool_call(
    response: str, available_tools: Sequence[Any] | None = None, preferred_tags: Sequence[str] | None = None
) -> tuple[Any, Any, bool]:
    """The name and the arguments of the first call, and whether it is an error. Only the first block counts. Single
    quotes are read as double ones, and texts may have raw line ends. A tool that is not available keeps its arguments.
    """
    text = extract_tool_call(response, preferred_tags)
    if not text:
        return NO_TOOL, {}, True
    try:
        call = json.loads(text.replace("'", '"'), strict=False)
        name, arguments = call.get("name", ""), call.get("arguments", {})
        if available_tools and (not name or name not in _list_names(available_tools)):
            return NO_TOOL, arguments, True
        return name, arguments, False
    except Exception as error:  # whatever is wrong with the text is an error of the call
        LOGGER.error("a tool call cannot be read: %s", error)
        return NO_TOOL, {}, True


def _list_names(tools: Sequence[Any]) -> set[Any]:
    names: set[Any] = set()
    for tool in (cast(dict[str, Any], each) for each in tools if isinstance(each, dict)):
        if "name" in tool:
            names.add(tool["name"])
        elif "function" in tool and "name" in tool["function"]:
            names.add(tool["function"]["name"])
    return names


# ---- thinking -----------------------------------------------------------------------------------------------------


def strip_thinking(response_text: str) -> str:
    """The reply without its think block."""
    start, end = response_text.find(THINK), response_text.find(END_THINK)
    if start < 0 or end < 0:
        return response_text
    return response_text[:start] + response_text[end + len(END_THINK) :]


def truncate_thinking(response_text: str, tokenizer: Any, max_think_tokens: int) -> str:
    """The reply with a think block of at most this many tokens: the last paragraph if it fits, or else the last tokens.
    What was shortened begins with dots."""
    try:
        start, end = response_text.find(THINK), response_text.find(END_THINK)
        if not 0 <= start < end:
            return response_text
        inner = response_text[start + len(THINK) : end].strip()
        kept = _shorten_thinking(inner, tokenizer, max_think_tokens) if inner else ""
        block = "" if kept in ("", "...") else f"\n{kept}\n"
        return response_text[: start + len(THINK)] + block + response_text[end:]
    except Exception as error:  # of the tokenizer
        LOGGER.error("a think block cannot be shortened: %s", error)
        return response_text


def _shorten_thinking(text: str, tokenizer: Any, most: int) -> str:
    ids = tokenizer.encode(text, add_special_tokens=False)
    if len(ids) <= most:
        return tokenizer.decode(ids, skip_special_tokens=True).strip()
    last = next((part for each in reversed(text.split("\n\n")) if (part := each.strip())), text)
    tail = tokenizer.encode(last, add_special_tokens=False) if len(last) < len(text) else ids
    if len(tail) > most:
        tail = ids[max(0, len(ids) - most) :]
    kept = tokenizer.decode(tail, skip_special_tokens=True)
    return f"... {kept.lstrip()}".strip() if kept.strip() else ""


# ---- trajectories -------------------------------------------------------------------------------------------------


def ensure_trajectory_token_limit(trajectory: list[Any], tokenizer: Any, max_trajectory_tokens: int) -> list[Any]:
    """The steps of a trajectory whose rows all fit. From a step that is too long the oldest turns after the system
    message are taken out of all its rows, until they fit; a step that never fits, or lacks something, is dropped."""
    made = [_fit_step(step, tokenizer, max_trajectory_tokens) for step in trajectory]
    return [step for step in made if step is not None] if trajectory else trajectory


def _fit_step(step: Any, tokenizer: Any, most: int) -> Any:
    whole = all(step.get(key) for key in ("messages", "tokens", "masks"))
    if not whole or step.get("seed") is None or step.get("parsed_actions") is None:
        return None
    if _find_longest(step["tokens"]) <= most:
        return step
    rows = [list(messages) for messages in step["messages"]]
    made = [{"tokens": step["tokens"]}]
    longest = most + 1
    while longest > most:
        count = min((n for n in map(_count_droppable, rows) if n), default=0)
        if not count or any(len(row) <= count for row in rows):
            return None
        rows = [[row[0], *row[1 + count :]] for row in rows]
        try:
            made = [build_row(tokenizer, row) for row in rows]
        except Exception as error:  # of the template
            LOGGER.error("a step cannot be shortened: %s", error)
            return None
        longest = max(len(row["tokens"]) for row in made)
    return {
        "seed": step["seed"],
        "messages": rows,
        "tokens": [row["tokens"] for row in made],
        "masks": [row["masks"] for row in made],
        "scores": step.get("scores"),
        "parsed_actions": step["parsed_actions"],
    }


def _find_longest(rows: Any) -> int:
    return max((len(cast(list[Any], row)) for row in rows if isinstance(row, list)), default=0)


def _count_droppable(messages: Sequence[Any]) -> int:
    """How many messages after the first can go next: a turn of environment and agent, or one message. The last reply
    stays, and what the environment said before it."""
    kept = 0
    if len(messages) > 1 and messages[-1]["role"] in _AGENT:
        kept = 2 if len(messages) > 2 and messages[-2]["role"] == "environment" else 1
    free = len(messages) - 1 - kept
    if free <= 0:
        return 0
    is_turn = free >= 2 and messages[1]["role"] == "environment" and messages[2]["role"] in _AGENT
    return 2 if is_turn else 1


# ---- others -------------------------------------------------------------------------------------------------------


def select_best_index(
    primary_scores: Sequence[float],
    secondary_scores: Sequence[float],
    primary_higher_is_better: bool = True,
    secondary_lower_is_better: bool = True,
) -> int:
    """The place of the best score; of equal ones, that with the best second score, and then the first."""
    if not primary_scores or not secondary_scores:
        raise ValueError("there are no scores to select from")
    if len(primary_scores) != len(secondary_scores):
        raise ValueError(f"{len(primary_scores)} scores, but {len(secondary_scores)} second scores")
    first, second = 1 if primary_higher_is_better else -1, -1 if secondary_lower_is_better else 1
    best = 0
    for place in range(1, len(primary_scores)):
        score, known = first * primary_scores[place], first * primary_scores[best]
        ahead = second * secondary_scores[place] > second * secondary_scores[best]
        if score > known or (score == known and ahead):
            best = place
    return best


async def parse_http_response(resp: Any, logger: logging.Logger | None = None) -> Any:
    """The JSON of a reply of aiohttp. A status that is an error is raised, and logged with the reply's text."""
    try:
        resp.raise_for_status()
        return await resp.json()
    except Exception as error:
        said = await resp.text()
        (logger or LOGGER).error("the server answered with %s: %s", getattr(error, "status", "an error"), said)
        raise
