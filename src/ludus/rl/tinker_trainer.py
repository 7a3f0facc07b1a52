"""Training over Tinker's API: `forward_backward`, `optim_step`, and new weights for the sampler.

One adapter serves the hosted service and SkyRL's Tinker server on machines of your own. The service holds the base
model, the LoRA adapter and the optimizer. Here are only rows, and the address of the last saved state. An update waits
for the logprobs before it asks for the optimizer's step, so a loss that is not a finite number changes no weights.

The service divides the gradient in its own way (the hosted one not at all, SkyRL by the number of rows). Adam's step
hardly depends on that.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from ludus.errors import ConfigError, ModelError, ModelUnusable
from ludus.http_client import Client, HttpError
from ludus.models import Model
from ludus.rl.tinker_data import Clip, DatumFields, build_datum, measure_update
from ludus.rl.tinker_engine import TinkerEngine, TinkerSampler, call_service, import_tinker
from ludus.rl.tinker_settings import TinkerSettings
from ludus.rl.trainers import PolicyUpdate, TrainingDiverged, TrainingRow, check_finite
from ludus.tokens.codec import Codec
from ludus.tokens.model import TokenModel

T = TypeVar("T")

STATE = "tinker.json"
NO_KEY = "tml-none"
"""The key for a server that needs none. The client refuses to work without a key of this form."""


class TinkerState(Struct, frozen=True):
    """Where the state of a version is. The weights themselves are on the service."""

    path: str
    """`tinker://…`: the adapter and its optimizer."""
    version: int
    base_model: str
    lora_rank: int


class TinkerTrainer:
    """A policy on a Tinker service. `key` is the value of the key; empty for a server of your own."""

    def __init__(self, settings: TinkerSettings, codec: Codec, key: str = "") -> None:
        self._settings = settings
        self._codec = codec
        self._key = key
        self._check = partial(check_address, settings.base_url) if settings.base_url else None
        self._sampler = TinkerSampler(settings.timeout, self._check)
        self._service: Any = None
        self._training: Any = None
        self._context: int | None = None
        self._version = 0
        self._broken = False
        self._starting = asyncio.Lock()

    @property
    def name(self) -> str:
        return self._settings.base_model

    @property
    def version(self) -> int:
        return self._version

    async def get_model(self, name: str) -> Model:
        training = await self._start()

        async def publish() -> Any:
            return await self._call(
                "saving weights for the sampler", training.save_weights_and_get_sampling_client_async()
            )

        await self._sampler.replace(publish)
        stops = self._codec.tokenizer.stop_tokens
        return TokenModel(
            TinkerEngine(self._sampler, name=name, stop_tokens=stops, context=self._context), self._codec, name=name
        )

    async def update(self, rows: Sequence[TrainingRow]) -> PolicyUpdate:
        if self._broken:
            raise TrainingDiverged(
                "the service holds a gradient that is not finite; resume the run from its last state"
            )
        training = await self._start()
        tinker = import_tinker()
        started = time.monotonic()
        data = [_make_datum(tinker, build_datum(row.tokens, row.advantage)) for row in rows]
        settings = self._settings
        clip = Clip(1 - settings.clip_low, 1 + settings.clip_high) if settings.loss == "ppo" else None
        config = None if clip is None else {"clip_low_threshold": clip.low, "clip_high_threshold": clip.high}
        passed = await self._finish("the gradient", training.forward_backward_async(data, settings.loss, config))
        metrics = measure_update(rows, [_read_logprobs(output) for output in passed.loss_fn_outputs], clip)
        try:
            check_finite(metrics)
        except TrainingDiverged:
            self._broken = True  # the service adds up gradients until the next step
            raise
        adam = tinker.AdamParams(learning_rate=settings.learning_rate)
        stepped = await self._finish("the optimizer's step", training.optim_step_async(adam))
        self._version += 1
        return PolicyUpdate(
            version=self._version,
            metrics=msgspec.structs.replace(
                metrics, gradient=find_gradient(stepped.metrics), seconds=time.monotonic() - started
            ),
        )

    async def save(self, folder: Path) -> None:
        training = await self._start()
        name = f"ludus-{self._version}-{uuid.uuid4().hex[:8]}"  # a name is used once: a save may be repeated
        saved = await self._finish("saving the state", training.save_state_async(name))
        state = TinkerState(saved.path, self._version, self._settings.base_model, self._settings.lora_rank)
        (folder / STATE).write_bytes(msgspec.json.encode(state))

    async def load(self, folder: Path) -> None:
        state = read_state(folder, self._settings)
        training = await self._create()  # a state can only be loaded into a client that has done nothing else
        await self._finish(f"loading {state.path}", training.load_state_with_optimizer_async(state.path))
        self._training, self._version, self._broken = training, state.version, False

    async def close(self) -> None:
        service, self._service, self._training = self._service, None, None
        if service is not None:
            service.holder.close()  # ends the heartbeat: the service then frees the adapter

    # ---- the service ----------------------------------------------------------------------------------------------

    async def _start(self) -> Any:
        """The training client. It is made once."""
        async with self._starting:
            if self._training is None:
                self._training = await self._create()
        return self._training

    async def _create(self) -> Any:
        """A new adapter on the service, and the client that trains it."""
        service = self._service = self._service or await self._connect()
        settings = self._settings
        return await self._call(
            "creating the adapter",
            service.create_lora_training_client_async(settings.base_model, rank=settings.lora_rank, seed=settings.seed),
        )

    async def _connect(self) -> Any:
        """A session on a service that has the model."""
        settings = self._settings
        tinker = import_tinker()
        options: dict[str, Any] = {"api_key": self._key or NO_KEY}
        if self._check is not None:
            await self._check()
            options["base_url"] = settings.base_url
        try:
            service = tinker.ServiceClient(**options)
            await asyncio.to_thread(lambda: service.holder)  # opens the session, and blocks
        except Exception as error:
            raise ModelUnusable(
                f"Tinker: no session: {error}. Check trainer.base_url and trainer.api_key_var"
            ) from error
        capabilities = await self._call("asking for its models", service.get_server_capabilities_async())
        self._context = find_model(capabilities, settings.base_model)
        return service

    async def _finish(self, what: str, request: Awaitable[Any]) -> Any:
        """Send a request and wait for its result."""
        return await self._call(what, await self._call(what, request))

    async def _call(self, what: str, answer: Awaitable[T]) -> T:
        """Wait for an answer. Whatever goes wrong stops the run, which can be resumed."""
        try:
            return await call_service(what, answer, self._settings.timeout, self._check)
        except ModelUnusable:
            raise
        except ModelError as error:
            raise ModelUnusable(f"{error}. Resume the run when the service works again") from error


async def check_address(base_url: str) -> None:
    """Ask a server whether it is there.

    Raises:
        ModelUnusable: nothing answers at the address.
    """
    client = Client(connections=1)
    try:
        await client.request("GET", f"{base_url.rstrip('/')}/api/v1/healthz")
    except (HttpError, ValueError) as error:
        raise ModelUnusable(f"trainer.base_url: no Tinker server at {base_url}: {error}") from error
    finally:
        await client.close()


def find_model(capabilities: Any, base_model: str) -> int | None:
    """The context of a model, if the service knows the model and says so.

    Raises:
        ConfigError: the service does not have the model. The message lists those that it has.
    """
    known = {model.model_name: model for model in capabilities.supported_models}
    if base_model not in known:
        names = ", ".join(sorted(map(str, known))) or "none"
        raise ConfigError(f"trainer.base_model: the service does not have '{base_model}'. It has: {names}")
    return getattr(known[base_model], "max_context_length", None)


def read_state(folder: Path, settings: TinkerSettings) -> TinkerState:
    """The saved state in a folder.

    Raises:
        ConfigError: there is none, or it belongs to another model or rank.
    """
    try:
        state = msgspec.json.decode((folder / STATE).read_bytes(), type=TinkerState)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{folder / STATE} is not the state of a Tinker trainer: {error}") from error
    for name in ("base_model", "lora_rank"):
        saved, given = getattr(state, name), getattr(settings, name)
        if saved != given:
            raise ConfigError(f"trainer.{name}: the saved state has {saved!r}, the settings {given!r}")
    return state


def find_gradient(metrics: Any) -> float | None:
    """The norm of the gradient, if the optimizer's step reports it. Services prefix its name."""
    values = dict(metrics or {})
    return next((float(value) for name, value in values.items() if str(name).endswith("grad_norm")), None)


def _make_datum(tinker: Any, fields: DatumFields) -> Any:
    inputs = msgspec.structs.asdict(fields)
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(inputs.pop("model_input")), loss_fn_inputs=inputs)


def _read_logprobs(output: Any) -> list[float]:
    return [float(value) for value in output["logprobs"].tolist()]
