"""The models of the two roles, target and optimizer: SkillOpt's backends as settings of Ludus.

A backend is a server, or a command-line agent that acts as the target: then it becomes `agent.harness`. The keys of a
backend count only if a role uses it, as in SkillOpt. Keys in the file are refused, because settings are recorded; the
message names the environment variable to use. Each server has a variable of its own: a role with an address of its own
never gets the key of another server.
"""

import re
import shlex
from collections.abc import Iterator
from typing import Any

from ludus.compat.skillopt.findings import Findings
from ludus.compat.skillopt.names import BACKENDS
from ludus.config.reading import Tree
from ludus.harness.known import CLAUDE_CODE

ROLES = ("optimizer", "target")
VENDORS = {"qwen_chat": "qwen_chat", "minimax_chat": "minimax"}
"""Backends with a server that speaks OpenAI's API, and how their keys begin."""
_ADDRESSES = {"qwen_chat": "http://localhost:8000/v1", "minimax": "https://api.minimax.io/v1"}
_MODELS = {
    "claude_chat": "claude-sonnet-4-6",
    "claude_code_exec": "claude-sonnet-4-6",
    "qwen_chat": "Qwen/Qwen3.5-4B",
    "minimax_chat": "MiniMax-M3",
}
"""The models that SkillOpt takes for a backend in place of those of its base file."""
_SENTINELS = ("gpt-5.4", "gpt-5.5")
"""Names of models in base files of SkillOpt, which are replaced by the backend's own."""
_TARGETS_ONLY = ("codex_exec", "claude_code_exec", "cursor_exec", "copilot_exec", "qwen_chat", "minimax_chat")
_HARNESSES = {"codex_exec": "codex", "claude_code_exec": "claude-code"}
"""Backends that are command-line agents, and their names here."""
_PREFIXES = {"openai_chat": "azure_openai", **VENDORS, **{name: name for name in _HARNESSES}}
"""How the keys of a backend begin."""
_UNSET = ("", "none", "auto", "false", "null")
_REPLY_TOKENS = 16_384
_AS_SHIPPED = (
    "",
    "2024-12-01-preview",
    "https://cognitiveservices.azure.com/.default",
    "minimax-m3",
    "0.7",
    "8000",
    "16384",
    "medium",
    "codex",
    "claude",
    "workspace-write",
    "never",
    *_UNSET,
)
"""Values in SkillOpt's base file that say nothing of the user's own."""


