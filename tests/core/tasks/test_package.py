"""A package to a Task: what is read, what is kept, where each fault is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from core.contracts.errors import TaskError
from core.tasks.check import check_task, find_packages
from core.tasks.models import AskingSpec, ScriptedAnswer, Task
from core.tasks.package import folder_word, load_task, unused_keys
from tests.core.tasks.packages import faults, only, package

WHOLE = """\
schema_version: "1.3"
task:
  name: desk/refund
  version: 2
  description: A damaged kettle.
  authors: [{name: Ann, email: ann@example.com}]
  keywords: [support, asking]
metadata:
  difficulty: easy
agent:
  timeout_sec: 120
  prompt_prefix: You work at a support desk.
verifier:
  script: verifier/check.sh
  timeout_sec: 30
  env:
    STRICT: yes
  reward_range: [-1, 1]
  sandbox_mode: shared
sandbox:
  docker_image: example/desk:1
  cpus: 2
  memory: 1G
  workdir: /desk
  allow_internet: true
  setup_commands:
    - mkdir -p /desk/out
    - command: touch /desk/ready
      timeout_sec: 5
oracle:
  env: {SPEED: fast}
  timeout_sec: 20
artifacts:
  - out/report.md
  - source: /logs/artifacts
    exclude: ["*.tmp"]
agents:
  roles:
    clerk: {agent: some-agent, capabilities: [tool-use]}
scenes:
  - name: intake
    turns: [{role: clerk}]
user:
  model: scripted
  stop_rule: satisfied-or-3-rounds
  persona: An impatient customer.
  private_facts:
    order_id: 1042
    vip: no
  answers:
    - when: refund or replace
      answer: replace
  nudges: ["Look again."]
benchflow:
  asking: {expected: required, weight: 0.25}
  nudges: {nudge_budget: 3}
