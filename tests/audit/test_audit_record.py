"""Results of audits are found again for the same environment alone."""

from pathlib import Path

from ludus.audit.audit_record import AuditRecord, find_record, keep_record, make_record, read_packaged
from ludus.audit.findings import AuditReport, Paid, TaskAudit
from ludus.envs import BUILTIN
from ludus.envs.gsm8k import Gsm8k
from ludus.envs.terminal_test import TerminalTest

REPORT = AuditReport(
    env="e",
    version="2",
    split="train",
    attacks=("x", "y"),
    tasks=(TaskAudit(task="a", paid=(Paid("x", 1.0),)), TaskAudit(task="b")),
)


def test_a_record_names_what_was_paid():
    record = make_record(REPORT)
    assert (record.paid, record.unsound, record.tasks, record.attacks) == (("x",), 1, 2, 2)
    assert "1 of 2 attacks paid, 1 of 2 tasks have a problem" in record.words


def test_a_record_is_for_an_environment_and_its_options(tmp_path: Path):
    keep_record(Gsm8k(path="a.jsonl"), make_record(REPORT), tmp_path)
    found = find_record(Gsm8k(path="a.jsonl"), tmp_path)
    assert isinstance(found, AuditRecord) and found.env == "e"
    assert find_record(Gsm8k(path="b.jsonl"), tmp_path) is None


def test_the_environments_of_ludus_come_with_their_audits(tmp_path: Path):
    assert set(read_packaged()) <= set(BUILTIN)
    assert find_record(TerminalTest(), tmp_path) == read_packaged().get("terminal-test")
