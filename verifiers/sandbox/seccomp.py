"""Filters of system calls: assembled here, as data, and installed. Both halves of the design's filter.

A run is under two filters, and the stricter answer of the two holds. ``base`` is installed once in the zygote: an
allow-list, which still lets through what setting up a run needs. ``run`` is short and installed in each worker last: it
takes those away. All is searched as a balanced tree, as the kernel tries every number when a filter is installed.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from . import syscalls

KILL, ALLOW = 0x80000000, 0x7FFF0000
"""SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ALLOW."""


def refuse(number: int) -> int:
    """The answer that makes a call fail with this errno."""
    return 0x00050000 | number


EPERM = refuse(errno.EPERM)

_NEW = 0x7E020080
"""CLONE_NEW* of cgroup, uts, ipc, user, pid, net, mount and time."""
_THREAD = 0x00010000
OWN_PID = 0x5EC0_0B0C
"""Stands in a filter for the worker's own process id, see ``own``."""

_ALLOWED = """
read write readv writev pread64 pwrite64 preadv pwritev close close_range
lseek open openat openat2 creat stat fstat lstat newfstatat statx
access faccessat faccessat2 readlink readlinkat getdents getdents64 getcwd chdir fchdir
mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 link linkat
symlink symlinkat chmod fchmod fchmodat truncate ftruncate fallocate fsync fdatasync
utimensat futimesat umask dup dup2 dup3 flock pipe pipe2
poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
eventfd2 timerfd_create timerfd_settime timerfd_gettime sendmsg recvmsg sendto recvfrom shutdown
getsockopt getsockname getpeername mmap munmap mremap mprotect madvise brk
msync mlock munlock membarrier rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend
sigaltstack pause alarm getitimer setitimer timer_create timer_settime timer_gettime timer_delete kill
tgkill tkill futex futex_waitv set_robust_list set_tid_address rseq arch_prctl sched_yield
sched_getaffinity sched_getparam sched_getscheduler sched_get_priority_max sched_get_priority_min getcpu getpid gettid
getppid getuid geteuid getgid getegid getresuid getresgid getgroups getpgrp getpgid getsid getpriority
clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time times getrusage getrlimit
uname sysinfo getrandom exit exit_group restart_syscall wait4 waitid copy_file_range sendfile
splice tee statfs fstatfs
"""
_KILLED = """
ptrace process_vm_readv process_vm_writev umount2 pivot_root chroot setns unshare bpf
perf_event_open init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff keyctl
add_key request_key open_by_handle_at userfaultfd io_uring_setup io_uring_enter io_uring_register iopl ioperm quotactl
acct settimeofday clock_settime fsopen fsmount move_mount open_tree mount_setattr pidfd_getfd
"""
_SET_UP = "mount capset setsid prctl landlock_restrict_self seccomp pidfd_send_signal pidfd_open clone"
"""What the zygote does for a run and no program may."""
_NAMES = """
mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 link linkat symlink symlinkat creat
chmod fchmod fchmodat truncate utimensat futimesat
"""
"""What changes a file by its name or its metadata: Landlock does not cover all of it, a mount that is read-only does."""


@dataclass(frozen=True)
class Only:
    """Allow if argument ``arg`` is one of ``values``, each below 2**32; else ``otherwise``."""

    arg: int
    values: tuple[int, ...]
    otherwise: int = EPERM


@dataclass(frozen=True)
class Never:
    """``otherwise`` if the lower half of argument ``arg`` is one of ``values``; else allow."""

    arg: int
    values: tuple[int, ...]
    otherwise: int = EPERM


@dataclass(frozen=True)
class Bits:
    """Allow if argument ``arg`` has all ``wanted`` bits and none of ``banned``, in its lower half; else ``otherwise``."""

    arg: int
    wanted: int
    banned: int
    otherwise: int = EPERM


Rule = int | Only | Never | Bits
Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _JUMP, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x05, 0x54, 0x06
_NUMBER, _ARCH, _ARGS = 0, 4, 16
_X32 = 0x40000000


def base_rules(names: Mapping[str, int]) -> dict[int, Rule]:
    """The zygote's filter by number: default EPERM."""
    rules: dict[str, Rule] = {name: ALLOW for name in (_ALLOWED + _SET_UP).split()}
    rules |= dict.fromkeys(_KILLED.split(), KILL)
    rules |= {
        # Its flags lie in memory, where no filter can look; libraries fall back to clone.
        "clone3": refuse(errno.ENOSYS),
        # TCGETS, FIONREAD, FIOCLEX, FIONCLEX, FIONBIO, TIOCGWINSZ
        "ioctl": Only(1, (0x5401, 0x541B, 0x5451, 0x5450, 0x5421, 0x5413)),
        "prlimit64": Only(0, (0,)),
        "sched_setaffinity": Only(0, (0,)),
        "get_robust_list": Only(0, (0,)),
        "socketpair": Only(0, (1,)),  # AF_UNIX
        # Programs for the kernel: SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF and _EBPF.
        "setsockopt": Never(2, (26, 50, 51, 52)),
        # F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY: the kernel would send signals, to others too.
        "fcntl": Never(1, (8, 10, 15, 1024, 1026)),
    }
    return {names[name]: rule for name, rule in rules.items() if name in names}


