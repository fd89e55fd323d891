"""One reward out of the output's and the action's.

Not asking costs its share of what was reached; asking alone earns nothing. So a
right result without the question the task needed is worth ``1 - weight`` of it,
and a wrong result is worth the bottom of the range whatever was asked.
"""

from __future__ import annotations

import dataclasses
import hashlib

from core.contracts.reward import Reward, RewardEvent, RolloutNode, VerifyResult
from core.rewards.spaces import AskingReward


class ComposedReward:
    """Implements ``Reward``: ``low + (output - low) * (1 - weight * (1 - action))``."""

    def __init__(self, output: Reward, asking: AskingReward) -> None:
        self._output = output
        self._asking = asking

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{self._output.digest} {self._asking.digest}".encode()).hexdigest()

    async def score(self, node: RolloutNode) -> VerifyResult:
        output = await self._output.score(node)
        whole = RewardEvent("output", output.reward, output.space, "terminal", node.id)
        if self._asking.weight == 0.0:
            return dataclasses.replace(
                output,
                items={**output.items, "output": output.reward},
                events=(*output.events, whole),
                verifier_digest=self.digest,
            )
        action = await self._asking.score(node)
        low = output.range[0]
        kept = 1.0 - self._asking.weight * (1.0 - action.reward)
        return dataclasses.replace(
            output,
            reward=low + (output.reward - low) * kept,
            items={**output.items, "output": output.reward, "action": action.reward},
            events=(*output.events, whole, *action.events),
            verifier_digest=self.digest,
        )
