"""The stand-ins for `ludus.errors` and `ludus.sandbox` in the bundle."""

import ast
from pathlib import Path

import msgspec
import pytest

from ludus import errors, sandbox
from ludus.sandbox.remote.bundle import SHARED
from ludus.sandbox.slotd import bundle_stubs

SOURCE = Path(sandbox.__file__).parent
FILES = [*(SOURCE / name for name in SHARED), *sorted((SOURCE / "slotd").glob("*.py"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_name_that_is_imported_from_them_is_defined(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module in ("ludus.errors", "ludus.sandbox"):
            modules = {alias.name for alias in node.names if (SOURCE / f"{alias.name}.py").exists()}
            assert all(hasattr(bundle_stubs, alias.name) for alias in node.names if alias.name not in modules)


def test_a_result_has_the_fields_of_the_real_one():
    fields = msgspec.structs.fields(sandbox.ExecResult)
    stub = bundle_stubs.ExecResult
    assert stub._fields == tuple(field.name for field in fields[: len(stub._fields)])
    assert stub._field_defaults == {field.name: field.default for field in fields[3 : len(stub._fields)]}
    assert [field.name for field in fields[len(stub._fields) :]] == ["id"]  # the driver sets it


@pytest.mark.parametrize("options", [{}, {"retryable": False}])
def test_an_error_looks_like_the_real_one(options):
    stub, real = bundle_stubs.SandboxError("text", **options), errors.SandboxError("text", **options)
    assert (str(stub), stub.retryable) == (str(real), real.retryable)
    assert stub.evidence == (real.evidence.inside, real.evidence.outside)


def test_evidence_has_the_fields_of_the_real_one():
    names = tuple(field.name for field in msgspec.structs.fields(errors.SlotEvidence))
    assert bundle_stubs.SlotEvidence._fields == names
    error = bundle_stubs.SandboxError("text", evidence=bundle_stubs.SlotEvidence(inside="x"))
    assert error.evidence == ("x", "")
