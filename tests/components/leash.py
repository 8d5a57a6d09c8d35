"""Start a program so that it dies with the process that asked for it.

A test run that is killed cannot stop its servers. Linux can: a process may ask for a signal when its parent
dies. The request is lost when a process changes its user, so it is made here, after changing the user and
just before the program replaces this script. That keeps the process id, so the caller stops exactly what
it started. It is a script rather than a `preexec_fn`, which is unsafe in a process that has threads.

usage: python leash.py PARENT_PID SIGNAL_NUMBER USER_OR_DASH PROGRAM [ARGUMENT...]
"""

import ctypes
import os
import pwd
import sys

PR_SET_PDEATHSIG = 1


def become(user: str) -> None:
    entry = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    os.environ["HOME"] = "/nonexistent"


def die_with(parent: int, signal_number: int) -> None:
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit("leash: the parent died before the program was started")


def main(arguments: list[str]) -> None:
    parent, signal_number, user, *command = arguments
    if user != "-":
        become(user)
    die_with(int(parent), int(signal_number))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
