"""Pictures in messages.

A picture is a `data:` URL (`data:image/png;base64,…`) or an address on the web, at a place in the text of its message.
Chat models get it in the form of their server. Models in token mode, and the embedded model, take only text, and refuse
it by name. In a run directory every picture is stored once, as `images/<hash>.png`, and records contain that name.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ludus.errors import ConfigError, Unsupported
from ludus.types import Image, Message
from ludus.whole_files import read_whole

FOLDER = "images"
"""The folder of a run directory that contains the pictures."""
LARGEST = 20_000_000
"""The longest picture, in bytes. Providers refuse longer ones."""
_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"RIFF": "image/webp",
}
_DATA_URL = re.compile(r"data:(image/(?:png|jpeg|gif|webp));base64,([A-Za-z0-9+/=]+)")
_STORED_URL = re.compile(rb'("url":|[\[,])"data:image/(png|jpeg|gif|webp);base64,([A-Za-z0-9+/=]+)"')
"""A `data:` URL in JSON, as the field `url` or in a list. In a text its quotes are escaped."""
_STORED_NAME = re.compile(rb'("url":|[\[,])"(images/[0-9a-f]{32}\.(?:png|jpeg|gif|webp))"')
"""The name of a stored picture, in the same places."""

IMAGE_MARK = b'"data:image/'
"""What JSON with a picture in it contains."""


class EncodedImage(NamedTuple):
    """The content of a picture."""

    media_type: str
    data: str
    """In base64."""


def read_image(path: Path) -> str:
    """A picture file as a `data:` URL, for `Task.images` and for results of tools.

    Raises:
        ConfigError: it cannot be read, is too long, or is no PNG, JPEG, GIF or WebP.
    """
    try:
        data = read_whole(path)
    except OSError as error:
        raise ConfigError(f"the picture {path} cannot be read: {error.strerror or error}") from None
    return encode_image(data, str(path))


def encode_image(data: bytes, what: str = "the picture") -> str:
    """The bytes of a picture as a `data:` URL.

    Raises:
        ConfigError: it is too long, or is no PNG, JPEG, GIF or WebP.
    """
    media_type = next((kind for start, kind in _SIGNATURES.items() if data.startswith(start)), None)
    if media_type is None:
        raise ConfigError(f"{what} is no PNG, JPEG, GIF or WebP")
    if len(data) > LARGEST:
        raise ConfigError(f"{what} has {len(data):,} bytes; at most {LARGEST:,} can be sent to a model")
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def decode_url(url: str) -> EncodedImage | None:
    """The content of a `data:` URL; None for an address on the web."""
    found = _DATA_URL.fullmatch(url)
    return EncodedImage(found[1], found[2]) if found else None


def describe_bad_url(url: str) -> str:
    """What is wrong with the URL of a picture; empty if nothing is."""
    if url.startswith(("https://", "http://")):
        return ""
    found = decode_url(url)
    if found is None:
        return "expected an address on the web, or a `data:` URL of a PNG, JPEG, GIF or WebP in base64"
    try:
        size = len(base64.b64decode(found.data, validate=True))
    except binascii.Error:
        return "the data is not base64"
    return f"it has {size:,} bytes; at most {LARGEST:,} are allowed" if size > LARGEST else ""


def split_parts(message: Message) -> Iterator[str | Image]:
    """The text and the pictures of a message, in order. Empty texts are left out."""
    start = 0
    for image in message.images:
        if message.content[start : image.at]:
            yield message.content[start : image.at]
        start = max(start, image.at)
        yield image
    if message.content[start:]:
        yield message.content[start:]


def refuse_images(messages: Sequence[Message], model: str) -> None:
    """Raise `Unsupported` if a message has a picture."""
    for index, message in enumerate(messages):
        if message.images:
            raise Unsupported(f"messages[{index}]: {model} takes only text, and this message has a picture")


def extract_images(body: bytes, save: Callable[[str, bytes], object]) -> bytes:
    """JSON whose pictures are replaced by the names of files. `save` gets each name and the bytes of the file."""

    def replace(found: re.Match[bytes]) -> bytes:
        before, kind, encoded = found.groups()
        data = base64.b64decode(encoded)
        name = f"{FOLDER}/{hashlib.sha256(data).hexdigest()[:32]}.{kind.decode()}"
        save(name, data)
        return b'%b"%b"' % (before, name.encode())

    return _STORED_URL.sub(replace, body)


def restore_images(body: bytes, load: Callable[[str], bytes]) -> bytes:
    """The JSON from which `extract_images` took pictures, with them again. `load` reads the file of a name."""

    def replace(found: re.Match[bytes]) -> bytes:
        before, name = found.groups()
        kind = name.rpartition(b".")[2]
        return b'%b"data:image/%b;base64,%b"' % (before, kind, base64.b64encode(load(name.decode())))

    return _STORED_NAME.sub(replace, body)