class RoleModels:
    """The section `model` of a configuration, being converted."""

    def __init__(self, model: Tree, found: Findings) -> None:
        self._model = model
        self._found = found

    # -- keys and efforts

    def check(self) -> None:
        """Refuse keys, and note what has no effect."""
        for key, value in self._model.items():
            if key.endswith("api_key") and value:
                self._found.refuse(
                    f"model.{key}: keys are not settings, because settings are recorded; put it in the environment "
                    f"variable {self._find_key_variable(key)} and take it out of the file"
                )
            if re.match("(optimizer|target)_minimax_|resolved_", key) and value is not None:
                self._found.note(f"model.{key} does nothing, there or here")
        if self._model.get("codex_trace_to_optimizer") is False:
            self._found.note("model.codex_trace_to_optimizer: analysts see what the agent did, whatever it is")

    def _find_key_variable(self, key: str) -> str:
        """The variable that is read instead of a key in the file."""
        role, _, server = key.removesuffix("_api_key").partition("_")
        if role not in ROLES:
            role, server = "", key.removesuffix("_api_key")
        prefix = "azure_openai" if server == "azure" else server
        return self._name_key_variable(role, prefix) if role else f"{prefix.upper()}_API_KEY"

    def _name_key_variable(self, role: str, prefix: str) -> str:
        """The variable with the key of a role's server. A role with an address of its own has a key of its own."""
        addresses = (f"{role}_{prefix}_endpoint", f"{role}_{prefix}_base_url")
        own = prefix != "minimax" and any(self._model.get(address) for address in addresses)
        return f"{role.upper()}_{prefix.upper()}_API_KEY" if own else f"{prefix.upper()}_API_KEY"

    # -- backends

    def find_backend(self, role: str) -> str:
        """The backend of a role: its own, or the one of `model.backend`."""
        given = self._model.get(f"{role}_backend") or "openai_chat"
        own = self._found.read_choice(f"model.{role}_backend", given, BACKENDS)
        label = self._found.read_choice("model.backend", self._model.get("backend") or "azure_openai", BACKENDS)
        if own != "openai_chat":
            return own
        if role == "optimizer" and label in _TARGETS_ONLY:
            return "openai_chat"
        return label

    def _get_of_role(self, role: str, key: str, default: Any = "") -> Any:
        """A setting of a role's server: the role's own, or the one for both roles."""
        own = "" if key.startswith("minimax") else self._model.get(f"{role}_{key}")
        given = (value for value in (own, self._model.get(key)) if value not in (None, ""))
        return next(given, default)

    def convert_model(self, role: str) -> Tree:
        """The model of a role, as settings of Ludus."""
        backend = self.find_backend(role)
        name = self._model.get(role, "gpt-5.5")
        if name in _SENTINELS:
            name = _MODELS.get(backend, name)
        if backend == "openai_chat" or (backend == "codex_exec" and role == "target"):
            return self._convert_openai(role, name)
        if backend == "openai_compatible":
            return self._convert_compatible(role, name)
        if backend in VENDORS:
            name = (role == "target" and backend == "minimax_chat" and self._model.get("minimax_model")) or name
            return self._convert_vendor(role, VENDORS[backend], name)
        if backend in ("claude_chat", "claude_code_exec"):
            return {"type": "anthropic", "name": name}
        self._found.refuse(
            f"model: the {role}'s backend is {backend}, a program that SkillOpt starts with your login. Name a model "
            "server in settings of Ludus, and leave the backend out"
        )
        return {}

    def _convert_openai(self, role: str, name: str) -> Tree:
        endpoint = self._get_of_role(role, "azure_openai_endpoint", self._model.get("azure_endpoint", ""))
        variable = self._name_key_variable(role, "azure_openai")
        auth = str(self._get_of_role(role, "azure_openai_auth_mode")).lower()
        server = {"name": name, "base_url": endpoint, "max_tokens_field": "max_completion_tokens"}
        if auth in ("openai_compatible", "compat", "openai"):
            return {"type": "openai", **server, "api_key_var": variable}
        if auth not in ("", "api_key", "key"):
            self._found.refuse(
                f"model.azure_openai_auth_mode: {auth} asks a cloud login for tokens, which is not done here; use "
                f"api_key, with the key in {variable}"
            )
        version = self._get_of_role(
            role, "azure_openai_api_version", self._model.get("azure_api_version", "2024-12-01-preview")
        )
        return {"type": "azure", **server, "api_version": version, "api_key_var": variable}

    def _convert_compatible(self, role: str, name: str) -> Tree:
        """A server whose address SkillOpt reads from a variable."""
        section, variable = ("model" if role == "target" else role), f"{role.upper()}_OPENAI_COMPATIBLE"
        self._found.note(
            f"model: SkillOpt reads the address of the {role}'s server from the variable {variable}_BASE_URL; give it "
            f"as --{section}.base_url"
        )
        return {"type": "openai", "name": name, "api_key_var": f"{variable}_API_KEY"}

    def _convert_vendor(self, role: str, prefix: str, name: str) -> Tree:
        """A vendor's server that speaks OpenAI's API."""
        if self._model.get("minimax_region"):
            self._found.refuse("model.minimax_region: give the address itself, model.minimax_base_url")
        server: Tree = {"type": "openai", "name": name, "api_key_var": self._name_key_variable(role, prefix)}
        if seconds := self._get_of_role(role, f"{prefix}_timeout_seconds", None):
            server["timeouts"] = {"silence": seconds, "total": seconds}
        return server | {"base_url": self._get_of_role(role, f"{prefix}_base_url", _ADDRESSES[prefix])}

    # -- sampling

    def convert_sampling(self, role: str, limit: int | None = None) -> Tree:
        """How the replies of a role are sampled. `limit`: the most tokens of one, if the file says it."""
        backend = self.find_backend(role)
        most = {"max_tokens": limit} if limit else {}
        if backend in VENDORS:
            return self._convert_vendor_sampling(role, VENDORS[backend]) | most
        if backend == "claude_code_exec":
            return self._convert_claude_sampling(limit or _REPLY_TOKENS)
        effort = self._model.get("reasoning_effort") if backend == "openai_chat" else None
        if backend == "codex_exec":
            effort = self._get_program_key("codex_exec_reasoning_effort", ("", "none"))
        return {"temperature": None, "extra": {"reasoning_effort": effort} if effort else {}} | most

    def convert_rewrites(self) -> Tree:
        """What requests for a rewrite say beside those of other stages. Only one of SkillOpt's servers is told."""
        effort = self._model.get("rewrite_reasoning_effort", "high")
        told = effort and self.find_backend("optimizer") == "openai_chat"
        return {"reasoning_effort": effort} if told else {}

    def _convert_vendor_sampling(self, role: str, prefix: str) -> Tree:
        sampling: Tree = {"temperature": float(self._get_of_role(role, f"{prefix}_temperature", 0.7))}
        if role == "target":
            sampling["max_tokens"] = int(self._get_of_role(role, f"{prefix}_max_tokens", 8000))
        elif self._model.get(f"optimizer_{prefix}_max_tokens") and prefix != "minimax":
            self._found.note(
                f"model.optimizer_{prefix}_max_tokens is not used: replies of the optimizer are limited by what is "
                "asked (train.reply_tokens, train.rewrite_tokens)"
            )
        unsaid = "false" if prefix == "minimax" else ""  # this server is always told
        thinking = str(
            self._get_of_role(role, f"{prefix}_thinking_mode")
            or self._get_of_role(role, f"{prefix}_enable_thinking", unsaid)
        )
        enabled = {"enabled": True, "true": True, "disabled": False, "false": False}.get(thinking.lower())
        if enabled is not None:
            sampling["extra"] = {"chat_template_kwargs": {"enable_thinking": enabled}}
        return sampling

    def _convert_claude_sampling(self, limit: int) -> Tree:
        """Claude Code's effort and thinking. Its requests are sampled as the run says, whatever it asks for."""
        effort = self._model.get("claude_code_exec_effort") or self._model.get("reasoning_effort") or "medium"
        effort = {"xhigh": "max", "off": ""}.get(str(effort).lower(), str(effort).lower())
        budget = int(self._model.get("claude_code_exec_max_thinking_tokens", 16_384) or 0)
        extra: Tree = {"output_config": {"effort": effort}} if effort not in ("", "none") else {}
        if budget:
            extra["thinking"] = {"type": "enabled", "budget_tokens": budget}
        return {"temperature": None, "max_tokens": limit + budget, "extra": extra}  # the thinking counts as reply

    # -- command-line agents

    def convert_program(self) -> Tree:
        """The command-line agent that acts, and its slot, if the target's backend is one."""
        backend = self.find_backend("target")
        if backend not in _HARNESSES:
            return {}
        agent: Tree = {"harness": _HARNESSES[backend]}
        sandbox: Tree = {}
        if backend == "codex_exec":
            self._check_codex()
            if self._get_program_key("codex_exec_network_access"):
                sandbox["network"] = True
        elif profile := self._get_program_key("claude_code_exec_profile"):
            words = shlex.quote(f"Profile: {profile}")
            command = f"{CLAUDE_CODE.command} --append-system-prompt {words}"
            agent["harnesses"] = {CLAUDE_CODE.name: {"command": command}}
        self._note_start(backend)
        return {"agent": agent, "sandbox": sandbox}

    def _get_program_key(self, key: str, unset: tuple[str, ...] = _UNSET) -> Any:
        """The value of a key of a command-line agent, by its name or an older one; None if it says nothing."""
        for name in (key, *_OLDER.get(key, ())):
            value = self._model.get(name)
            if value is not None and str(value).strip().lower() not in unset:
                return value
        return None

    def _check_codex(self) -> None:
        """Refuse what cannot be had in a slot."""
        sandbox = self._get_program_key("codex_exec_sandbox")
        approval = self._get_program_key("codex_exec_approval_policy")
        if sandbox == "danger-full-access":
            self._found.note(
                "model.codex_exec_sandbox danger-full-access is not given: the agent has its slot, without a network "
                "unless sandbox.network is true"
            )
        elif sandbox not in (None, "workspace-write"):
            self._found.refuse(
                f"model.codex_exec_sandbox: {sandbox} cannot be had: the agent may write in its slot, which is all "
                "that it sees; use workspace-write"
            )
        if approval not in (None, "never"):
            self._found.refuse(f"model.codex_exec_approval_policy: nobody is there to approve ({approval}); use never")
        if self._get_program_key("codex_exec_web_search"):
            self._found.refuse(
                "model.codex_exec_web_search: the model of the run answers the agent, and it does not search the web; "
                "leave it out"
            )
        if profile := self._get_program_key("codex_exec_profile"):
            self._found.refuse(
                f"model.codex_exec_profile: {profile} is a part of your ~/.codex/config.toml, which a slot does not "
                "have; leave it out, and write what it says into agent.harnesses.codex (docs/agents.md)"
            )

    def _note_start(self, backend: str) -> None:
        """Note keys about how the program is started. Slots have an installation of their own."""
        harness = _HARNESSES[backend]
        path = self._get_program_key(f"{backend}_path")
        if path not in (None, "codex", "claude"):
            self._found.note(
                f"model.{backend}_path is not used: the agent runs in a slot, where scripts/setup-agents {harness} "
                f"puts it; another command: agent.harnesses.{harness}.command"
            )
        if self._get_program_key(f"{backend}_use_sdk"):
            self._found.note(f"model.{backend}_use_sdk is not used: the agent is started as a program")
        if backend == "codex_exec" and self._get_program_key("codex_exec_full_auto"):
            self._found.note("model.codex_exec_full_auto is not used: the agent never asks, and its slot isolates it")

    # -- for adapters

    def note_client(self) -> None:
        """Note settings of the model that an adapter does not get: its own client reads variables."""
        prefix = _PREFIXES.get(self.find_backend("target"))
        for key, value in self._model.items():
            shipped = str("" if value is None else value).lower() in _AS_SHIPPED
            if prefix and re.match(f"(target_)?{prefix}_", key) and not shipped:
                self._found.note(
                    f"model.{key} does not reach the adapter: its own client reads the variable {key.upper()}"
                )

    def list_open(self) -> Iterator[tuple[str, Any]]:
        """The keys of the section without secrets."""
        return ((key, value) for key, value in self._model.items() if "api_key" not in key)

    @property
    def target_model(self) -> str:
        """The target's model as the file names it; empty if it does not."""
        return self._model.get("target", "")

    @property
    def rewrite_tokens(self) -> int:
        return self._model.get("rewrite_max_completion_tokens", 64_000)


_OLDER = {
    "codex_exec_path": ("codex_path", "codex_cli_bin", "codex_bin"),
    "codex_exec_sandbox": ("codex_sandbox", "sandbox"),
}
"""Older names of keys."""
