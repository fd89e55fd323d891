"""Checkpoint: all layers of one node, captured under one barrier.

Order: fence, drain, epoch, session, environment flush, sandbox capture under
its freezer, then one record. A checkpoint exists only once its ``checkpointed``
event is in the log; whatever fails before leaves the world as it was, thawed
and unfenced. What could not be drained makes it ``crash-consistent`` instead of
``quiesced``; what could not be captured is named on it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias, cast

from core.contracts.agent import Session, SessionSnapshot
from core.contracts.environment import StateSnapshot
from core.contracts.errors import BenchFlowError, CheckpointError
from core.contracts.sandbox import (
    Captured,
    Compartment,
    Limits,
    Mount,
    SandboxImage,
    SandboxSpec,
)
from core.contracts.values import Fidelity, JsonObject, JsonValue
from core.kernel.clock import Stopwatch
from core.kernel.world import World

Consistency: TypeAlias = Literal["quiesced", "crash-consistent"]

DRAIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The consistent set of layers at one node."""

    id: str
    node: str
    epoch: int
    consistency: Consistency
    image: SandboxImage
    state: StateSnapshot | None
    session: SessionSnapshot | None
    """None at the root, after the agent's end, or where this agent cannot give it."""
    not_captured: tuple[str, ...]
    seconds: float
    frozen_seconds: float

    @property
    def fidelity(self) -> Fidelity:
        """The best a child forked from here can have."""
        return self.session.fidelity if self.session else Fidelity.NONE


async def capture(
    world: World, session: Session | None, *, node: str, epoch: int, busy: str = ""
) -> Checkpoint:
    """Capture a live world whose agent is at rest or waits for an answer.

    ``busy`` names work that is known to go on beside the agent's question.
    Raises SnapshotError, StateError or CheckpointError; the world goes on then.
    """
    watch = Stopwatch()
    relay = world.sandbox.relay
    relay.fence()
    try:
        drained = await relay.drain(DRAIN_SECONDS)
        frozen, missing = await _session(session)
        state = await world.environment.flush(epoch) if world.environment else None
        with watch.part("capture"):
            image = await world.sandbox.snapshot()
    finally:
        relay.lift()
    if state is not None:
        missing.extend(state.not_captured)
        same_epoch(state, epoch)
    return Checkpoint(
        id=image.id,
        node=node,
        epoch=epoch,
        consistency="quiesced" if drained and not busy else "crash-consistent",
        image=image,
        state=state,
        session=frozen,
        not_captured=tuple(missing + ([busy] if busy else [])),
        seconds=round(watch.seconds, 4),
        frozen_seconds=round(watch.parts.get("capture", 0.0), 4),
    )


async def capture_retired(world: World, *, node: str, epoch: int, watch: Stopwatch) -> Checkpoint:
    """Capture a world whose agent has ended: nothing is copied, the world is given up.

    ``watch`` gets the parts: drain, flush, stop_services, capture.
    """
    state: StateSnapshot | None = None
    with watch.part("drain"):
        world.sandbox.relay.fence()
        drained = await world.sandbox.relay.drain(DRAIN_SECONDS)
    if world.environment is not None:
        with watch.part("flush"):
            state = await world.environment.flush(epoch)
    with watch.part("stop_services"):
        await world.stop_services()
    with watch.part("capture"):
        image = await world.sandbox.snapshot(retire=True)
    return Checkpoint(
        id=image.id,
        node=node,
        epoch=epoch,
        consistency="quiesced" if drained else "crash-consistent",
        image=image,
        state=state,
        session=None,
        not_captured=state.not_captured if state else (),
        seconds=round(watch.seconds, 4),
        frozen_seconds=0.0,
    )


async def _session(session: Session | None) -> tuple[SessionSnapshot | None, list[str]]:
    if session is None:
        return None, []
    try:
        async with asyncio.timeout(DRAIN_SECONDS * 5):
            return await session.snapshot(), []
    except TimeoutError:
        return None, ["the agent's session: it did not answer in time"]
    except BenchFlowError as error:
        return None, [f"the agent's session: {error.what}"]


def same_epoch(state: StateSnapshot, epoch: int) -> None:
    """Raises CheckpointError when environment and sandbox are of different barriers."""
    if state.epoch != epoch:
        raise CheckpointError(
            f"the environment is of epoch {state.epoch}, the sandbox of epoch {epoch}",
            remedy="This checkpoint is refused; take another one",
        )


# -- the record in the log -----------------------------------------------------


