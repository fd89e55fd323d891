"""The trusted processes of the local provider, run by a bare interpreter.

*Nursery*: one per provider while it has sandboxes; its only act is to fork
holders, which costs a millisecond instead of an interpreter start.
*Holder*: one per sandbox, pid 1 of its pid namespace, owner of its mounts and
of its two network namespaces. It does what the engine asks over one socket.
They work as root, or as an ordinary user who is root in a user namespace of the
nursery. Both end when their socket does, and the kernel ends everything below a holder
with it, so nothing outlives the engine.
"""

from __future__ import annotations

import _thread
import gc
import os
import select
import signal
import socket
import sys

from core.sandboxes import linux
from core.sandboxes.launch import launch, ready_to_join
from core.sandboxes.standstill import Standstill
from core.sandboxes.views import build
from core.sandboxes.wire import ROOTLESS, Message, receive, send

NETWORKS = {"agent": "agent", "service": "service", "verifier": "service"}


def main() -> None:
    """Fork one holder per message; descriptor 0 is the engine's socket."""
    engine = socket.socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    rootless = sys.argv[3:] == [ROOTLESS]
    if rootless:
        _become_root(engine)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    own_pid = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    # Children share our pages until somebody writes; the collector would write them all.
    gc.freeze()
    while got := receive(engine):
        message, fds = got
        message["rootless"] = rootless
        reply: Message = {"id": message["id"]}
        pidfd = -1
        try:
            linux.unshare(linux.CLONE_NEWPID)
            try:
                pid = os.fork()
                if pid == 0:
                    engine.close()
                    os.close(own_pid)
                    _hold(socket.socket(fileno=fds[0]), message)
            finally:
                linux.setns(own_pid, linux.CLONE_NEWPID)
            reply["pid"] = pid
            pidfd = os.pidfd_open(pid)
            send(engine, reply, [pidfd])
        except OSError as error:
            send(engine, {**reply, **_problem(error)})
        finally:
            for fd in (*fds, *([pidfd] if pidfd >= 0 else [])):
                os.close(fd)


def _become_root(engine: socket.socket) -> None:
    """Go on as root of a user namespace, in a child that is pid 1 of a pid namespace of it."""
    try:
        linux.new_user_namespace(0, 0)
        # To come back from a holder's namespace we must own the one we come back to.
        linux.unshare(linux.CLONE_NEWPID)
        pid = os.fork()
    except OSError as error:
        sys.exit(f"user namespace: {error.strerror}")
    if pid:
        engine.close()
        os.waitpid(pid, 0)
        os._exit(0)
    linux.set_parent_death_signal(signal.SIGKILL)


def _problem(error: OSError) -> Message:
    return {"error": str(error.strerror or error), "errno": error.errno or 5}


