"""The Python face of BenchFlow Workbench: ``import benchflow_workbench as bf``.

Importing it loads nothing but this file and the version: every public name is
fetched on first use, so ``bench --help`` and a user's ``import`` stay light.

In a checkout the folders ``app``, ``core``, ``tui`` and ``web`` lie beside this
file and are claimed here, before anybody else's package of such a name. In an
installed copy this file is the package itself and claims nothing.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # Importing typing for it would cost more than the rest of this file.


def _claim_folders() -> None:
    """Put our folder first on the path; raises ImportError where a stranger's package is loaded."""
    here = os.path.dirname(os.path.abspath(__file__))
    for name in ("app", "core", "tui", "web"):
        if name not in sys.modules:
            continue
        place = getattr(sys.modules[name], "__file__", None) or ""
        if os.path.realpath(os.path.dirname(place)) != os.path.realpath(os.path.join(here, name)):
            raise ImportError(
                f"a module named {name!r} is already imported from {place or 'somewhere else'}, so"
                f" the one in {here} cannot be. Import benchflow_workbench before it, or install"
                " this checkout with `pip install .`: an installed copy takes no such name."
            )
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)


if not __package__:
    _claim_folders()

from core import __name__ as _CORE  # noqa: E402
from core import __version__  # noqa: E402

if TYPE_CHECKING:
    from core.contracts import errors
    from core.contracts.agent import (
        Agent,
        AgentCapabilities,
        AgentExit,
        Answer,
        AskField,
        AskSource,
        AskUser,
        AskUserHandler,
        Holdable,
        MessageText,
        Noise,
        Option,
        OtherUpdate,
        PermissionAsked,
        PermissionDecision,
        PermissionHandler,
        Role,
        Session,
        SessionSnapshot,
        SessionUpdate,
        ThoughtText,
        ToolUpdate,
        UsageUpdate,
    )
    from core.contracts.environment import (
        Check,
        EnvContext,
        EnvHandle,
        Environment,
        EnvState,
        FileState,
        ReadinessProbe,
        StateSnapshot,
        TableState,
    )
    from core.contracts.reward import (
        Granularity,
        Reward,
        RewardEvent,
        RolloutNode,
        Space,
        ToolCall,
        VerifyResult,
    )
    from core.contracts.sandbox import (
        Attached,
        Captured,
        Compartment,
        Endpoint,
        ExecResult,
        Limits,
        Mount,
        Process,
        Relay,
        RelayHandler,
        Sandbox,
        SandboxCapabilities,
        SandboxImage,
        SandboxProvider,
        SandboxSpec,
        Terminals,
    )
    from core.contracts.user import (
        AskContext,
        Nudge,
        TurnEnd,
        UserModel,
        choose,
        default_answer,
    )
    from core.contracts.values import (
        Fidelity,
        JsonObject,
        JsonValue,
        Outcome,
        Phase,
        StopReason,
    )
    from core.services.config import RolloutConfig
    from core.services.jobs import JobReport, RolloutReport

_HOMES = {
    ".contracts.agent": """
        Agent AgentCapabilities AgentExit Answer AskField AskSource AskUser AskUserHandler
        Holdable MessageText Noise Option OtherUpdate PermissionAsked PermissionDecision
        PermissionHandler Role Session SessionSnapshot SessionUpdate ThoughtText ToolUpdate
        UsageUpdate""",
    ".contracts.environment": """
        Check EnvContext EnvHandle EnvState Environment FileState ReadinessProbe StateSnapshot
        TableState""",
    ".contracts.reward": """
        Granularity Reward RewardEvent RolloutNode Space ToolCall VerifyResult""",
    ".contracts.sandbox": """
        Attached Captured Compartment Endpoint ExecResult Limits Mount Process Relay RelayHandler
        Sandbox SandboxCapabilities SandboxImage SandboxProvider SandboxSpec Terminals""",
    ".contracts.user": """
        AskContext Nudge TurnEnd UserModel choose default_answer""",
    ".contracts.values": """
        Fidelity JsonObject JsonValue Outcome Phase StopReason""",
    ".services.config": "RolloutConfig",
    ".services.jobs": "JobReport RolloutReport",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Agent",
    "AgentCapabilities",
    "AgentExit",
    "Answer",
    "AskContext",
    "AskField",
    "AskSource",
    "AskUser",
    "AskUserHandler",
    "Attached",
    "Captured",
    "Check",
    "Compartment",
    "Endpoint",
    "EnvContext",
    "EnvHandle",
    "EnvState",
    "Environment",
    "ExecResult",
    "Fidelity",
    "FileState",
    "Granularity",
    "Holdable",
    "JobReport",
    "JsonObject",
    "JsonValue",
    "Limits",
    "MessageText",
    "Mount",
    "Noise",
    "Nudge",
    "Option",
    "OtherUpdate",
    "Outcome",
    "PermissionAsked",
    "PermissionDecision",
    "PermissionHandler",
    "Phase",
    "Process",
    "ReadinessProbe",
    "Relay",
    "RelayHandler",
    "Reward",
    "RewardEvent",
    "Role",
    "RolloutConfig",
    "RolloutNode",
    "RolloutReport",
    "Sandbox",
    "SandboxCapabilities",
    "SandboxImage",
    "SandboxProvider",
    "SandboxSpec",
    "Session",
    "SessionSnapshot",
    "SessionUpdate",
    "Space",
    "StateSnapshot",
    "StopReason",
    "TableState",
    "Terminals",
    "ThoughtText",
    "ToolCall",
    "ToolUpdate",
    "TurnEnd",
    "UsageUpdate",
    "UserModel",
    "VerifyResult",
    "__version__",
    "choose",
    "default_answer",
    "errors",
    "main",
    "run",
]


if not TYPE_CHECKING:  # A checker that saw it would accept every misspelt name.

    def __getattr__(name: str) -> object:
        if name in _HOME or name == "errors":
            from importlib import import_module

            module = import_module(_HOME.get(name, ".contracts.errors"), _CORE)
            value = module if name == "errors" else getattr(module, name)
            globals()[name] = value
            return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


async def run(config: RolloutConfig) -> JobReport:
    """Run one task, or every task of a folder, to its end; as ``bench run``, without its output.

    Settings come from the environment, as for the command. A rollout that fails
    is in the report with its outcome; raised is only what kept the job from
    starting: UsageError, TaskError, SandboxUnavailable, StoreError.
    """
    from app.settings import read_settings
    from app.wiring import open_tools
    from core.services.engine import engine
    from core.services.jobs import plan, run_job

    async with open_tools(read_settings()) as tools, engine(tools) as host:
        return await run_job(host, plan(tools, config))


def main() -> None:
    """Run the ``bench`` command; never returns."""
    from app.cli import main as run_command_line

    run_command_line()
    sys.exit(0)


if __name__ == "__main__":
    # Run by -m this file is called __main__; under its own name it must not load a second time.
    sys.modules.setdefault("benchflow_workbench", sys.modules["__main__"])
    main()
