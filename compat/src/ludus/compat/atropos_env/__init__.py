"""Files written for atroposlib's `BaseEnv`, run by Ludus: `ludus process atropos:FILE.py` (compat/docs/atropos.md)."""