def run_rules(names: Mapping[str, int], *, contained: bool, landlock: int) -> dict[int, Rule]:
    """The worker's filter on top: default allow. ``contained``: it has a PID and a mount namespace of its own."""
    rules: dict[str, Rule] = dict.fromkeys(_SET_UP.split(), EPERM)
    rules |= {
        "mount": KILL,
        "prctl": Only(0, (15, 16)),  # names
        "clone": Bits(0, wanted=_THREAD, banned=_NEW),
        # SOCK_STREAM, with or without SOCK_NONBLOCK and SOCK_CLOEXEC: a pair of datagram sockets sends to any address.
        "socketpair": Only(1, (1, 0x801, 0x80001, 0x80801)),
    }
    if not contained:
        rules |= dict.fromkeys(_NAMES.split(), EPERM)
        rules |= {"kill": Only(0, (OWN_PID,)), "tgkill": Only(0, (OWN_PID,)), "tkill": EPERM}
        if landlock < 3:  # truncation is not its business then, and needs no right to write
            truncate = 0o1000
            rules |= {"open": Bits(1, 0, truncate), "openat": Bits(2, 0, truncate), "openat2": EPERM}
    return {names[name]: rule for name, rule in rules.items() if name in names}


def assemble(rules: Mapping[int, Rule], default: int, arch: int) -> list[Instruction]:
    """The filter: kill on another architecture or x32, then the rule of the number, else ``default``."""
    head: list[Instruction] = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, KILL)]
    head += [(_LOAD, 0, 0, _NUMBER)]
    if arch == syscalls.AUDIT["x86_64"]:
        head += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, KILL)]
    spans: list[tuple[int, Rule]] = [(0, default)]
    for number in sorted(rules):
        if spans[-1][0] == number:
            spans[-1] = (number, rules[number])
        else:
            spans.append((number, rules[number]))
        spans.append((number + 1, default))
    joined = [spans[0]]
    for first, rule in spans[1:]:
        if rule != joined[-1][1]:
            joined.append((first, rule))
    return head + _tree(joined)


def pack(code: list[Instruction]) -> bytes:
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def own(code: bytes, pid: int) -> bytes:
    """The filter with the process id put in."""
    return code.replace(struct.pack("=I", OWN_PID), struct.pack("=I", pid))


class Filter:
    """A filter ready to be installed: installing allocates nothing but the kernel's copy."""

    def __init__(self, code: bytes) -> None:
        self._code = ctypes.create_string_buffer(code, len(code))
        head = struct.pack("@HP", len(code) // 8, ctypes.addressof(self._code))
        self._head = ctypes.create_string_buffer(head, len(head))

    def install(self) -> None:
        """On all threads of this process, for good. Wants no_new_privs. Raises OSError."""
        if syscalls.call("seccomp", 1, 1, ctypes.addressof(self._head)):  # SET_MODE_FILTER, TSYNC: else a thread's id
            raise OSError(errno.EBUSY, "seccomp: a thread has another filter")


def _tree(spans: list[tuple[int, Rule]]) -> list[Instruction]:
    if len(spans) == 1:
        return _leaf(spans[0][1])
    middle = len(spans) // 2
    low, high = _tree(spans[:middle]), _tree(spans[middle:])
    if len(low) <= 255:
        return [(_AT_LEAST, len(low), 0, spans[middle][0]), *low, *high]
    return [(_AT_LEAST, 0, 1, spans[middle][0]), (_JUMP, 0, 0, len(low)), *low, *high]


def _leaf(rule: Rule) -> list[Instruction]:
    if isinstance(rule, int):
        return [(_RETURN, 0, 0, rule)]
    lower, upper = _ARGS + 8 * rule.arg, _ARGS + 8 * rule.arg + 4
    if isinstance(rule, Bits):
        code: list[Instruction] = [(_LOAD, 0, 0, lower), (_ANY_BIT, 3 if rule.wanted else 0, 0, rule.banned)]
        if not rule.wanted:
            return [code[0], (_ANY_BIT, 1, 0, rule.banned), (_RETURN, 0, 0, ALLOW), (_RETURN, 0, 0, rule.otherwise)]
        return [
            *code, (_AND, 0, 0, rule.wanted), (_EQUAL, 0, 1, rule.wanted), (_RETURN, 0, 0, ALLOW),
            (_RETURN, 0, 0, rule.otherwise),
        ]  # fmt: skip
    hit, miss = (ALLOW, rule.otherwise) if isinstance(rule, Only) else (rule.otherwise, ALLOW)
    count = len(rule.values)
    tests = [(_EQUAL, count - i, 0, value) for i, value in enumerate(rule.values)]
    body = [(_LOAD, 0, 0, lower), *tests, (_RETURN, 0, 0, miss), (_RETURN, 0, 0, hit)]
    if isinstance(rule, Never):
        return body
    return [(_LOAD, 0, 0, upper), (_EQUAL, 0, count + 1, 0), *body]
