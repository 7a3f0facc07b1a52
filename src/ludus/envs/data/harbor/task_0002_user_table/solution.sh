#!/bin/bash
python3 - <<'PY'
import json
from pathlib import Path

rows = [line.split() for line in Path("/home/user/people.txt").read_text().splitlines()]
people = sorted(({"name": name, "age": int(age)} for name, age in rows), key=lambda person: -person["age"])
Path("/home/user/people.json").write_text(json.dumps(people))
PY
