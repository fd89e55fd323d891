"""From what a person asks for to the children that would start."""

from __future__ import annotations

import pytest

from core.contracts.agent import Answer, AskUser, SessionSnapshot
from core.contracts.errors import UsageError
from core.contracts.sandbox import SandboxImage, SandboxSpec
from core.contracts.user import AskContext, Nudge, TurnEnd
from core.contracts.values import Fidelity
from core.kernel import events as ev
from core.kernel.checkpoint import Checkpoint
from core.kernel.replay import fold
from core.kernel.spec import checkpointed
from core.services.branching import BranchRequest, plan_branch
from tests.core.kernel.logs import log


class Person:
    """Whoever asks them waits."""

    name = "human"

    async def answer(self, ask: AskUser, context: AskContext) -> Answer:
        raise AssertionError("a plan waits for nobody")

    async def after_turn(self, turn: TurnEnd) -> Nudge | None:
        raise AssertionError("a plan waits for nobody")


async def test_a_person_is_not_sampled_while_the_owner_serves_a_command() -> None:
    image = SandboxImage("i1", "fake", None, "fake", (), 0, 0.0, frozenset(), SandboxSpec("s"))
    session = SessionSnapshot("fake", Fidelity.EXACT, {}, pending_ask=True, steps=0)
    asked = Checkpoint("i1", "n3", 1, "quiesced", image, None, session, (), 0.0, 0.0)
    tree = fold(
        log(
            (0, ev.LineStarted(None, {"kind": "start"}, main=True)),
            (0, ev.Asked(0, {"question": "Which?"})),
            (0, checkpointed(asked)),
        )
    )
    request = BranchRequest("n3", resample=2)
    with pytest.raises(UsageError, match="a person answers"):
        await plan_branch(tree, request, Person(), actor="ann", via="test")
