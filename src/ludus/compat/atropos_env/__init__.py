"""Files written for atroposlib's `BaseEnv`, run by Ludus: `ludus process atropos:FILE.py` (docs/atropos.md)."""
