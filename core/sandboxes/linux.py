"""Linux calls that Python 3.11 does not offer, as thin functions that raise OSError.

Only what the holder and the probe need. Light on purpose: the holder imports it
before anything else, and a fresh interpreter pays for every import.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterable

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

MOUNT_ATTR_RDONLY = 1
MOUNT_ATTR_NOSUID = 2
MOUNT_ATTR_NODEV = 4

CAP_CHOWN = 0
CAP_DAC_OVERRIDE = 1
CAP_FOWNER = 3

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_BOTH_EMPTY = 0x04 | 0x40
# These numbers are the same on every architecture (added after the tables were merged).
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_MOUNT_SETATTR = 442
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41}
_SYS_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219}
_KEYCTL_JOIN_SESSION_KEYRING = 1

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION_3 = 0x20080522


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, kind: int = 0) -> None:
    _check(_libc.setns(fd, kind), "setns")


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    """The classic mount call; ``options`` must stay below one page (4096 bytes)."""
    _check(
        _libc.mount(
            source.encode(),
            target.encode(),
            kind.encode(),
            ctypes.c_ulong(flags),
            options.encode() or None,
        ),
        f"mount {kind} on {target}",
    )


def umount(target: str, flags: int = 0) -> None:
    _check(_libc.umount2(target.encode(), flags), f"umount {target}")


def pivot_root_here() -> None:
    """Make the current folder (a mount point) the root and forget the old one."""
    number = _SYS_PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(38, f"pivot_root: not known on {os.uname().machine}")
    _check(_libc.syscall(number, b".", b"."), "pivot_root")
    umount(".", MNT_DETACH)
    os.chdir("/")


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def bind(source: str, target_fd: int, attributes: int) -> None:
    """Bind ``source`` with all below it on an open folder or file.

    By descriptor, so that no link in the target's path can lead elsewhere, and
    with its attributes set before it can be seen. Needs Linux 5.12.
    """
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE
    tree = _check(
        _libc.syscall(_SYS_OPEN_TREE, _AT_FDCWD, source.encode(), flags), f"open_tree {source}"
    )
    try:
        attr = _MountAttr(attr_set=attributes)
        _check(
            _libc.syscall(
                _SYS_MOUNT_SETATTR,
                tree,
                b"",
                _AT_EMPTY_PATH | _AT_RECURSIVE,
                ctypes.byref(attr),
                ctypes.c_size_t(ctypes.sizeof(attr)),
            ),
            f"mount_setattr {source}",
        )
        _check(
            _libc.syscall(_SYS_MOVE_MOUNT, tree, b"", target_fd, b"", _MOVE_MOUNT_BOTH_EMPTY),
            f"move_mount {source}",
        )
    finally:
        os.close(tree)


def new_user_namespace(uid: int, gid: int) -> None:
    """Enter a user namespace of our own, where we are ``uid`` and hold every capability.

    Only our own account exists in it. Raises OSError where the machine denies it.
    """
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER)
    # The maps of a process that hides its memory belong to root.
    set_dumpable(True)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {outer_uid} 1"),
        ("gid_map", f"{gid} {outer_gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def sync_file_system(fd: int) -> None:
    """Wait until the whole file system of ``fd`` is on its disk."""
    _check(_libc.syncfs(fd), "syncfs")


def set_parent_death_signal(number: int) -> None:
    _check(_libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0), "prctl PDEATHSIG")


def set_dumpable(value: bool) -> None:
    _check(_libc.prctl(_PR_SET_DUMPABLE, int(value), 0, 0, 0), "prctl DUMPABLE")


def no_new_privileges() -> None:
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl NO_NEW_PRIVS")


def new_session_keyring() -> None:
    """Leave the keyring of whoever started us; best effort (some kernels have none)."""
    number = _SYS_KEYCTL.get(os.uname().machine)
    if number is not None:
        _libc.syscall(number, _KEYCTL_JOIN_SESSION_KEYRING, None)


def drop_bounding_set(keep: Iterable[int] = ()) -> None:
    """No program started from here on can ever hold a capability outside ``keep``."""
    kept = set(keep)
    for capability in range(64):
        if capability in kept:
            continue
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            if ctypes.get_errno() == 22:  # EINVAL: past the kernel's last capability
                return
            _check(-1, f"prctl CAPBSET_DROP {capability}")


def set_capabilities(keep: Iterable[int] = ()) -> None:
    """Permitted and effective become exactly ``keep``; inheritable becomes empty."""
    mask = sum(1 << capability for capability in keep)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    data = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)
    _check(_libc.capset(ctypes.byref(header), ctypes.byref(data)), "capset")


def loopback_up() -> None:
    """Bring ``lo`` up in the current network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sH14s", b"lo", 0x1 | 0x40, b"")  # IFF_UP | IFF_RUNNING
        fcntl.ioctl(sock, 0x8914, request)  # SIOCSIFFLAGS
