"""Files written for `HermesAgentBaseEnv`, run by Ludus: `ludus process hermes:FILE.py` (compat/docs/hermes.md)."""
