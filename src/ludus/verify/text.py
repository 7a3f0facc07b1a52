"""Exact text, with partial credit if the expected text is part of a longer one."""

from ludus.types import Score


def compare_texts(expected: str, got: str) -> Score:
    """1 if equal except for surrounding white space, 0.5 if `expected` is part of `got`, else 0."""
    wanted, found = expected.strip(), got.strip()
    if found == wanted:
        return Score.of(1.0, "The content is exactly as asked.")
    if wanted and wanted in found:
        return Score.of(0.5, f"The content is there, but other text stands around it: {_quote(found)}")
    return Score.of(0.0, f"Expected {_quote(wanted)}, found {_quote(found)}")


def _quote(text: str, limit: int = 200) -> str:
    return repr(text if len(text) <= limit else text[:limit] + "…")
