"""The Action space: did the agent ask its user when it should have.

Read from the tree alone. Invariant: nothing is scored for an agent that has no
way to ask, so a reference solution is never blamed for silence.
"""

from __future__ import annotations

import hashlib

from core.contracts.reward import RewardEvent, RolloutNode, VerifyResult
from core.tasks.models import AskingSpec

SOURCE = "asking"


class AskingReward:
    """Implements ``Reward``: 1 when the agent did as the task expects, else 0.

    ``applies`` is False for an agent that cannot ask (step rule ``command``).
    """

    def __init__(self, spec: AskingSpec, *, applies: bool = True) -> None:
        self.weight = spec.weight if applies and spec.expected != "optional" else 0.0
        self._expected = spec.expected

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{SOURCE} {self._expected} {self.weight!r}".encode()).hexdigest()

    async def score(self, node: RolloutNode) -> VerifyResult:
        asks = [step for step in node.path if step.kind == "ask"]
        good = {"required": bool(asks), "forbidden": not asks, "optional": True}[self._expected]
        value = 1.0 if good else 0.0
        if asks:
            reason = "asked, and the task expects it" if good else "asked, and should not have"
            events = tuple(
                RewardEvent(SOURCE, value, "action", "step", node=ask.id, reason=reason)
                for ask in asks
            )
        else:
            reason = "rightly did not ask" if good else "never asked, and should have"
            events = (RewardEvent(SOURCE, value, "action", "terminal", node.id, reason),)
        return VerifyResult(
            reward=value,
            items={SOURCE: value},
            events=events,
            space="action",
            raw=f"{value:g}",
            verifier_digest=self.digest,
        )
