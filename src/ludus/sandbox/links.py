"""Finds symbolic links that lead out of a folder.

The links are given as text, so nothing on a disk is followed. A link leads out if its target leaves the folder when it
is read as text (`a/../../x`), or when each link on the way is followed as the kernel does. Both count, because a link
on the way may be replaced by a folder later. A target that leaves the folder and comes back leads out too. A link to
nothing, or in a loop, stays inside unless its text leaves the folder.
"""

from collections.abc import Collection, Mapping

_DEEPEST = 200
"""Links followed inside one another. The kernel follows 40; a link beyond this limit counts as leading out."""

_Place = tuple[str, ...]
"""A path below the folder, part by part."""


def find_outward(links: Mapping[str, str], root: str) -> frozenset[str]:
    """The paths of the links that lead out. `links` are targets by path below `root`, an absolute path."""
    resolver = _Resolver(links, root)
    return frozenset(path for path in sorted(links) if resolver.leads_out(path))


def find_leading_into(links: Mapping[str, str], folders: Collection[str]) -> frozenset[str]:
    """The paths of the links of a whole root file system that lead into one of these folders, or to nowhere known.
    `links` are targets by path below the root."""
    resolver = _Resolver(links, "/")
    hidden = [tuple(folder.strip("/").split("/")) for folder in folders]
    return frozenset(
        path
        for path in sorted(links)
        if any(place is None or any(place[: len(f)] == f for f in hidden) for place in resolver.list_places(path))
    )


class _Resolver:
    def __init__(self, links: Mapping[str, str], root: str) -> None:
        self._links = links
        self._root = tuple(part for part in root.split("/") if part)
        self._places: dict[str, _Place | None] = {}
        self._open: set[str] = set()

    def leads_out(self, path: str) -> bool:
        return self._walk(path, follow=False) is None or self._resolve(path) is None

    def list_places(self, path: str) -> tuple[_Place | None, _Place | None]:
        """Where a link leads, read as text and followed."""
        return self._walk(path, follow=False), self._resolve(path)

    def _resolve(self, path: str) -> _Place | None:
        """Where a link leads, through other links; None if that is outside."""
        if path not in self._places:
            if len(self._open) >= _DEEPEST:
                return None
            self._open.add(path)
            self._places[path] = self._walk(path, follow=True)
            self._open.remove(path)
        return self._places[path]

    def _walk(self, path: str, *, follow: bool) -> _Place | None:
        target = self._links[path]
        parts = [part for part in target.split("/") if part not in ("", ".")]
        here: list[str] = path.split("/")[:-1]
        if target.startswith("/"):
            if tuple(parts[: len(self._root)]) != self._root:
                return None
            here, parts = [], parts[len(self._root) :]
        for part in parts:
            if part == "..":
                if not here:
                    return None
                here.pop()
                continue
            here.append(part)
            name = "/".join(here)
            if follow and name in self._links and name not in self._open:
                place = self._resolve(name)
                if place is None:
                    return None
                here = list(place)
        return tuple(here)
