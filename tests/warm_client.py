"""`python -IS warm_client.py SOCKET PROGRAM ARGUMENT...`: `python -c`, but warm.

It hands its streams, other descriptors that it inherited, folder and environment to the server's
fork, passes signals on to it, and ends as it ends. Imports next to nothing: starting takes some
20 ms.
"""

import json
import os
import signal
import socket
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
socket.send_fds(connection, [json.dumps(asked).encode() + b"\n"], descriptors)
answers = connection.makefile()
passed_on = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1]
signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
pid = int(answers.readline())
for number in descriptors:
    os.close(number)
for number in passed_on:
    signal.signal(number, lambda number, _: os.kill(pid, number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
status = int(answers.readline())
if os.WIFSIGNALED(status):
    number = os.WTERMSIG(status)
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
os._exit(os.WEXITSTATUS(status))
