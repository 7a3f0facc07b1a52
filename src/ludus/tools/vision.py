"""The toolset `vision`: ask a model that takes pictures about an image.

The agent's own model may not take pictures. The section `vision` of the settings names one that does; its calls are in
the ledger under `vision`. A picture is a file of the slot, or an address on the web if the slot may reach the web: the
model's server would fetch it for the agent.
"""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from ludus.errors import ConfigError
from ludus.images import LARGEST, encode_image
from ludus.models import Model
from ludus.sandbox import Sandbox
from ludus.tools import BadArguments, Tool, tool
from ludus.tools.toolsets import Toolset
from ludus.types import Image, Message, Sampling

SYSTEM = (
    "Answer the question about the picture. Say what is there and where, and read out text exactly. "
    "If the picture does not show it, say so."
)
REPLY_TOKENS = 1500


class Viewer:
    """A model that is asked about pictures."""

    def __init__(self, model: Model) -> None:
        self.model = model

    async def ask(self, image: str, question: str) -> str:
        """The reply to a question about a picture: a `data:` URL, or an address on the web.

        Raises:
            ModelError: the model's server failed. It is a failure of the world, as any tool's `RolloutError` is.
        """
        asked = Message("user", question, images=(Image(image),))
        sampling = Sampling(temperature=None, max_tokens=REPLY_TOKENS)
        reply = await self.model.complete((Message("system", SYSTEM), asked), (), sampling)
        return reply.message.content or "The model gave no answer."


def make_vision_toolset(viewer: Viewer) -> Toolset:
    def make(box: Sandbox | None) -> Sequence[Tool]:
        @tool
        async def vision_analyze(
            image: Annotated[str, Meta(description="The path of a PNG, JPEG, GIF or WebP file, or an https address.")],
            question: str,
        ) -> str:
            """Ask a question about a picture."""
            return await viewer.ask(await _find_image(image, box), question)

        return [vision_analyze]

    return Toolset("vision", "ask a model about a picture", make)


async def _find_image(image: str, box: Sandbox | None) -> str:
    """The picture that the agent means. Raises `BadArguments` if there is none, or if it may not be reached."""
    if image.startswith(("http://", "https://")):
        if box is None or not box.spec.network:
            raise BadArguments("There is no network: name a file instead of an address")
        return image
    if box is None:
        raise BadArguments("There are no files here that could be looked at")
    try:
        data = await box.read(image, max_bytes=LARGEST)
    except (OSError, ValueError) as error:
        raise BadArguments(f"{image} cannot be read: {error}") from None
    try:
        return encode_image(data, image)
    except ConfigError as error:
        raise BadArguments(str(error)) from None
