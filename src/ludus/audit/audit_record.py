"""Where results of audits are kept, so that `ludus validate` and the table of environments can say what is known.

Environments that come with Ludus are audited before a release (`scripts/audit-envs`); their results are part of the
package. Others are kept in the user's cache, by the environment, its version and its options.
"""

import hashlib
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from ludus.audit.findings import AuditReport
from ludus.encoding import canonical, to_json
from ludus.env import Env

PACKAGED = Path(__file__).parent.parent / "envs" / "data" / "audits.json"


class AuditRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an audit came to."""

    env: str
    version: str
    day: str
    tasks: int
    attacks: int
    paid: tuple[str, ...] = ()
    """The attacks that were paid on at least one task."""
    unsound: int = 0
    """Tasks with a problem."""
    guess: float = 0.0
    """What the best constant answer earns."""
    note: str = ""

    @property
    def words(self) -> str:
        """The record in one line."""
        paid = f"{len(self.paid)} of {self.attacks} attacks paid"
        return f"audited {self.day}: {paid}, {self.unsound} of {self.tasks} tasks have a problem"


def make_record(report: AuditReport) -> AuditRecord:
    paid = {each.attack for task in report.tasks for each in task.paid}
    return AuditRecord(
        env=report.env,
        version=report.version,
        day=time.strftime("%Y-%m-%d", time.gmtime()),
        tasks=len(report.tasks),
        attacks=len(report.attacks),
        paid=tuple(sorted(paid)),
        unsound=sum(not task.sound for task in report.tasks),
        guess=round(report.guess.mean, 3) if report.guess else 0.0,
    )


def find_record(env: Env, folder: Path) -> AuditRecord | None:
    """The last audit of an environment; None if there is none of this version with these options."""
    try:
        return msgspec.json.decode(_find_path(env, folder).read_bytes(), type=AuditRecord)
    except (OSError, msgspec.DecodeError):
        found = read_packaged().get(env.name)
        return found if found is not None and found.version == env.version and _is_default(env) else None


def keep_record(env: Env, record: AuditRecord, folder: Path) -> None:
    """Keep the result of an audit. A cache that cannot be written is no error."""
    path = _find_path(env, folder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(to_json(record))
    except OSError:
        return


def read_packaged() -> dict[str, AuditRecord]:
    """The audits of the environments that come with Ludus, by name."""
    try:
        return msgspec.json.decode(PACKAGED.read_bytes(), type=dict[str, AuditRecord])
    except OSError:
        return {}


def _find_path(env: Env, folder: Path) -> Path:
    digest = hashlib.sha256(canonical((env.name, env.version, env))).hexdigest()[:24]
    return folder / f"{digest}.json"


def _is_default(env: Env) -> bool:
    """Whether it has no options of the user's: the packaged result is for those."""
    try:
        return canonical(type(env)()) == canonical(env)
    except TypeError:
        return False
