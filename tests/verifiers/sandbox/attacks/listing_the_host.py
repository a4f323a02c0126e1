# attack: listing_the_host
# kind: leak   task: any   naive: run
# attempts: list folders of the host
import os

def evidence(found="yes"):
    said = f"PWNED listing_the_host {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/listing_the_host", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

for path in ("/root", "/home", "/var/log", "/etc/ssl", "/etc/apt", "/tmp/sbx_canary", "/sys/class", "/run", "/boot", "/srv"):
    try:
        if os.listdir(path):
            evidence(path)
    except OSError:
        pass
