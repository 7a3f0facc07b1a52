"""The contract of `Sandbox` on every remote backend: the same tests that the local backends pass."""

import importlib.util
import inspect
from pathlib import Path

import pytest

from ludus.sandbox.backends import BACKENDS


def _suite() -> dict[str, object]:
    path = Path(__file__).parents[1] / "test_conformance.py"
    spec = importlib.util.spec_from_file_location("ludus_conformance", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tests = {name: test for name, test in vars(module).items() if name.startswith("test_")}
    return {name: test for name, test in tests.items() if "backend" in inspect.signature(test).parameters}


in_shared_loop = pytest.mark.asyncio(loop_scope="package")  # the loop of the pools
globals().update({name: in_shared_loop(test) for name, test in _suite().items()})

NASTY = ("'\"\\$`!(){}[]<>|&;#*?~ \t\n\r\x01\x7f", "\n\n", " ", "-n", "é世🦊", "%s%d\\0", "a" * 100_000)


@in_shared_loop
async def test_special_characters_and_all_bytes_arrive_unchanged(backend, in_box):
    from shlex import quote

    async with in_box(backend) as box:
        for text in NASTY:
            assert (await box.exec(f"printf %s {quote(text)}")).stdout == text.encode()
            assert (await box.exec("cat", stdin=text.encode())).stdout == text.encode()
        for text in NASTY[:-1]:
            assert (await box.exec('printf %s "$V"', env={"V": text})).stdout == text.encode()
        everything = bytes(range(256)) * 5000
        await box.write("a b/'c'\n$d", everything)
        assert await box.read("a b/'c'\n$d") == everything


@in_shared_loop
@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 262_144, 3_000_000])
async def test_output_of_any_size_arrives(backend, in_box, size):
    async with in_box(backend) as box:
        await box.write("data", b"x" * size)
        assert await box.read("data") == b"x" * size


def test_every_backend_passes_this_suite(request):
    fixture = request.session._fixturemanager.getfixturedefs("backend", request.node)[-1]
    tried = {name.removesuffix("_single") for name in fixture.params}
    assert set(BACKENDS) == tried | {"bwrap", "local"}, "the last two run it in ../test_conformance.py"
