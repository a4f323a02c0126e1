# attack: change_without_opening
# kind: effect   task: any   naive: run
# attempts: change mode, owner, times, attributes, length, name of a host file: Landlock knows only some of these
import os

def evidence(found="yes"):
    said = f"PWNED change_without_opening {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/change_without_opening", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

goal = "/tmp/sbx_canary/secret.txt"
tries = {
    "chmod": lambda: os.chmod(goal, 0o600),
    "chmod folder": lambda: os.chmod("/tmp/sbx_canary", 0o755),
    "chown": lambda: os.chown(goal, os.getuid(), os.getgid()),
    "utime": lambda: os.utime(goal, (1, 1)),
    "setxattr": lambda: os.setxattr(goal, "user.sbx", b"1"),
    "truncate": lambda: os.truncate(goal, 0),
    "O_TRUNC": lambda: os.open(goal, os.O_RDONLY | os.O_TRUNC),
    "rename": lambda: os.rename(goal, "/tmp/sbx_canary/moved"),
    "unlink": lambda: os.unlink("/tmp/sbx_canary/sock"),
    "mkfifo": lambda: os.mkfifo("/tmp/sbx_canary/fifo"),
    "symlink": lambda: os.symlink("/", "/tmp/sbx_canary/link"),
    "mkdir": lambda: os.mkdir("/tmp/sbx_canary/folder"),
}
for name, change in tries.items():
    try:
        change()
        evidence(name)
    except (OSError, TypeError, AttributeError):
        pass
