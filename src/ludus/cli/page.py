"""The page of trajectories of a run, of any kind and in any state: `ludus show RUN --page`.

It is made from the store, so it also shows runs that go on, were killed, were judged again, or hold sessions of the
gateway. The page is in the run directory, where its pictures are.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ludus.batch import PAGE, group_outcomes, make_group_row
from ludus.encoding import to_json
from ludus.errors import StoreError
from ludus.run_info import ONE_POLICY, describe_kind, describe_state, find_kind, read_info
from ludus.session_runs import group_sessions
from ludus.stats import summarize
from ludus.store import RunDir
from ludus.trajectory_page import render_page
from ludus.types import Group


def write_run_page(directory: RunDir) -> Path:
    """Write the page of a run that is open for reading. Returns its path."""
    path = directory.path / PAGE
    temporary = path.with_name(f".{PAGE}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.writelines(_render(directory))
        temporary.replace(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _render(directory: RunDir) -> Iterator[bytes]:
    title, kind, facts = directory.path.resolve().name, find_kind(directory), _list_facts(directory)
    if kind == "train":
        from ludus.reflact.report.transcripts_page import render_transcripts

        return render_transcripts(title, facts, directory)
    groups = list_groups(directory)
    several = kind not in (*ONE_POLICY, "serve")
    rows = (_make_row(group, index, several) for index, group in enumerate(groups))
    return render_page(title, facts, None if several else summarize(groups), rows)


def list_groups(directory: RunDir) -> list[Group]:
    """The rollouts of a run in groups, in the order in which the groups were begun."""
    if find_kind(directory) == "gateway":
        return group_sessions(directory)
    return group_outcomes(directory, directory.config.get("env", {}).get("group_size", 1))


def _make_row(group: Group, index: int, several: bool) -> bytes:
    """A group's row. In a run with several policies, groups can be filtered by the model."""
    row = to_json(make_group_row(group, index))
    if not several:
        return row
    return row[:-1] + b"," + to_json({"part": group.rollouts[0].provenance.model, "role": ""})[1:]


def _list_facts(directory: RunDir) -> dict[str, str]:
    recorded: Mapping[str, Any] = directory.config
    model: Mapping[str, Any] = recorded.get("model") or recorded.get("trainer") or {}
    env: Mapping[str, Any] = recorded.get("env") or {}
    return {
        "run": describe_kind(find_kind(directory)),
        "environment": str(env.get("name", "")),
        "model": str(model.get("name") or model.get("type") or ""),
        "state": describe_state(read_info(directory.path), directory.measure_scores()[0]),
    }
