"""Programs that must not get far. Run once per process and level before anything is trusted to the level."""

QUIET = """
import ctypes, os, resource

libc = ctypes.CDLL(None, use_errno=True)


def attempt(name, act):
    try:
        if act() not in (None, False, -1):
            print(name)
    except (OSError, ValueError):
        pass


def reads(path):
    return os.read(os.open(path, os.O_RDONLY), 1)


attempt("fork", lambda: libc.fork() if os.getpid() else None)
attempt("exec", lambda: os.execv("/bin/sh", ["sh"]))
for family in (1, 2, 10, 16, 17, 40):
    attempt(f"socket-{family}", lambda: libc.socket(family, 2, 0))
for path in ("/etc/passwd", "/proc/self/environ", "/proc/1/cmdline", "/proc/self/maps"):
    attempt(path, lambda: reads(path))
attempt("list-proc", lambda: any(name.isdigit() for name in os.listdir("/proc")))
for folder in ("/", "/var/tmp", "/dev/shm", os.path.dirname(os.__file__)):
    attempt(f"write-{folder}", lambda: os.open(f"{folder}/jurat-attack", os.O_WRONLY | os.O_CREAT, 0o600))
attempt("environment", lambda: any("SECRET" in name or "TOKEN" in name for name in os.environ))
attempt("descriptors", lambda: any(libc.fcntl(fd, 1) != -1 for fd in range(3, 4096)))
attempt("memfd", lambda: libc.memfd_create(b"x", 0))
attempt("kill-parent", lambda: os.getppid() > 1 and libc.kill(os.getppid(), 0))
attempt("setsid", lambda: libc.setsid())
attempt("limits", lambda: [
    resource.setrlimit(which, (hard + 1, hard + 1))
    for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE)
    for hard in [resource.getrlimit(which)[1]]
])
attempt("root", lambda: 0 in os.getresuid())
print("done")
"""
"""Prints the name of each attack that worked, then ``done``."""

LETHAL = (
    "import ctypes; ctypes.CDLL(None).unshare(0x10000000)  # unshare",
    "import ctypes; ctypes.CDLL(None).ptrace(16, 1, 0, 0)  # ptrace",
)
"""Each must be killed for its system call, which its last word names."""
