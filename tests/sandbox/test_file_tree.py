"""Files of agents by content: what is split comes together again, whatever an agent named it."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.sandbox.archive import ArchiveEntry
from ludus.sandbox.file_tree import CollectedFiles, join_files, measure_files, split_files

names = st.binary(min_size=1, max_size=20).map(os.fsdecode)
entries = st.builds(
    ArchiveEntry,
    path=names,
    mode=st.integers(0, 0o777),
    mtime=st.floats(0, 2**40),
    data=st.none() | st.binary(max_size=20),
    link=st.none() | names,
    removed=st.booleans(),
    opaque=st.booleans(),
    special=st.sampled_from(["", "named pipe"]),
)


@given(st.lists(entries, max_size=5), st.booleans())
def test_files_come_together_as_they_were(found: list[ArchiveEntry], layered: bool):
    files = CollectedFiles(tuple(found), layered)
    tree = split_files(files)
    assert join_files(tree.contents[tree.tree], lambda name: tree.contents[name]) == files
    assert (
        sum(map(len, tree.contents.values())) <= measure_files(files) + 100 + sum(len(e.link or "") for e in found) * 3
    )


def test_equal_contents_are_one():
    files = CollectedFiles((ArchiveEntry("a", 0o644, data=b"same"), ArchiveEntry("b", 0o600, data=b"same")))
    tree = split_files(files)
    assert sorted(tree.contents.values(), key=len)[0] == b"same" and len(tree.contents) == 2


def test_contents_are_masked_before_they_are_hashed():
    files = CollectedFiles((ArchiveEntry("a", 0o644, data=b"the key is hunter2"),))
    tree = split_files(files, lambda data: data.replace(b"hunter2", b"***"))
    (entry,) = join_files(tree.contents[tree.tree], tree.contents.__getitem__).entries
    assert entry.data == b"the key is ***"


def test_something_else_is_no_tree():
    with pytest.raises(ValueError):
        join_files(b"\x93no", lambda name: b"")
