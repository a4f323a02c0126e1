"""What the filters answer, by an interpreter of their instructions, on both tables of numbers."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jurat.verifiers.sandbox import seccomp, syscalls
from jurat.verifiers.sandbox.seccomp import ALLOW, EPERM, KILL, Bits, Never, Only

_PID = 4242


def answer(code: list[seccomp.Instruction], arch: int, number: int, args: tuple[int, ...]) -> int:
    """Runs a filter as the kernel does. Offsets and jumps that lead outside are errors here as there."""
    data = struct.pack(
        "=IIQ6Q", number & 0xFFFFFFFF, arch, 0, *(arg & (1 << 64) - 1 for arg in (*args, 0, 0, 0, 0, 0, 0)[:6])
    )
    at = held = 0
    while True:
        op, yes, no, k = code[at]
        at += 1
        if op == 0x06:
            return k
        if op == 0x20:
            assert k % 4 == 0
            (held,) = struct.unpack_from("=I", data, k)
        elif op == 0x54:
            held &= k
        elif op == 0x05:
            at += k
        else:
            at += yes if {0x15: held == k, 0x35: held >= k, 0x45: bool(held & k)}[op] else no


class Machine:
    def __init__(self, name: str) -> None:
        self.arch, self.names = syscalls.AUDIT[name], syscalls.numbers(name)
        self.base = seccomp.assemble(seccomp.base_rules(self.names), EPERM, self.arch)

    def run(self, contained: bool = True, landlock: int = 7) -> list[seccomp.Instruction]:
        rules = seccomp.run_rules(self.names, contained=contained, landlock=landlock)
        made = seccomp.own(seccomp.pack(seccomp.assemble(rules, ALLOW, self.arch)), _PID)
        return [struct.unpack_from("=HBBI", made, at) for at in range(0, len(made), 8)]

    def says(self, name: str, *args: int, contained: bool = True, landlock: int = 7) -> int:
        """The stricter of both filters' answers: as numbers, killing is the greatest when read as the kernel does."""
        number = self.names[name]
        answers = [answer(code, self.arch, number, args) for code in (self.base, self.run(contained, landlock))]
        order = [KILL, EPERM, seccomp.refuse(errno.ENOSYS), ALLOW]
        return min(answers, key=order.index)


@pytest.fixture(scope="module", params=sorted(syscalls.AUDIT))
def machine(request: pytest.FixtureRequest) -> Machine:
    return Machine(request.param)


def test_ordinary_calls_pass(machine: Machine) -> None:
    for name in (
        "read",
        "write",
        "mmap",
        "futex",
        "openat",
        "exit_group",
        "clock_gettime",
        "getrandom",
        "wait4",
        "kill",
    ):
        assert machine.says(name, 1, 2, 3) == ALLOW, name


def test_dangerous_calls_kill(machine: Machine) -> None:
    for name in (
        "ptrace",
        "process_vm_readv",
        "mount",
        "umount2",
        "unshare",
        "setns",
        "bpf",
        "io_uring_setup",
        "keyctl",
        "chroot",
    ):
        assert machine.says(name) == KILL, name


def test_the_rest_is_refused(machine: Machine) -> None:
    for name in (
        "execve",
        "execveat",
        "socket",
        "memfd_create",
        "setsid",
        "capset",
        "setresuid",
        "chown",
        "seccomp",
        "pidfd_open",
    ):
        if name in machine.names:
            assert machine.says(name) == EPERM, name
    for name in ("fork", "vfork"):
        assert name not in machine.names or machine.says(name) == EPERM


def test_every_number_has_an_answer_and_unknown_ones_are_refused(machine: Machine) -> None:
    known = set(machine.names.values())
    for number in [*range(700), 0x3FFFFFFF]:
        made = answer(machine.base, machine.arch, number, ())
        assert made in (ALLOW, KILL, EPERM, seccomp.refuse(errno.ENOSYS))
        assert number in known or made == EPERM


