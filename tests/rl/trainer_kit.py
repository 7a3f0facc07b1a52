"""What the tests with real trainers share: an environment whose scores differ, and the place of the policy."""

import os
from typing import ClassVar

from ludus.envs.parcels import Parcels
from ludus.types import Rollout, Score

POLICY = os.environ.get("LUDUS_TEST_POLICY", "")
"""The folder of a policy that can call the tools of `parcels` (scripts/test-trainers)."""


class FirstDesk(Parcels, frozen=True):
    """A parcel that goes to the desk in the north first is worth 1. An untrained policy gets that now and then."""

    name: ClassVar[str] = "first_desk"

    async def verify(self, rollout: Rollout, box: object) -> Score:
        calls = [call.name for turn in rollout.turns for call in turn.completion.message.calls]
        return Score.of(float(calls[:1] == ["north"]))
