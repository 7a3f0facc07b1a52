"""The errors of the package, by their names there."""


class Error(Exception):
    """Ends a rollout: it has no score."""


class ModelError(Error):
    """The model could not be asked."""


class InvalidModelResponseError(ModelError):
    """The model's reply cannot be used."""


class EmptyModelResponseError(InvalidModelResponseError):
    """The model said nothing."""


class OverlongPromptError(Error):
    """The conversation is longer than the model's context. Ends a rollout, which is scored."""


class ToolError(Error):
    """A tool failed, and the environment stops then."""


class ToolParseError(ToolError):
    """The arguments of a call could not be read."""


class ToolCallError(ToolError):
    """A tool raised an exception."""


class InfraError(Error):
    """What the environment runs on failed."""


class TunnelError(InfraError):
    """A tunnel broke."""


class SandboxError(InfraError):
    """A sandbox broke."""


class BrowserSandboxError(SandboxError):
    """A sandbox with a browser broke."""


class MissingKeyError(ValueError):
    """Environment variables are not set."""

    def __init__(self, keys: list[str]) -> None:
        self.keys = keys
        super().__init__(f"these environment variables are not set: {', '.join(keys)}")
