"""detect-secrets 1.5.0 on texts, by `SecretsCollection.scan_file` with its default plugins and filters.

Reads texts as JSON lines from stdin: `[text, lines of the planted secret]`; without lines it is an ordinary text.
Writes for each how many lines it reports. Of a planted text, only reports count in whose value a piece of the secret
is. That is less than masking asks for, which must leave nothing of it. Nothing is patched.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from detect_secrets import SecretsCollection
from detect_secrets.settings import default_settings


def count_found(path: Path, text: str, pieces: list[str]) -> int:
    path.write_text(text)
    found = SecretsCollection()
    found.scan_file(str(path))
    values = {(each.line_number, each.secret_value or "") for _, each in found}
    return len({line for line, value in values if not pieces or _meets(value, pieces)})


def _meets(value: str, pieces: list[str]) -> bool:
    return any(piece in value or (len(value) >= 8 and value in piece) for piece in pieces) or "PRIVATE KEY" in value


def main() -> None:
    with TemporaryDirectory() as folder, default_settings():
        for line in sys.stdin:
            text, pieces = json.loads(line)
            print(json.dumps(count_found(Path(folder) / "text.txt", text, pieces)), flush=True)


if __name__ == "__main__":
    main()
