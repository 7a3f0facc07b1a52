"""Characters that a reader does not see, or that change what a reader sees. Pure.

A terminal obeys control characters. Some marks turn the direction of writing, so that a person reads another line than
a model gets. Others have no width at all, and can carry a text of their own. The terminal shows them as signs
(`ludus.command.terminal`), and no proposal brings them into a skill (`ludus.reflact.guards`).

Joiners and variation selectors have a place in writing: inside of an emoji or of a Persian word. They count as hidden
where they have nothing to do: behind a plain letter or a space, or in a row.
"""

import re

HIDDEN_RANGES = (
    (0x00, 0x08),  # control characters, but for tab and line feed
    (0x0B, 0x1F),
    (0x7F, 0x9F),
    (0x061C, 0x061C),  # direction of writing
    (0x200E, 0x200F),
    (0x202A, 0x202E),
    (0x2066, 0x2069),
    (0x00AD, 0x00AD),  # no width
    (0x180E, 0x180E),
    (0x200B, 0x200B),
    (0x2028, 0x2029),
    (0x2060, 0x2065),
    (0x206A, 0x206F),
    (0xFEFF, 0xFEFF),
    (0xFFF9, 0xFFFB),
    (0xE0000, 0xE01EF),
)
"""The first and the last code point of each run of characters that are hidden wherever they are."""
HIDDEN_CODES = frozenset(code for first, last in HIDDEN_RANGES for code in range(first, last + 1))
"""The same, one by one."""
_JOINERS = r"\u200c\u200d\ufe00-\ufe0f"
_MISPLACED = re.compile(
    rf"(?<=[A-Za-z ])[{_JOINERS}]|(?<=[\u200c\u200d\ufe00-\ufe0e])[{_JOINERS}]|(?<=\ufe0f)[\u200c\ufe00-\ufe0f]"
)


def find_hidden(text: str) -> set[str]:
    """The characters of a text that are hidden. A line may end with CR and LF."""
    text = text.replace("\r\n", "\n")
    return {char for char in set(text) if ord(char) in HIDDEN_CODES} | set(_MISPLACED.findall(text))