def test_threads_but_no_processes_and_no_namespaces(machine: Machine) -> None:
    threads = 0x3D0F00  # what pthread_create asks for
    assert machine.says("clone", threads) == ALLOW
    assert machine.says("clone", 0x01200011) == EPERM  # fork
    for namespace in (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert machine.says("clone", threads | namespace) == EPERM
    assert machine.says("clone3") == seccomp.refuse(errno.ENOSYS)


def test_arguments_are_looked_at_whole(machine: Machine) -> None:
    assert machine.says("ioctl", 1, 0x5401) == ALLOW  # TCGETS
    assert machine.says("ioctl", 1, 0x5412) == EPERM  # TIOCSTI: types into a terminal
    assert machine.says("ioctl", 1, 0x1_0000_5401) == EPERM
    assert machine.says("prctl", 15) == ALLOW
    assert machine.says("prctl", 1) == EPERM
    assert machine.says("prlimit64", 0, 7) == ALLOW
    assert machine.says("prlimit64", 1, 7) == EPERM
    assert machine.says("socketpair", 1, 1) == ALLOW
    assert machine.says("socketpair", 2, 1) == EPERM
    assert machine.says("fcntl", 0, 3) == ALLOW
    assert machine.says("fcntl", 0, 8) == EPERM  # F_SETOWN
    assert machine.says("fcntl", 0, 0x1_0000_0008) == EPERM  # the kernel reads the lower half


def test_without_a_pid_namespace_signals_go_to_oneself_only(machine: Machine) -> None:
    for name in ("kill", "tgkill"):
        assert machine.says(name, _PID, 9, contained=False) == ALLOW
        for other in (0, 1, -1, -_PID, _PID + 1, _PID + (1 << 32)):
            assert machine.says(name, other, 9, contained=False) == EPERM
    assert machine.says("tkill", _PID, 9, contained=False) == EPERM


def test_without_a_mount_namespace_names_are_not_changed(machine: Machine) -> None:
    for name in ("fchmodat", "truncate", "utimensat", "unlinkat", "renameat2", "mkdirat"):
        assert machine.says(name, 0, 0, 0) == ALLOW
        assert machine.says(name, 0, 0, 0, contained=False) == EPERM
    truncate = 0o1000
    assert machine.says("openat", 0, 0, truncate, contained=False, landlock=7) == ALLOW  # Landlock's to refuse
    assert machine.says("openat", 0, 0, truncate, contained=False, landlock=2) == EPERM
    assert machine.says("openat", 0, 0, 0, contained=False, landlock=2) == ALLOW


def test_another_architecture_is_killed() -> None:
    here = Machine("x86_64")
    assert answer(here.base, syscalls.AUDIT["aarch64"], here.names["read"], ()) == KILL
    assert answer(here.base, 0x40000003, here.names["read"], ()) == KILL  # i386
    assert answer(here.base, here.arch, 0x40000000 | here.names["read"], ()) == KILL  # x32


_words = st.integers(0, 2**32 - 1)
_args = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2, 3]) | _words
_rules = st.one_of(
    st.sampled_from([ALLOW, KILL, EPERM]),
    st.builds(Only, st.integers(0, 5), st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple)),
    st.builds(Never, st.integers(0, 5), st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple)),
    st.builds(Bits, st.integers(0, 5), st.sampled_from([0, 1, 3, 0x10000]), st.sampled_from([0, 4, 0x7E020080])),
)


def expected(rule: seccomp.Rule, args: tuple[int, ...]) -> int:
    if isinstance(rule, int):
        return rule
    whole, lower = args[rule.arg], args[rule.arg] & 0xFFFFFFFF
    if isinstance(rule, Only):
        return ALLOW if whole in rule.values else rule.otherwise
    if isinstance(rule, Never):
        return rule.otherwise if lower in rule.values else ALLOW
    return ALLOW if lower & rule.wanted == rule.wanted and not lower & rule.banned else rule.otherwise


@given(
    st.dictionaries(st.integers(0, 500), _rules, max_size=300), st.sampled_from([ALLOW, EPERM]), st.data(),
    st.tuples(*[_args] * 6),
)  # fmt: skip
def test_a_filter_is_its_rules(rules: dict, default: int, data: st.DataObject, args: tuple[int, ...]) -> None:
    arch = syscalls.AUDIT["aarch64"]
    code = seccomp.assemble(rules, default, arch)
    number = data.draw(st.integers(0, 600) | st.sampled_from(sorted(rules) or [0]))
    assert answer(code, arch, number, args) == expected(rules.get(number, default), args)
    assert all(yes <= 255 and no <= 255 for _, yes, no, _ in code)
