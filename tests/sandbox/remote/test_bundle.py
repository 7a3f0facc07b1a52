"""The zip file that slotd is sent as, and the commands that start it."""

import ast
import subprocess
import sys
import zipfile
from io import BytesIO

from tests.slotd_kit import PYTHON, needs_python

from ludus.sandbox.remote.bundle import build_bundle, build_file_command, build_receive_command, build_shipment


def test_the_bundle_needs_only_the_standard_library_and_older_grammar():
    archive = zipfile.ZipFile(BytesIO(build_bundle()))
    known = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in archive.namelist()}
    for name in archive.namelist():
        if not name.endswith(".py"):
            continue
        tree = ast.parse(archive.read(name), name, feature_version=(3, 8))
        for node in ast.walk(tree):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            for module in modules:
                top = module.split(".")[0]
                assert top in sys.stdlib_module_names or module in known, f"{name} imports {module}"


def test_the_commands_that_start_it_contain_no_secret_and_no_line_break():
    for command in (build_receive_command("python3"), build_file_command("python3", "/p", "/c", "80")):
        assert all("\n" not in part for part in command)
    assert build_bundle() == build_bundle()


def test_a_shipment_is_the_length_and_the_bundle():
    shipment = build_shipment()
    assert int.from_bytes(shipment[:4], "big") == len(build_bundle())
    assert shipment[4:] == build_bundle()


@needs_python
def test_a_bundle_that_is_cut_off_is_reported():
    command = build_receive_command(PYTHON)
    done = subprocess.run(command, input=build_shipment()[:1000], capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
    assert b"the program did not arrive" in done.stderr
