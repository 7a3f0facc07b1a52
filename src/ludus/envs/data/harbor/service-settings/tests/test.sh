#!/bin/bash
# One third for each setting; nothing if another line has changed.
python3 - <<'PY'
import json
from pathlib import Path

lines = Path("/etc/service/post.conf").read_text().splitlines()
wanted = ["port = 8025", "retries = 3", "log = /var/log/post.log"]
others = [line for line in lines if not line.startswith(("port", "retries", "log"))]
kept = others == ["# settings of the post service", "host = mail.example"]
right = sum(line in lines for line in wanted)
reward = right / len(wanted) if kept else 0.0
Path("/logs/verifier/reward.json").write_text(json.dumps({"reward": reward, "kept": int(kept)}))
PY
