from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from core.contracts.errors import Conflict, Fenced, NotFound
from core.contracts.store import EventDraft, RequestState
from core.contracts.values import JsonObject
from core.store.sql import SqlStore
from tests.core.store.helpers import Clock, ask, opened, owned, said

YES: JsonObject = {"action": "accept", "content": {"answer": "yes"}}


async def test_an_answer_is_taken_delivered_and_counted(store: SqlStore, tmp_path: Path) -> None:
    own = await owned(store, tmp_path)
    request = await store.requests.open(own, ask(own))
    assert (await store.rollouts.get(own.rollout)).waiting == 1
    assert [row.id for row in await store.requests.select()] == [request.id]
    answered = await store.requests.answer(request.id, YES, actor="ann", via="cli", idem_key="k1")
    assert (answered.state, answered.answer, answered.actor) == (RequestState.ANSWERED, YES, "ann")
    assert (await store.rollouts.get(own.rollout)).waiting == 0
    assert await store.requests.select() == []
    events = await store.requests.deliver(own, request.id, EventDraft("answered", {"node": "n3"}))
    assert [event.kind for event in events] == ["answered"]
    assert (await store.requests.get(request.id)).state is RequestState.DELIVERED
    with pytest.raises(Conflict, match="delivered already"):
        await store.requests.deliver(own, request.id, said("twice"))
    assert len(await store.log.read(own.rollout)) == 1


async def test_the_second_answer_is_told_who_what_and_when(store: SqlStore, tmp_path: Path) -> None:
    own = await owned(store, tmp_path)
    request = await store.requests.open(own, ask(own))
    first = await store.requests.answer(request.id, YES, actor="ann", via="web", idem_key="k1")
    with pytest.raises(Conflict, match=r"answered by ann \(web\) at .*yes"):
        await store.requests.answer(request.id, {}, actor="bob", via="cli", idem_key="k2")
    again = await store.requests.answer(
        request.id, {"other": 1}, actor="ann", via="web", idem_key="k1"
    )
    assert again == first