def _hold(engine: socket.socket, message: Message) -> None:
    """Be one sandbox's holder. Never returns."""
    try:
        linux.set_parent_death_signal(signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            holder = Holder(engine, message)
        except OSError as error:
            send(engine, {"op": "failed", **_problem(error)})
            return
        send(engine, {"op": "ready"})
        holder.run()
    except (ConnectionError, BrokenPipeError):
        pass
    finally:
        os._exit(0)


class _Program:
    """One running program: its init's pid, and what the init said so far."""

    def __init__(self, pid: int, pidfd: int, report: int) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.report = report
        self.said = b""
        self.status: int | None = None
        self.started = False


class Holder:
    """The mounts, networks and programs of one sandbox."""

    def __init__(self, engine: socket.socket, message: Message) -> None:
        self._engine = engine
        self._limits = message["limits"]
        self._rootless = message["rootless"]
        self._plans = message["views"]
        self._standstill = Standstill()
        self._folder = message["folder"]
        self._views: dict[str, int] = {}
        self._programs: dict[int, _Program] = {}
        self._by_fd: dict[int, int] = {}
        self._poll = select.poll()
        self._poll.register(engine.fileno(), select.POLLIN)
        self._own_pid = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._cgroups = [os.open(path, os.O_WRONLY | os.O_CLOEXEC) for path in message["cgroups"]]
        linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWUTS | linux.CLONE_NEWIPC)
        linux.mount("none", "/", "none", linux.MS_REC | linux.MS_PRIVATE)
        socket.sethostname(message["hostname"])
        self._networks: dict[str, int] = {}
        self._overlaid = bool(message["lowers"])
        if self._overlaid:
            self._overlay(message)
        os.chdir(self._folder)

    def _overlay(self, message: Message) -> None:
        # Relative paths, so that no program reads a host path in its mount table.
        os.chdir(message["layers"])
        lower = ":".join(f"{layer}/fs" for layer in reversed(message["lowers"]))
        own = os.path.relpath(self._folder, message["layers"])
        options = f"lowerdir={lower},upperdir={own}/upper,workdir={own}/work,{message['options']}"
        linux.mount("overlay", f"{self._folder}/merged", "overlay", linux.MS_NOSUID, options)

    def _network(self, user: str) -> int:
        """The network of a compartment, made when it is first needed."""
        name = NETWORKS[user]
        if name not in self._networks:
            linux.unshare(linux.CLONE_NEWNET)
            linux.loopback_up()
            self._networks[name] = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        return self._networks[name]

    def run(self) -> None:
        """Serve until the engine is gone or asks to stop."""
        while True:
            for fd, _ in self._poll.poll():
                if fd != self._engine.fileno():
                    self._hear(fd)
                    continue
                got = receive(self._engine)
                if got is None:
                    return
                if not self._obey(*got):
                    return

    def _obey(self, message: Message, fds: list[int]) -> bool:
        """Do one request; False when it was the last."""
        try:
            match message["op"]:
                case "spawn":
                    self._spawn(message, fds)
                case "signal":
                    self._signal(message["program"], message["signal"])
                case "socket" | "listen":
                    self._socket(message)
                case "freeze" | "thaw":
                    self._freeze(message)
                case "quit":
                    self._quit()
                    send(self._engine, {"id": message["id"]})
                    return False
        except OSError as error:
            send(self._engine, {"id": message["id"], **_problem(error)})
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _view(self, user: str) -> int:
        if user not in self._views:
            os.makedirs(f"view/{user}", 0o700, exist_ok=True)
            self._views[user] = build(f"view/{user}", self._plans[user])
        return self._views[user]

    def _spawn(self, message: Message, fds: list[int]) -> None:
        user = message["user"]
        if self._cgroups:
            _thread.start_new_thread(ready_to_join, (self._cgroups[0],))
        view = self._view(user)
        message["limits"] = self._limits
        message["rootless"] = self._rootless
        pid, report = launch(
            message,
            fds,
            view=view,
            network=self._network(user),
            cgroups=self._cgroups,
            own_pid=self._own_pid,
        )
        program = _Program(pid, os.pidfd_open(pid), report)
        self._programs[message["id"]] = program
        for fd in (program.pidfd, report):
            self._by_fd[fd] = message["id"]
            self._poll.register(fd, select.POLLIN)

    def _hear(self, fd: int) -> None:
        number = self._by_fd.get(fd)
        if number is None:
            return
        program = self._programs[number]
        if fd == program.report:
            self._read(number, program)
            return
        while self._read(number, program):
            pass
        _, status = os.waitpid(program.pid, 0)
        del self._programs[number], self._by_fd[fd]
        self._poll.unregister(fd)
        os.close(fd)
        final = status if program.status is None else program.status
        if program.started:
            send(self._engine, {"op": "exit", "program": number, "status": final})

    def _read(self, number: int, program: _Program) -> bool:
        """Take in one piece of an init's report; False at its end."""
        if program.report not in self._by_fd:
            return False
        part = os.read(program.report, 4096)
        if not part:
            del self._by_fd[program.report]
            self._poll.unregister(program.report)
            os.close(program.report)
            if not program.started:
                self._refuse(number, program, "5 the program's init died before it started")
            return False
        *lines, program.said = (program.said + part).split(b"\n")
        for line in lines:
            text = line[1:].decode(errors="replace")
            if line.startswith(b"S"):
                program.started = True
                send(self._engine, {"id": number})
            elif line.startswith(b"X"):
                program.status = int(text)
            else:
                self._refuse(number, program, text)
        return True

    def _refuse(self, number: int, program: _Program, text: str) -> None:
        if program.status is None:
            errno, _, what = text.partition(" ")
            program.status = -1
            send(self._engine, {"id": number, "error": what, "errno": int(errno)})

    def _signal(self, number: int, what: int) -> None:
        program = self._programs.get(number)
        if program is not None:
            os.kill(program.pid, what)

    def _socket(self, message: Message) -> None:
        """Make a socket in a compartment's network and hand it over, listening or not."""
        linux.setns(self._network(message["user"]), linux.CLONE_NEWNET)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            if message["op"] == "listen":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind(("127.0.0.1", message["port"]))
                sock.listen(128)
            send(self._engine, {"id": message["id"]}, [sock.fileno()])

    def _freeze(self, message: Message) -> None:
        spare = {os.getpid(), *(program.pid for program in self._programs.values())}
        if message["op"] == "freeze":
            self._standstill.stop(spare, message["seconds"])
        else:
            self._standstill.go_on(spare)
        send(self._engine, {"id": message["id"]})

    def _quit(self) -> None:
        """End every program and let go of every mount, so that the files are ours alone."""
        for program in self._programs.values():
            os.kill(program.pid, signal.SIGKILL)
        for program in self._programs.values():
            os.waitpid(program.pid, 0)
        for user, fd in self._views.items():
            os.close(fd)
            linux.umount(f"view/{user}", linux.MNT_DETACH)
        if self._overlaid:
            linux.umount("merged")


if __name__ == "__main__":
    sys.exit("start the holder through the local provider")
