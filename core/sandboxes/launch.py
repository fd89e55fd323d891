"""Start one program inside a view: its own pid namespace, no privilege, pipes handed in.

Runs in the holder. Two processes per program: an *init* (trusted, pid 1 of the
program's namespace, outside all limits) and the program itself. When the init
can be reaped the kernel has already ended everything the program ever started,
so reaping it is the proof that nothing is left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import termios

from core.sandboxes import carry, linux
from core.sandboxes.identity import CAPABILITIES, UIDS
from core.sandboxes.wire import Message

# Ignored by an interpreter or by the nursery, which a program must not inherit.
_INHERITED = (
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGCHLD,
    signal.SIGINT,
    signal.SIGTERM,
)
_READ_ONLY_PROC = ("sys", "sysrq-trigger", "irq", "bus")
CLONE_NEWCGROUP = 0x02000000


def launch(
    request: Message, fds: list[int], *, view: int, network: int, cgroups: list[int], own_pid: int
) -> tuple[int, int]:
    """Fork the init of a new program; returns its pid and the read end of its report.

    The report is lines of text: ``S`` started, ``E<errno> <what>`` could not
    start, ``X<wait status>`` ended. ``own_pid`` is our own pid namespace, to
    which later children go back.
    """
    report, report_out = os.pipe2(os.O_CLOEXEC)
    try:
        linux.unshare(linux.CLONE_NEWPID)
        try:
            pid = os.fork()
            if pid == 0:
                _init(request, fds, view, network, cgroups, report_out)
        finally:
            linux.setns(own_pid, linux.CLONE_NEWPID)
    except OSError:
        os.close(report)
        raise
    finally:
        os.close(report_out)
    return pid, report


def _init(
    request: Message, fds: list[int], view: int, network: int, cgroups: list[int], report: int
) -> None:
    """Pid 1 of the program's namespace. Never returns."""
    status = 1
    try:
        linux.set_parent_death_signal(signal.SIGKILL)
        linux.set_dumpable(False)
        _enter(view, network)
        status = _supervise(request, fds, cgroups, report)
    except OSError as error:
        _tell(report, f"E{error.errno or 5} {error.strerror or error}")
    finally:
        os._exit(status)


def ready_to_join(group: int) -> None:
    """Make the kernel ready for a process to change its group, which costs it a grace period
    (some 10 ms of waiting) unless it did so just before. Moves nothing: there is no such process.
    """
    with contextlib.suppress(OSError):
        os.write(group, b"2147483647")


def _enter(view: int, network: int) -> None:
    """Make the view the whole file system, with a /proc of this namespace only."""
    linux.setns(network, linux.CLONE_NEWNET)
    os.fchdir(view)
    linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWIPC)
    flags = linux.MS_NOSUID | linux.MS_NOEXEC
    linux.mount("proc", "proc", "proc", flags | linux.MS_NODEV)
    linux.mount("devpts", "dev/pts", "devpts", flags, "newinstance,ptmxmode=0666,mode=620")
    linux.pivot_root_here()
    for name in _READ_ONLY_PROC:
        _cover(f"/proc/{name}")


def _cover(path: str) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        linux.bind(path, fd, linux.MOUNT_ATTR_RDONLY)
    finally:
        os.close(fd)


def _supervise(request: Message, fds: list[int], cgroups: list[int], report: int) -> int:
    failed, failed_out = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        _program(request, fds, cgroups, failed_out)
    signal.signal(signal.SIGTERM, lambda *_: _terminate(child))
    keep = sorted((failed, report))
    for low, high in zip([3, *(fd + 1 for fd in keep)], [*keep, 1 << 16], strict=True):
        os.closerange(low, high)
    problem = b""
    while part := os.read(failed, 4096):
        problem += part
    _tell(report, "E" + problem.decode(errors="replace") if problem else "S")
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            _tell(report, f"X{status}")
            return 0


def _terminate(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGTERM)


def _tell(report: int, line: str) -> None:
    os.write(report, line.encode() + b"\n")


def _program(request: Message, fds: list[int], cgroups: list[int], failed: int) -> None:
    """The program's own process, up to exec. Never returns."""
    where = "sandbox set-up"
    code = 127
    try:
        os.setsid()
        for fd in cgroups:
            os.write(fd, b"0")
        # After joining, so that the paths it shows start at this sandbox.
        linux.unshare(CLONE_NEWCGROUP)
        linux.new_session_keyring()
        _only_stdio(fds, failed)
        if request.get("tty"):
            # The session's terminal, so that Ctrl-C and job control work in a shell.
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        for number in _INHERITED:
            signal.signal(number, signal.SIG_DFL)
        _become(request["user"], rootless=request["rootless"])
        # Last, because some count against who sets them.
        _limit(request["limits"])
        where = request["cwd"]
        os.chdir(where)
        call = request.get("call")
        if call:
            # Started, as far as the init is concerned; exec would have closed it.
            os.close(failed)
            code = carry.serve(call)
        else:
            where = request["argv"][0]
            os.execvpe(where, request["argv"], request["env"])
    except OSError as error:
        os.write(failed, f"{error.errno or 5} {where}: {error.strerror or error}".encode())
    finally:
        os._exit(code)


def _only_stdio(fds: list[int], failed: int) -> None:
    spare = [os.dup(fd) for fd in fds]
    for number, fd in enumerate(spare):
        os.dup2(fd, number)
    os.closerange(3, failed)
    os.closerange(failed + 1, 1 << 16)


def _limit(limits: list[tuple[int, int]]) -> None:
    for number, wanted in limits:
        _, most = resource.getrlimit(number)
        value = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(number, (value, value))


def _become(user: str, *, rootless: bool) -> None:
    """Take the compartment's identity for good."""
    uid = UIDS[user]
    keep = CAPABILITIES[user]
    os.umask(0o022)
    if rootless:
        # The one account there is, under the compartment's number.
        linux.new_user_namespace(uid, uid)
    else:
        os.setgroups([])
    linux.drop_bounding_set(keep)
    if not rootless:
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    linux.set_capabilities(keep)
    linux.no_new_privileges()
    if rootless:
        linux.set_dumpable(False)
