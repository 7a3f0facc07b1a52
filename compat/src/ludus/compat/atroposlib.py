"""What files written for atroposlib import, for `python FILE.py process …`: change their imports to this module.

    from ludus.compat.atroposlib import APIServerConfig, BaseEnv, BaseEnvConfig, Item, tokenize_for_trainer

`ludus process atropos:FILE.py` needs no change (compat/docs/atropos.md).
"""

from ludus.compat.atropos_env.base_env import BaseEnv
from ludus.compat.atropos_env.env_config import APIServerConfig, BaseEnvConfig, EvalHandlingEnum, ServerBaseline
from ludus.compat.atropos_env.scored_data import AtroposMessage as Message
from ludus.compat.atropos_env.scored_data import GameHistory, Item, ScoredDataGroup, ScoredDataItem, number
from ludus.compat.atropos_env.tokenizer_view import build_row as tokenize_for_trainer

__all__ = [
    "APIServerConfig",
    "BaseEnv",
    "BaseEnvConfig",
    "EvalHandlingEnum",
    "GameHistory",
    "Item",
    "Message",
    "ScoredDataGroup",
    "ScoredDataItem",
    "ServerBaseline",
    "number",
    "tokenize_for_trainer",
]
