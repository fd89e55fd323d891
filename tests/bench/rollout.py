"""Print what a rollout costs: run as ``python -m tests.bench.rollout`` (root).

Cold: CPU of ``bench run examples/hello --agent nop`` from a shell, its children
included, beside ``python -c pass``. Warm: CPU and wall of each further rollout in
one running engine, where its wall time goes, and the engine's memory.
"""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from app.settings import Settings
from app.wiring import open_tools
from core.services.assemble import load_tree
from core.services.config import RolloutConfig
from core.services.engine import Engine, engine
from core.services.jobs import JobReport, plan, run_job

ROOT = Path(__file__).resolve().parents[2]
HELLO = str(ROOT / "examples" / "hello")
COLD, WARM = 5, 20


def children_cpu(command: Sequence[str], env: dict[str, str]) -> float:
    """CPU seconds of a command and of all it waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def own_cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(item.ru_utime + item.ru_stime for item in used)


def resident_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def cold(folder: Path) -> None:
    kept = {key: os.environ[key] for key in os.environ if key != "PYTHONDONTWRITEBYTECODE"}
    env = {**kept, "BENCH_HOME": str(folder / "home"), "BENCH_JOBS_DIR": str(folder / "jobs")}
    bench = [sys.executable, "-m", "benchflow_workbench", "run", HELLO, "--agent", "nop", "--json"]
    children_cpu(bench, env)  # Compiles, makes the store.
    floor = [children_cpu([sys.executable, "-c", "pass"], env) for _ in range(COLD)]
    runs = [children_cpu(bench, env) for _ in range(COLD)]
    print(f"python -c pass                     CPU {statistics.median(floor):6.3f} s")
    print(f"bench run hello --agent nop, cold  CPU {statistics.median(runs):6.3f} s")


async def one(host: Engine, folder: Path) -> tuple[JobReport, float, float]:
    config = RolloutConfig(path=HELLO, agent="nop", jobs_dir=str(folder / "jobs"))
    cpu, wall = own_cpu(), time.perf_counter()
    report = await run_job(host, plan(host.tools, config))
    return report, own_cpu() - cpu, time.perf_counter() - wall


async def warm(folder: Path) -> None:
    settings = Settings(folder / "home", None, str(folder / "jobs"), "bench")
    async with open_tools(settings) as tools, engine(tools) as host:
        await one(host, folder)
        costs: list[tuple[float, float]] = []
        phases: dict[str, list[float]] = {}
        for _ in range(WARM):
            report, cpu, wall = await one(host, folder)
            costs.append((cpu, wall))
            tree = await load_tree(tools, report.rollouts[0].id)
            line = tree.main_line
            for item in [*tree.phases, *(line.phases if line else [])]:
                phases.setdefault(item.phase, []).append(item.seconds)
        cpus, walls = zip(*costs, strict=True)
        print(f"each further rollout               CPU {statistics.median(cpus):6.3f} s")
        print(f"each further rollout              wall {statistics.median(walls):6.3f} s")
        for phase, seconds in phases.items():
            print(f"    {phase:30} {statistics.median(seconds) * 1e3:6.1f} ms")
        print(f"engine memory after {WARM + 1} rollouts      {resident_mb():6.0f} MB")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        cold(Path(name))
        asyncio.run(warm(Path(name)))


if __name__ == "__main__":
    main()