async def test_exactly_one_of_many_processes_wins(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as store:
        own = await owned(store, tmp_path)
        requests = [await store.requests.open(own, ask(own, ask_index=n)) for n in range(10)]
    won: list[tuple[str, str]] = []
    lost: list[str] = []

    async def person(name: str) -> None:
        async with opened(tmp_path / "store") as mine:
            for request in requests:
                try:
                    await mine.requests.answer(
                        request.id,
                        {"by": name},
                        actor=name,
                        via="test",
                        idem_key=name + request.id,
                    )
                    won.append((request.id, name))
                except Conflict:
                    lost.append(request.id)

    threads = [threading.Thread(target=lambda n=n: asyncio.run(person(f"p{n}"))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert sorted(request for request, _ in won) == sorted(request.id for request in requests)
    assert len(lost) == 30
    async with opened(tmp_path / "store") as store:
        for request, name in won:
            assert (await store.requests.get(request)).answer == {"by": name}


async def test_a_late_answer_finds_the_default_taken(
    store: SqlStore, tmp_path: Path, clock: Clock
) -> None:
    own = await owned(store, tmp_path)
    request = await store.requests.open(own, ask(own, deadline=30))
    assert request.deadline_at == clock.now + 30
    clock.now += 30
    with pytest.raises(Conflict, match=r"default was taken.*decline"):
        await store.requests.answer(request.id, YES, actor="ann", via="cli", idem_key="k")
    record = await store.requests.wait(request.id)
    assert (record.state, record.answer) == (RequestState.EXPIRED, {"action": "decline"})
    await store.requests.deliver(own, request.id, said("default"))
    assert (await store.requests.get(request.id)).state is RequestState.EXPIRED
    with pytest.raises(Conflict):
        await store.requests.deliver(own, request.id, said("default"))


async def test_waiting_takes_the_default_when_the_deadline_comes(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as store:
        own = await owned(store, tmp_path)
        request = await store.requests.open(own, ask(own, deadline=0.05))
        record = await store.requests.wait(request.id)
        assert (record.state, record.actor) == (RequestState.EXPIRED, "deadline")


async def test_waiting_ends_with_an_answer_from_another_store(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as store, opened(tmp_path / "store") as other:
        own = await owned(store, tmp_path)
        request = await store.requests.open(own, ask(own))
        waiting = asyncio.create_task(store.requests.wait(request.id))
        await asyncio.sleep(0)
        await other.requests.answer(request.id, YES, actor="b", via="cli", idem_key="k")
        assert (await waiting).answer == YES


async def test_a_restarted_attempt_finds_its_stored_answer_on_its_new_line(
    store: SqlStore, tmp_path: Path
) -> None:
    own = await owned(store, tmp_path)
    request = await store.requests.open(own, ask(own, line=0))
    await store.requests.answer(request.id, YES, actor="ann", via="cli", idem_key="k")
    await store.requests.deliver(own, request.id, said("first life"))
    heir = await store.rollouts.claim(own.engine, own.rollout, new_attempt=True)
    again = await store.requests.open(heir, ask(heir, line=1))
    assert (again.id, again.line, again.state) == (request.id, 1, RequestState.ANSWERED)
    assert (await store.requests.wait(again.id)).answer == YES
    assert len(await store.requests.deliver(heir, again.id, said("second life"))) == 1
    with pytest.raises(Fenced):
        await store.requests.deliver(own, request.id, said("ghost"))


async def test_a_different_question_of_a_new_attempt_is_a_new_request(
    store: SqlStore, tmp_path: Path
) -> None:
    own = await owned(store, tmp_path)
    request = await store.requests.open(own, ask(own))
    await store.requests.answer(request.id, YES, actor="ann", via="cli", idem_key="k")
    heir = await store.rollouts.claim(own.engine, own.rollout, new_attempt=True)
    other = await store.requests.open(heir, ask(heir, line=1, question="Which customer?"))
    third = await store.requests.open(heir, ask(heir, line=1, ask_index=2))
    assert len({request.id, other.id, third.id}) == 3
    assert other.state is third.state is RequestState.OPEN


async def test_sibling_lines_of_one_attempt_ask_for_themselves(
    store: SqlStore, tmp_path: Path
) -> None:
    own = await owned(store, tmp_path)
    first = await store.requests.open(own, ask(own, line=1))
    second = await store.requests.open(own, ask(own, line=2))
    assert first.id != second.id
    assert (await store.requests.open(own, ask(own, line=2))).id == second.id


async def test_the_next_term_of_one_attempt_gets_the_answer_again(
    store: SqlStore, tmp_path: Path
) -> None:
    own = await owned(store, tmp_path)
    request = await store.requests.open(own, ask(own, deadline=100))
    await store.requests.save_draft(request.id, "half a sent\0ence")
    await store.rollouts.release(own)
    heir = await store.rollouts.claim(own.engine, own.rollout)
    again = await store.requests.open(heir, ask(heir, deadline=100))
    assert (again.id, again.deadline_at) == (request.id, request.deadline_at)
    assert again.draft == "half a sent\ufffdence"


async def test_withdrawing_closes_one_line_or_all(store: SqlStore, tmp_path: Path) -> None:
    own = await owned(store, tmp_path)
    first = await store.requests.open(own, ask(own, line=1))
    second = await store.requests.open(own, ask(own, line=2))
    assert await store.requests.withdraw(own, line=1) == 1
    assert await store.requests.withdraw(own) == 1
    for request in (first, second):
        with pytest.raises(Conflict, match="withdrawn"):
            await store.requests.answer(request.id, {}, actor="a", via="cli", idem_key="k")
        with pytest.raises(Conflict, match="withdrawn"):
            await store.requests.save_draft(request.id, "x")
    assert (await store.requests.wait(first.id)).state is RequestState.WITHDRAWN
    reopened = await store.requests.open(own, ask(own, line=1))
    assert (reopened.id, reopened.state) == (first.id, RequestState.OPEN)


async def test_only_the_owner_opens_delivers_and_withdraws(
    store: SqlStore, tmp_path: Path, clock: Clock
) -> None:
    own = await owned(store, tmp_path)
    request = await store.requests.open(own, ask(own))
    clock.now += 60
    await store.rollouts.claim(await store.engines.register(), own.rollout)
    with pytest.raises(Fenced):
        await store.requests.open(own, ask(own, ask_index=2))
    with pytest.raises(Fenced):
        await store.requests.withdraw(own)
    with pytest.raises(Fenced):
        await store.requests.deliver(own, request.id)
    assert (await store.requests.get("last")).id == request.id
    with pytest.raises(NotFound):
        await store.requests.get("nothing")


async def test_delivery_comes_after_what_the_owner_had_queued(
    store: SqlStore, tmp_path: Path
) -> None:
    own = await owned(store, tmp_path)
    recorder = store.log.recorder(own)
    request = await store.requests.open(own, ask(own))
    await store.requests.answer(request.id, YES, actor="a", via="cli", idem_key="k")
    await recorder.put(said("queued before"))
    await store.requests.deliver(own, request.id, said("answered"))
    with pytest.raises(Conflict):
        await store.requests.deliver(own, request.id, said("again"))
    await recorder.commit(said("after"))
    texts = [event.payload["text"] for event in await store.log.read(own.rollout)]
    assert texts == ["queued before", "answered", "after"]