def to_json(checkpoint: Checkpoint) -> JsonObject:
    """The record of the ``checkpointed`` event, which is exported: values of the
    sandbox's variables may be secrets and are left out. A fork gets its world plan's."""
    spec = replace(checkpoint.image.spec, env={})
    bare = replace(checkpoint, image=replace(checkpoint.image, spec=spec))
    return cast(JsonObject, _plain(bare))


def from_json(record: JsonObject) -> Checkpoint:
    """Raises CheckpointError when the record is not one of ours."""
    try:
        return _checkpoint(record)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"a checkpoint's record cannot be read: {error!r}",
            remedy="Branch from another node",
        ) from error


def _plain(value: object) -> JsonValue:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, frozenset | set):
        return cast("list[JsonValue]", sorted(str(item) for item in value))
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return cast(JsonValue, value)


def _checkpoint(record: JsonObject) -> Checkpoint:
    state, session = record.get("state"), record.get("session")
    consistency = cast(Consistency, str(record["consistency"]))
    return Checkpoint(
        id=str(record["id"]),
        node=str(record["node"]),
        epoch=_number(record["epoch"]),
        consistency=consistency,
        image=_image(_object(record["image"])),
        state=_state(_object(state)) if state is not None else None,
        session=_session_snapshot(_object(session)) if session is not None else None,
        not_captured=_texts(record["not_captured"]),
        seconds=_float(record["seconds"]),
        frozen_seconds=_float(record["frozen_seconds"]),
    )


def _image(data: JsonObject) -> SandboxImage:
    parent = data.get("parent")
    return SandboxImage(
        id=str(data["id"]),
        provider=str(data["provider"]),
        parent=None if parent is None else str(parent),
        rung=str(data["rung"]),
        layers=_texts(data["layers"]),
        new_bytes=_number(data["new_bytes"]),
        seconds=_float(data["seconds"]),
        captured=frozenset(Captured(item) for item in _texts(data["captured"])),
        spec=_spec(_object(data["spec"])),
    )


def _spec(data: JsonObject) -> SandboxSpec:
    limits = _object(data["limits"])
    return SandboxSpec(
        name=str(data["name"]),
        workdir=str(data["workdir"]),
        home=str(data["home"]),
        mounts=tuple(_mount(_object(item)) for item in _list(data["mounts"])),
        env=_strings(data["env"]),
        limits=Limits(
            processes=_number(limits["processes"]),
            memory_mb=_number(limits["memory_mb"]),
            cpus=_float(limits["cpus"]),
            output_bytes=_number(limits["output_bytes"]),
            file_mb=_number(limits["file_mb"]),
        ),
        labels=_strings(data["labels"]),
    )


def _mount(data: JsonObject) -> Mount:
    source, seed = data.get("source"), data.get("seed")
    return Mount(
        target=str(data["target"]),
        source=None if source is None else Path(str(source)),
        seen_by=frozenset(cast(Compartment, item) for item in _texts(data["seen_by"])),
        seed=None if seed is None else Path(str(seed)),
        owner=cast(Compartment, str(data["owner"])),
    )


def _state(data: JsonObject) -> StateSnapshot:
    return StateSnapshot(
        id=str(data["id"]),
        kind=str(data["kind"]),
        in_layer=bool(data["in_layer"]),
        digest=str(data["digest"]),
        epoch=_number(data["epoch"]),
        payload=_object(data["payload"]),
        not_captured=_texts(data["not_captured"]),
    )


def _session_snapshot(data: JsonObject) -> SessionSnapshot:
    return SessionSnapshot(
        agent=str(data["agent"]),
        fidelity=Fidelity(str(data["fidelity"])),
        state=_object(data["state"]),
        pending_ask=bool(data["pending_ask"]),
        steps=_number(data["steps"]),
    )


def _object(value: JsonValue) -> JsonObject:
    if not isinstance(value, dict):
        raise TypeError(f"not an object: {value!r}")
    return value


def _list(value: JsonValue) -> list[JsonValue]:
    if not isinstance(value, list):
        raise TypeError(f"not a list: {value!r}")
    return value


def _texts(value: JsonValue) -> tuple[str, ...]:
    return tuple(str(item) for item in _list(value))


def _strings(value: JsonValue) -> dict[str, str]:
    return {key: str(item) for key, item in _object(value).items()}


def _number(value: JsonValue) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"not a whole number: {value!r}")
    return value


def _float(value: JsonValue) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"not a number: {value!r}")
    return float(value)
