"""A stand-in for Tinker's client, with the classes and answers that the trainer uses. The real client against a real
SkyRL server is in test_tinker_live.py."""

import asyncio
import types
from dataclasses import dataclass, field

IDS = (11, 12, 2)
LOGPROBS = (-0.5, -0.25, -0.125)


class Status(Exception):
    """As the client's `APIStatusError`."""

    def __init__(self, status_code, message="refused"):
        super().__init__(message)
        self.status_code = status_code


class Failed(Exception):
    """As the client's `RequestFailedError`."""

    def __init__(self, category):
        super().__init__("the request failed")
        self.category = types.SimpleNamespace(value=category)


@dataclass
class Datum:
    model_input: list
    loss_fn_inputs: dict


class Tensor:
    def __init__(self, values):
        self._values = values

    def tolist(self):
        return self._values


@dataclass
class Sequence:
    tokens: tuple = IDS
    logprobs: tuple | None = LOGPROBS
    stop_reason: str = "stop"


@dataclass
class SamplingClient:
    version: int
    requests: list = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    gate: asyncio.Event | None = None
    error: Exception | None = None

    async def sample_async(self, *, prompt, num_samples, sampling_params):
        self.requests.append((prompt, num_samples, sampling_params))
        self.asked.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return types.SimpleNamespace(sequences=[Sequence() for _ in range(num_samples)])


@dataclass
class Service:
    """The far side: what it was sent, and what it answers."""

    models: tuple = ("tiny",)
    shift: float = 0.0
    """Added to the recorded logprobs in the answer to a gradient."""
    steps: int = 0
    gradients: list = field(default_factory=list)
    states: dict = field(default_factory=dict)
    errors: dict = field(default_factory=dict)
    """Errors by the name of the request."""
    samplers: list = field(default_factory=list)
    sessions: int = 0
    sent: int = 0
    """Requests of the newest training client."""

    # ---- tinker.ServiceClient
    @property
    def holder(self):
        return types.SimpleNamespace(close=self._close)

    def _close(self):
        self.sessions -= 1

    async def get_server_capabilities_async(self):
        self._fail("capabilities")
        models = [types.SimpleNamespace(model_name=name, max_context_length=64) for name in self.models]
        return types.SimpleNamespace(supported_models=models)

    async def create_lora_training_client_async(self, base_model, *, rank, seed):
        self._fail("create")
        self.sent = 0
        return self

    # ---- tinker.TrainingClient
    async def forward_backward_async(self, data, loss_fn, loss_fn_config=None):
        self.sent += 1
        self.gradients.append((data, loss_fn, loss_fn_config))

        async def answer():
            self._fail("gradient")
            outputs = [
                {"logprobs": Tensor([value + self.shift for value in datum.loss_fn_inputs["logprobs"]])}
                for datum in data
            ]
            return types.SimpleNamespace(loss_fn_outputs=outputs, metrics={})

        return answer()

    async def optim_step_async(self, adam_params):
        async def answer():
            self._fail("step")
            self.steps += 1
            return types.SimpleNamespace(metrics={"skyrl.ai/grad_norm": 0.75})

        return answer()

    async def save_weights_and_get_sampling_client_async(self):
        self._fail("publish")
        self.sent += 1
        self.samplers.append(SamplingClient(self.steps))
        return self.samplers[-1]

    async def save_state_async(self, name):
        async def answer():
            assert name not in self.states
            self.states[name] = self.steps
            return types.SimpleNamespace(path=f"tinker://run/{name}")

        return answer()

    async def load_state_with_optimizer_async(self, path):
        assert not self.sent, "SkyRL loads a state only into a client that has sent nothing before"

        async def answer():
            self.steps = self.states[path.removeprefix("tinker://run/")]

        return answer()

    def _fail(self, name):
        if name in self.errors:
            raise self.errors[name]

    # ---- the module `tinker`
    def make_module(self):
        def connect(**options):
            self.options = options
            self.sessions += 1
            return self

        ints = types.SimpleNamespace(from_ints=list)
        return types.SimpleNamespace(
            ServiceClient=connect, ModelInput=ints, SamplingParams=dict, Datum=Datum, AdamParams=dict
        )
