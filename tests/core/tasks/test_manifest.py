"""environment.toml to Manifest: every table, every fault with its line."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from core.contracts.errors import Fault
from core.tasks.manifest import parse_manifest
from core.tasks.models import Manifest, StateSpec
from tests.core.tasks.packages import only

WHOLE = """\
[environment]
name = "desk"
base_image = "example/base:1"
owns_lifecycle = false
isolation = "persistent"
keep_alive = false
ports = [9100]
setup = '''
python3 /environment/seed.py
'''

[environment.task_selection]
mechanism = "env_var"
key = "DESK_TASK"
inject_into = "exec"

[[environment.services]]
name = "orders"
command = "python3 /environment/orders.py"
port = 9001
health_path = "/ready"
env = { MODE = "strict" }

[[environment.services]]
name = "mail"
command = "python3 /environment/mail.py"
port = 9002

[environment.readiness]
http = ["http://localhost:9001/ready"]
tcp = [9002, "127.0.0.1:9100"]
exec = ["test -f /data/desk.db"]
timeout_sec = 7.5

[environment.forward_env]
keys = ["API_KEY"]

[[environment.state]]
kind = "sqlite"
paths = ["/data/desk.db"]

[[environment.state]]
kind = "files"
paths = ["/mail"]

[verifier]
hidden_from_agent = ["expectations.json"]

