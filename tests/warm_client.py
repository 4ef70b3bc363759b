"""`python -IS warm_client.py SOCKET PROGRAM ARGUMENT...`: `python -c`, but warm.

It hands its streams, other descriptors that it inherited, folder and environment to the server's
fork, passes signals on to it, and ends as it ends. Imports next to nothing, of `socket` and
`signal` only what is built in: starting takes 10 ms instead of 20.
"""

import _signal as signal
import _socket as socket
import os
import sys

LARGEST = 64
descriptors = []
for number in range(LARGEST):
    try:
        if os.get_inheritable(number):
            descriptors.append(number)
    except OSError:
        pass
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
asked = {
    "cwd": os.getcwd(),
    "environment": dict(os.environ),
    "program": sys.argv[2],
    "arguments": sys.argv[3:],
    "descriptors": descriptors,
}
numbers = b"".join(number.to_bytes(4, sys.byteorder) for number in descriptors)
text = ascii(asked).encode() + b"\n"
sent = connection.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])
connection.sendall(text[sent:])


def answer():
    line = b""
    while not line.endswith(b"\n"):
        line += connection.recv(1) or sys.exit("the warm Python has ended")
    return int(line)


passed_on = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1]
signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
pid = answer()
for number in descriptors:
    os.close(number)
for number in passed_on:
    signal.signal(number, lambda number, _: os.kill(pid, number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
status = answer()
if os.WIFSIGNALED(status):
    number = os.WTERMSIG(status)
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
os._exit(os.WEXITSTATUS(status))
