"""The error tree: every failure this product raises on purpose.

    BenchFlowError
    ├── UsageError            a person gave an argument we cannot use
    ├── ConfigError           a setting or a rollout configuration is wrong
    ├── TaskError             a task package or manifest is wrong; carries all its faults
    ├── SandboxError          where it runs
    │   ├── SandboxUnavailable   this machine cannot give what was asked
    │   ├── SandboxLost          the sandbox died under us (infrastructure)
    │   ├── ExecTimeout          a command outlived its deadline and was killed
    │   └── SnapshotError        a capture or a restore could not be proven whole
    ├── AgentError            who acts
    │   ├── AgentNotFound        no such agent, or its command is not on this machine
    │   ├── AgentCrashed         the agent process ended before its turn did
    │   ├── AgentProtocolError   the agent broke the protocol beyond repair
    │   └── AgentTimeout         the agent used up its time
    ├── EnvironmentFailed     the world
    │   ├── NotReady             a service never became healthy
    │   ├── ServiceDied          a service ended while it was needed
    │   └── StateError           state could not be read, captured or put back
    ├── VerifierError         how it is scored
    │   ├── VerifierTimeout
    │   ├── VerifierCrashed
    │   ├── RewardMissing        the verifier wrote no reward
    │   └── RewardInvalid        it wrote something that is not a reward
    ├── CheckpointError       the layers of one node do not agree
    └── StoreError            what is kept
        ├── NotFound
        ├── Fenced               another owner took this rollout over; stop writing
        ├── Conflict             somebody else did it first
        ├── OwnerSilent          the owning process lives but does not answer
        ├── StoreBusy            the database stayed locked past the deadline
        ├── StoreFull            no space left
        └── BundleCorrupt        a sealed file does not match its hash

Each error says what happened, where, and what to do. ``infrastructure`` errors
are nobody's result: they may be retried and never count as an outcome.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong in a file a person wrote."""

    file: str
    """Path as the person would type it."""
    key: str
    """Dotted key inside the file, or "" for the file itself."""
    line: int | None
    """1-based line, None when the file has no such line (a missing key or file)."""
    problem: str
    remedy: str

    def __str__(self) -> str:
        where = self.file + (f":{self.line}" if self.line else "")
        key = f" [{self.key}]" if self.key else ""
        return f"{where}{key}: {self.problem}. {self.remedy}"


class BenchFlowError(Exception):
    """Base of every deliberate failure.

    ``category`` is the machine-readable kind written to ``result.json``;
    ``infrastructure`` says that another try could end differently and that
    nothing about the agent or the task was learnt.
    """

    category: str = "internal"
    infrastructure: bool = False

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        super().__init__(what, where, remedy)
        self.what = what
        self.where = where
        self.remedy = remedy

    def __str__(self) -> str:
        text = self.what.rstrip(".")
        if self.where:
            text += f" ({self.where})"
        text += "."
        if self.remedy:
            text += f" {self.remedy.rstrip('.')}."
        return text


class UsageError(BenchFlowError):
    category = "usage"


class ConfigError(BenchFlowError):
    category = "config"


class TaskError(BenchFlowError):
    """A task package cannot be used; ``faults`` lists everything found at once."""

    category = "task"

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        remedy: str = "",
        faults: Sequence[Fault] = (),
    ) -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.faults = tuple(faults)

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"  {fault}" for fault in self.faults)])


class SandboxError(BenchFlowError):
    category = "sandbox"


class SandboxUnavailable(SandboxError):
    category = "sandbox_unavailable"


class SandboxLost(SandboxError):
    category = "sandbox_lost"
    infrastructure = True


class ExecTimeout(SandboxError):
    category = "exec_timeout"


class SnapshotError(SandboxError):
    category = "snapshot"
    infrastructure = True


class AgentError(BenchFlowError):
    category = "agent"


class AgentNotFound(AgentError):
    category = "agent_not_found"


class AgentCrashed(AgentError):
    category = "agent_crashed"


class AgentProtocolError(AgentError):
    category = "agent_protocol"


class AgentTimeout(AgentError):
    category = "agent_timeout"


class EnvironmentFailed(BenchFlowError):
    category = "environment"


class NotReady(EnvironmentFailed):
    category = "not_ready"


class ServiceDied(EnvironmentFailed):
    category = "service_died"


class StateError(EnvironmentFailed):
    category = "state"


class VerifierError(BenchFlowError):
    """``logs`` is what the verifier printed and wrote before it failed, bounded."""

    category = "verifier"
    logs: Mapping[str, str] = MappingProxyType({})


class VerifierTimeout(VerifierError):
    category = "verifier_timeout"


class VerifierCrashed(VerifierError):
    category = "verifier_crashed"


class RewardMissing(VerifierError):
    category = "reward_missing"


class RewardInvalid(VerifierError):
    category = "reward_invalid"


class CheckpointError(BenchFlowError):
    category = "checkpoint"


class StoreError(BenchFlowError):
    category = "store"


class NotFound(StoreError):
    category = "not_found"


class Fenced(StoreError):
    category = "fenced"
    infrastructure = True


class Conflict(StoreError):
    category = "conflict"


class OwnerSilent(StoreError):
    category = "owner_silent"


class StoreBusy(StoreError):
    category = "store_busy"
    infrastructure = True


class StoreFull(StoreError):
    category = "store_full"
    infrastructure = True


class BundleCorrupt(StoreError):
    category = "bundle_corrupt"