[somebody_elses_table]
anything = 1
"""


def read(text: str, file: str = "environment.toml") -> tuple[Manifest | None, list[Fault]]:
    reading = parse_manifest(textwrap.dedent(text).encode(), file, Path("/package/environment"))
    return reading.manifest, list(reading.faults)


def test_every_table_is_read() -> None:
    manifest, faults = read(WHOLE)
    assert faults == []
    assert manifest is not None
    orders, mail = manifest.services
    assert (orders.port, orders.health_path, orders.env) == (9001, "/ready", {"MODE": "strict"})
    assert (mail.port, mail.health_path, mail.env) == (9002, "/health", {})
    assert manifest.setup == "python3 /environment/seed.py\n"
    assert manifest.readiness.http == ("http://localhost:9001/ready",)
    assert manifest.readiness.tcp == ("localhost:9002", "localhost:9100")
    assert manifest.readiness.exec == ("test -f /data/desk.db",)
    assert manifest.readiness.timeout_sec == 7.5
    assert manifest.task_selection.key == "DESK_TASK"
    assert manifest.task_selection.inject_into == "exec"
    assert manifest.state == (
        StateSpec("sqlite", ("/data/desk.db",)),
        StateSpec("files", ("/mail",)),
    )
    assert manifest.forward_env == ("API_KEY",)
    assert manifest.hidden_from_agent == ("expectations.json",)
    assert (manifest.isolation, manifest.keep_alive, manifest.ports) == (
        "persistent",
        False,
        (9100,),
    )
    assert manifest.folder == Path("/package/environment")


def test_one_state_table_is_as_good_as_a_list() -> None:
    manifest, faults = read('[environment]\nname="d"\n[environment.state]\npaths=["/data/a.db"]\n')
    assert faults == []
    assert manifest is not None
    assert manifest.state == (StateSpec("sqlite", ("/data/a.db",)),)


def test_an_image_that_is_named_starts_its_own_services_unless_some_are_listed() -> None:
    image = '[environment]\nname = "d"\nimage = "x:1"\n'
    alone, _ = read(image)
    assert alone is not None
    assert alone.owns_lifecycle is True
    listed, faults = read(image + '[[environment.services]]\nname="a"\ncommand="b"\nport=1\n')
    assert faults == []
    assert listed is not None
    assert listed.owns_lifecycle is False


def test_a_yaml_manifest_is_read_as_well() -> None:
    text = "environment:\n  name: desk\n  services:\n  - {name: a, command: b, port: 70000}\n"
    _, faults = read(text, "environment.yaml")
    assert (only(faults).key, only(faults).line) == ("environment.services[0].port", 4)


@pytest.mark.parametrize(
    ("text", "key", "line", "says"),
    [
        ("", "environment", None, "[environment]"),
        ("environment = 3\n", "environment", 1, "must be a mapping"),
        ('[environment]\nsetup = "a"\n', "environment.name", 1, "missing"),
        ('[environment]\nname = "d"\n', "environment", 1, "declares no world"),
        ('[environment]\nname = "d"\nsetup = "a"\nimgae = "x"\n',
         "environment.imgae", 4, "'image'"),
        ('[environment]\nname = "d"\nowns_lifecycle = true\n',
         "environment.owns_lifecycle", 3, "no image"),
        ('[environment]\nname = "d"\nimage = "i"\nowns_lifecycle = true\n'
         '[[environment.services]]\nname = "a"\ncommand = "b"\nport = 1\n',
         "environment.owns_lifecycle", 4, "yet services are listed"),
        ('[environment]\nname = "d"\nimage = "i"\nbase_image = "b"\n',
         "environment.base_image", 4, "beside 'image'"),
        ('[environment]\nname = "d"\nsetup = "a"\nports = [0]\n',
         "environment.ports[0]", 4, "1 to 65535"),
        ('[environment]\nname = "d"\nsetup = "a"\n[environment.forward_env]\nkeys = ["A B"]\n',
         "environment.forward_env.keys[0]", 5, "name of a variable"),
        ('[environment]\nname = "d"\n[[environment.services]]\nname = "a"\nport = 1\n',
         "environment.services[0].command", 3, "missing"),
        ('[environment]\nname = "d"\nsetup = "a"\n[environment.readiness]\n'
         'http = ["http://localhost:9/x"]\n',
         "environment.readiness.http[0]", 5, "port 9, which nothing declares"),
        ('[environment]\nname = "d"\nsetup = "a"\n[environment.readiness]\n'
         'http = ["http://example.com/"]\n',
         "environment.readiness.http[0]", 5, "http://localhost:PORT"),
        ('[environment]\nname = "d"\nsetup = "a"\nports = [5]\n[environment.readiness]\n'
         "tcp = [\n  5,\n  6,\n]\n",
         "environment.readiness.tcp[1]", 6, "port 6"),
        ('[environment]\nname = "d"\n[environment.state]\nkind = "mysql"\npaths = ["/d/a"]\n',
         "environment.state.kind", 4, "sqlite, files"),
        ('[environment]\nname = "d"\nsetup = "a"\n[environment.state]\npaths = ["a.db"]\n',
         "environment.state.paths[0]", 5, "absolute path"),
        ('[environment]\nname = "d"\n[environment.state]\npaths = ["/a.db"]\n',
         "environment.state.paths[0]", 4, "root folder"),
        ('[environment]\nname = "d"\n[environment.state]\npaths = ["/etc/a.db"]\n',
         "environment.state.paths[0]", 4, "folder of the system"),
        ('[environment]\nname = "d"\n[environment.state]\npaths = ["/d/a", "/d/a"]\n',
         "environment.state.paths[1]", 4, "twice"),
        ('[environment]\nname = "d"\nsetup = "a"\n[environment.state]\npaths = []\n',
         "environment.state.paths", 5, "is empty"),
        ('[environment]\nname = "d"\nsetup = "a"\n[verifier]\nhidden_from_agent = "x"\n',
         "verifier.hidden_from_agent", 5, "must be a list"),
        ('[environment]\nname = desk\n', "", 2, "not valid TOML"),
        ('[environment]\nname = "d"\nsetup = "a"\nname = "e"\n', "", 4, "not valid TOML"),
    ],
)  # fmt: skip
def test_a_fault_names_its_key_its_line_and_what_to_do(
    text: str, key: str, line: int | None, says: str
) -> None:
    _, faults = read(text)
    found = only(faults)
    assert (found.key, found.line) == (key, line)
    assert says in str(found)


def test_a_port_used_twice_names_who_has_it() -> None:
    _, faults = read(
        """\
        [environment]
        name = "d"
        [[environment.services]]
        name = "orders"
        command = "a"
        port = 9001
        [[environment.services]]
        name = "orders"
        command = "b"
        port = 9001
        """
    )
    name, port = faults
    assert (name.key, name.line) == ("environment.services[1].name", 8)
    assert (port.key, port.line) == ("environment.services[1].port", 10)
    assert "'orders' already has" in port.problem


def test_a_probe_of_an_image_that_declares_no_ports_is_believed() -> None:
    _, faults = read(
        '[environment]\nname="d"\nimage="i"\n[environment.readiness]\nhttp=["http://localhost:8/"]'
    )
    assert faults == []


def test_lines_are_right_around_multi_line_text_and_arrays() -> None:
    _, faults = read(
        """\
        # a comment
        [environment]
        name = "d"
        setup = '''
        port = 1
        [environment.nowhere]
        '''
        ports = [
          9001,  # ]
        ]
        imgae = "x"
        """
    )
    assert (only(faults).key, only(faults).line) == ("environment.imgae", 11)