"""


def load(folder: Path, front: str = WHOLE, body: str = "Settle it.") -> Task:
    files: dict[str, str | bytes] = {
        "verifier/check.sh": "exit 0\n",
        "oracle/solve.sh": "true\n",
    }
    return load_task(package(folder, front, body, files=files))


def test_every_section_is_read(tmp_path: Path) -> None:
    task = load(tmp_path)
    assert (task.name, task.version, task.keywords) == (
        "desk/refund", "2", ("support", "asking"),
    )  # fmt: skip
    assert task.instruction == "Settle it."
    assert task.agent.timeout_sec == 120.0
    assert task.agent.prompt_prefix == "You work at a support desk."
    assert task.verifier.script == "verifier/check.sh"
    assert task.verifier.reward_range == (-1.0, 1.0)
    assert task.verifier.sandbox_mode == "shared"
    assert task.sandbox.workdir == "/desk"
    assert (task.sandbox.cpus, task.sandbox.memory_mb) == (2.0, 1024)
    assert task.sandbox.network_mode == "public"
    assert task.sandbox.setup_commands == ("mkdir -p /desk/out", "touch /desk/ready")
    assert (task.oracle, task.oracle_timeout_sec) == ("oracle/solve.sh", 20.0)
    assert task.artifacts == ("out/report.md", "/logs/artifacts")
    assert task.asking == AskingSpec("required", 0.25)
    assert task.user.answers == (ScriptedAnswer("refund or replace", "replace"),)
    assert task.user.nudges == ("Look again.",)


def test_plain_values_are_text_as_the_author_typed_them(tmp_path: Path) -> None:
    task = load(tmp_path)
    assert task.user.private_facts == {"order_id": "1042", "vip": "no"}
    assert task.verifier.env == {"STRICT": "yes"}


def test_what_is_read_but_not_acted_on_is_kept_and_can_be_named(tmp_path: Path) -> None:
    task = load(tmp_path)
    assert task.extra["scenes"] == [{"name": "intake", "turns": [{"role": "clerk"}]}]
    assert set(unused_keys(task)) == {
        "task.authors",
        "sandbox.setup_commands",
        "artifacts",
        "agents.roles",
        "scenes",
        "user.stop_rule",
        "benchflow.nudges",
    }
    json.dumps(task.extra, allow_nan=False)


def test_a_package_with_nothing_but_the_needed_has_the_defaults(tmp_path: Path) -> None:
    task = load_task(package(tmp_path, front="{}\n", body="Say hello."))
    assert task.name == "refund"
    assert task.oracle is None
    assert task.manifest is None
    assert task.verifier.script == "verifier/test.sh"
    assert (task.sandbox.workdir, task.sandbox.network_mode) == ("/workspace", "no-network")
    assert (task.extra, unused_keys(task)) == ({}, ())


def test_the_task_file_itself_names_the_package(tmp_path: Path) -> None:
    root = package(tmp_path)
    assert load_task(root / "task.md") == load_task(root)


def test_the_older_spellings_and_shorthands_are_read(tmp_path: Path) -> None:
    front = """\
        version: 1.0
        name: desk/short
        image: example/desk:2
        verifier: verifier/
        solution: oracle/
    """
    task = load(tmp_path, front)
    assert (task.name, task.sandbox.docker_image) == ("desk/short", "example/desk:2")
    assert task.verifier.script == "verifier/test.sh"
    assert task.oracle == "oracle/solve.sh"


def test_reserved_headings_give_prompts_to_roles_scenes_and_persona(tmp_path: Path) -> None:
    body = """\
        # A title that is no prompt

        ## Prompt
        Settle it.
        ### A heading of the prompt
        \\## prompt
        ## role:clerk
        Be kind.
        ## scene:intake
        Listen.
        ## user-persona
        You are in a hurry.
    """
    task = load(tmp_path, body=body)
    assert task.instruction == "Settle it.\n### A heading of the prompt\n## prompt"
    assert task.user.persona == "You are in a hurry."
    assert task.extra["prompts"] == {
        "roles": {"clerk": "Be kind."},
        "scenes": {"intake": "Listen."},
    }


def test_a_body_without_reserved_headings_is_the_prompt(tmp_path: Path) -> None:
    body = "## Background\n\nA desk.\n\n```\n## prompt\n```\n"
    assert load(tmp_path, body=body).instruction == body.strip()


def test_side_files_win_over_headings(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "prompts/user-persona.md": "From the file.",
        "prompts/role.clerk.md": "Also from a file.",
        "prompts/notes.txt": "\xff not read",
    }
    root = package(tmp_path, body="Do it.\n## user-persona\nFrom the body.", files=files)
    task = load_task(root)
    assert task.user.persona == "From the file."
    assert task.extra["prompts"] == {"roles": {"clerk": "Also from a file."}}


def test_a_damaged_side_file_is_named(tmp_path: Path) -> None:
    found = only(faults(tmp_path, files={"prompts/role.clerk.md": b"\xff\xfe"}))
    assert found.file.endswith("refund/prompts/role.clerk.md")
    assert "UTF-8" in found.problem


def test_a_section_given_twice_is_a_fault(tmp_path: Path) -> None:
    found = only(faults(tmp_path, body="## prompt\nA\n## Prompt\nB"))
    assert (found.key, found.line) == ("## prompt", 9)


def test_all_faults_of_both_files_come_at_once(tmp_path: Path) -> None:
    front = """\
        task: {name: "bad name!"}
        agnet: {timeout_sec: 3}
        agent: {timeout_sec: soon}
        benchflow: {asking: {expected: always, weight: 2}}
    """
    manifest = """\
        [environment]
        name = "desk"
        [environment.state]
        kind = "sqlite"
        paths = ["data.db"]
    """
    found = faults(tmp_path, front, body="", manifest=manifest, script=False)
    where = {(Path(item.file).name, item.key, item.line) for item in found}
    assert where == {
        ("task.md", "task.name", 2),
        ("task.md", "agnet", 3),
        ("task.md", "agent.timeout_sec", 4),
        ("task.md", "benchflow.asking.expected", 5),
        ("task.md", "benchflow.asking.weight", 5),
        ("task.md", "", 7),
        ("task.md", "verifier.script", None),
        ("environment.toml", "environment.state.paths[0]", 5),
        ("environment.toml", "environment", 1),
    }
    assert all(item.problem and item.remedy for item in found)


def test_loading_raises_the_same_list_that_checking_gives(tmp_path: Path) -> None:
    root = package(tmp_path, front="agnet: 1\nverfier: 2\n", body="")
    with pytest.raises(TaskError) as raised:
        load_task(root)
    assert list(raised.value.faults) == check_task(root)
    assert len(raised.value.faults) == 3
    assert str(root) in str(raised.value)


@pytest.mark.parametrize(
    ("front", "key", "line", "says"),
    [
        ("agnet: {}\n", "agnet", 2, "Did you mean 'agent'?"),
        ("agent:\n  timeout: 3\n", "agent.timeout", 3, "timeout_sec"),
        ("zzz: 1\n", "zzz", 2, "Known keys"),
        ("agent: [1]\n", "agent", 2, "must be a mapping, not a list"),
        ("agent:\n  timeout_sec: 0\n", "agent.timeout_sec", 3, "above 0"),
        ("agent:\n  timeout_sec: true\n", "agent.timeout_sec", 3, "not true or false"),
        ("agent:\n  network_mode: pubic\n", "agent.network_mode", 3, "'public'"),
        ("environment: {cpus: 1}\n", "environment", 2, "'sandbox'"),
        ("sandbox: {workdir: work}\n", "sandbox.workdir", 2, "absolute path"),
        ("sandbox: {workdir: /a/../b}\n", "sandbox.workdir", 2, "absolute path"),
        ("sandbox: {workdir: /logs/x}\n", "sandbox.workdir", 2, "/workspace"),
        ("sandbox: {memory_mb: 1.5}\n", "sandbox.memory_mb", 2, "whole number"),
        ("sandbox: {memory: lots}\n", "sandbox.memory", 2, "2G"),
        ("sandbox: {image: a, docker_image: b}\n", "sandbox.image", 2, "Keep only"),
        ("verifier: {type: llm-judge}\n", "verifier.type", 2, "test-script"),
        ("verifier: {reward_range: [1, 0]}\n", "verifier.reward_range", 2, "lower one first"),
        ("verifier: {reward_range: [0, .inf]}\n", "", 2, "not finite"),
        ("verifier: {script: /etc/x.sh}\n", "verifier.script", 2, "inside the package"),
        ("verifier: {script: ../x.sh}\n", "verifier.script", 2, "inside the package"),
        ("verifier: {script: score.sh}\n", "verifier.script", 2, "folder"),
        ("verifier: {script: environment/x.sh}\n", "verifier.script", 2, "world"),
        ("verifier: {script: verifier/gone.sh}\n", "verifier.script", 2, "does not exist"),
        ("oracle: {script: oracle/gone.sh}\n", "oracle.script", 2, "does not exist"),
        ("benchflow: {asking: {weight: 0.5}}\n", "benchflow.asking.weight", 2, "optional"),
        ("benchflow: {environment: {manifest: gone.toml}}\n",
         "benchflow.environment.manifest", 2, "does not exist"),
        ("benchflow: {environment: {manifest: ../../x.toml}}\n",
         "benchflow.environment.manifest", 2, "out of the benchmark"),
        ("benchflow: {environment: {manifest: /etc/passwd}}\n",
         "benchflow.environment.manifest", 2, "relative path"),
        ("user:\n  answers:\n  - {when: order}\n", "user.answers[0].answer", 4, "missing"),
        ("user:\n  answers:\n  - {when: order, answer: a}\n  - {when: ORDER id, answer: b}\n",
         "user.answers[1].when", 5, "never be reached"),
        ("agents: {roles: {clerk: {}}}\nscenes: [{name: a, turns: [{role: clark}]}]\n",
         "scenes[0].turns[0].role", 3, "'clerk'"),
        ("steps: [{min_reward: 1}]\n", "steps[0].name", 2, "missing"),
    ],
)  # fmt: skip
def test_a_fault_names_its_key_its_line_and_what_to_do(
    tmp_path: Path, front: str, key: str, line: int, says: str
) -> None:
    found = only(faults(tmp_path, front))
    assert (found.key, found.line) == (key, line)
    assert says in str(found)


def test_an_answer_before_a_longer_one_that_does_not_hold_it_is_fine(tmp_path: Path) -> None:
    front = """\
        user:
          answers:
          - {when: order id, answer: a}
          - {when: order, answer: b}
    """
    assert faults(tmp_path, front) == []


@pytest.mark.parametrize("body", ["", "  \n\n", "## role:clerk\nBe kind.\n", "## prompt\n \n"])
def test_a_task_without_an_instruction_is_a_fault(tmp_path: Path, body: str) -> None:
    assert "no instruction" in only(faults(tmp_path, body=body)).problem


def test_a_script_need_not_be_executable(tmp_path: Path) -> None:
    root = package(tmp_path)
    (root / "verifier" / "test.sh").chmod(0o600)
    assert check_task(root) == []


def test_an_older_layout_is_told_what_to_rename(tmp_path: Path) -> None:
    found = only(faults(tmp_path, script=False, files={"tests/test.sh": "exit 0"}))
    assert "Rename tests/" in found.remedy


def test_state_where_the_agent_works_is_a_fault_over_both_files(tmp_path: Path) -> None:
    manifest = """\
        [environment]
        name = "desk"
        [environment.state]
        paths = ["/workspace/data/desk.db"]
    """
    found = only(faults(tmp_path, manifest=manifest))
    assert found.file.endswith("environment.toml")
    assert "/workspace" in found.problem
    assert faults(tmp_path / "other", "sandbox: {workdir: /desk}\n", manifest=manifest) == []


def test_a_manifest_shared_by_a_benchmark_counts_in_the_digest(tmp_path: Path) -> None:
    shared = tmp_path / "_manifests" / "desk.toml"
    shared.parent.mkdir()
    world = '[environment]\nname = "desk"\nsetup = "true"\n'
    shared.write_text(world)
    front = "benchflow: {environment: {manifest: ../_manifests/desk.toml}}\n"
    root = package(tmp_path, front)
    first = load_task(root)
    assert first.manifest is not None
    assert first.manifest.name == "desk"
    shared.write_text(world + "# changed\n")
    assert load_task(root).digest != first.digest


def test_packages_are_found_in_a_folder_of_them(tmp_path: Path) -> None:
    one, two = package(tmp_path / "a"), package(tmp_path / "a" / "b")
    assert find_packages(one) == [one]
    assert find_packages(one / "task.md") == [one]
    assert find_packages(two.parent) == [two]
    assert find_packages(tmp_path / "none") == [tmp_path / "none"]


@pytest.mark.parametrize("make", ["missing", "file"])
def test_what_is_no_package_is_a_fault(tmp_path: Path, make: str) -> None:
    path = tmp_path / "x"
    if make == "file":
        path.write_text("")
    assert "not a folder" in only(check_task(path)).problem


def test_an_empty_folder_lacks_its_task_file(tmp_path: Path) -> None:
    assert "does not exist" in only(check_task(tmp_path)).problem
    (tmp_path / "task.toml").write_text("")
    assert "older package" in only(check_task(tmp_path)).remedy


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("desk/refund", "refund"),
        ("refund", "refund"),
        ("../../etc", "etc"),
        ("a b/c d", "c-d"),
        ("...", "task"),
        ("", "task"),
        ("x" * 200, "x" * 80),
    ],
)
def test_a_task_name_as_a_folder_word_is_always_safe(name: str, word: str) -> None:
    assert folder_word(name) == word


def test_every_example_of_this_repository_is_a_package_without_faults() -> None:
    examples = Path(__file__).parents[3] / "examples"
    packages = [path.parent for path in examples.rglob("task.md")]
    assert packages
    for root in packages:
        assert check_task(root) == []
