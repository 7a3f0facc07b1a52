"""The gate rules that come with Ludus, by their names in `train.gate.rule`.

To add one, write it (a function like `ludus.reflact.gate.judge`, or a class derived from
`ludus.reflact.early_gates.EarlyRule`) and name it in `RULES`. Settings, errors and the trainer take their lists from
here; a rule is imported when it is used.
"""

import importlib
from collections.abc import Mapping

from ludus.errors import ConfigError, suggest
from ludus.reflact.gate import Rule

RULES: Mapping[str, str] = {
    "mean": "ludus.reflact.gate:judge",
    "curtailed": "ludus.reflact.early_gates:Curtailed",
    "sequential": "ludus.reflact.early_gates:Sequential",
}


def find_rule(name: str) -> Rule | None:
    """The built-in rule of this name; None without a name.

    Raises:
        ConfigError: there is no such rule. A rule of the user's own is loaded by `ludus.config`.
    """
    if not name:
        return None
    if name not in RULES:
        known = suggest(name, list(RULES))
        raise ConfigError(f"train.gate.rule: unknown gate rule '{name}'; {known} (your own: pass it as `rule`)")
    module, _, attribute = RULES[name].partition(":")
    found = getattr(importlib.import_module(module), attribute)
    return found() if isinstance(found, type) else found
