"""The packages of the extra `tokens`, which read tokenizers and run chat templates.

They are imported when a tokenizer or a template is made. Everything else of this part works without them, so that
commands of the base install read rows, sessions and stored tokens.
"""

from importlib.util import find_spec
from typing import Literal

from ludus.errors import ConfigError


def require_packages(*names: Literal["tokenizers", "jinja2"]) -> None:
    """Check that packages are installed.

    Raises:
        ConfigError: one is missing; the message names the extra.
    """
    if any(find_spec(name) is None for name in names):
        raise ConfigError("exact tokens need the extra 'tokens': pip install 'ludus-train[tokens]'")
