"""What earlier runs found about passages: audits of a skill, and the line records of training runs.

Findings are of texts. They count for a passage of the library that says the same, whatever file it is in now.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ludus.config import list_assumed
from ludus.errors import ConfigError
from ludus.library.line_evidence import PassageFinding, normalize
from ludus.reflact.ledger.line_records import Assessment
from ludus.reflact.report.line_histories import LineHistory, collect_histories
from ludus.reflact.train_settings import TrainSettings
from ludus.reflact.training_run import read_records
from ludus.run_info import describe_kind, find_kind
from ludus.stats import Interval
from ludus.store import RunDir

_Z = 1.96
_SMALL = 0.01


class _Passage(Struct):
    text: str
    verdict: str
    effect: float | None = None
    interval: Interval | None = None


class _Audit(Struct):
    passages: tuple[_Passage, ...]


def read_evidence(path: Path) -> Mapping[str, PassageFinding]:
    """What a run found, by the text of the passage.

    Raises:
        ConfigError: it is neither an audit nor a training run, or it has not finished.
    """
    with RunDir.read(path) as directory:
        kind = find_kind(directory)
        if kind == "audit-skill":
            return _read_audit(path)
        if kind == "train":
            return _read_training(directory)
    raise ConfigError(
        f"library.evidence: {path} is {describe_kind(kind)}, which has no findings about passages: name a run of "
        "ludus audit-skill or ludus train"
    )


def _read_audit(path: Path) -> Mapping[str, PassageFinding]:
    try:
        found = msgspec.json.decode((path / "audit.json").read_bytes(), type=_Audit)
    except FileNotFoundError:
        raise ConfigError(
            f"library.evidence: {path} is not finished: ludus audit-skill --resume --out {path}"
        ) from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"library.evidence: {path / 'audit.json'} cannot be read: {error}") from None
    return {normalize(each.text): (each.verdict, each.effect, each.interval) for each in found.passages}


def _read_training(directory: RunDir) -> Mapping[str, PassageFinding]:
    recorded: Mapping[str, Any] = directory.config
    known = {f.name for f in msgspec.structs.fields(TrainSettings)}  # this version may lack some
    given = {name: value for name, value in recorded.get("train", {}).items() if name in known}
    settings = msgspec.convert(list_assumed()["train"] | given, TrainSettings)
    if settings.recipe != "ledger":
        raise ConfigError(
            f"library.evidence: {directory.path} has no evidence for single lines; only the recipe `ledger` collects it"
        )
    return list_findings(collect_histories(list(read_records(directory)), settings.ledger.tuning))


def list_findings(histories: Iterable[LineHistory]) -> Mapping[str, PassageFinding]:
    """What a training run found, by the text of the line. Lines that it gave up have no finding."""
    return {
        normalize(each.line.edit.content or each.line.edit.target): _judge(each.assessment)
        for each in histories
        if each.assessment is not None
    }


def _judge(found: Assessment) -> PassageFinding:
    interval = Interval(found.net - _Z * found.deviation, found.net + _Z * found.deviation)
    if interval.low > 0:
        return "helps", found.net, interval
    if interval.high < 0:
        return "hurts", found.net, interval
    small = max(-interval.low, interval.high) <= _SMALL
    return "small" if small else "not told", found.net, interval
