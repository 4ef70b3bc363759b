"""Every way a script can end: `endings.py NAME` ends by that one."""

import atexit
import os
import signal
import sys
import threading
import time
import weakref
from typing import Any

import torch
from training import steps, take


def by_number() -> None:
    """After main: a thread goes on, then the exit handlers; all of it on the GPU."""
    atexit.register(lambda: print("handler", torch.ones(2, device="cuda").device))
    main = threading.main_thread()

    def thread() -> None:
        main.join()
        take(1)
        print("thread")

    threading.Thread(target=thread).start()
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    sys.exit(3)


def by_text() -> None:
    class Tee:
        """What many scripts put in the place of stdout."""

        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def write(self, text: str) -> None:
            self.stream.write(text)

    sys.stdout = sys.stderr = Tee(sys.stdout)  # type: ignore[assignment]
    sys.exit("no data")


def by_exception() -> None:
    take(1)
    try:
        try:
            torch.ones(2, device="cuda") @ torch.ones(3, device="cuda")
        except RuntimeError as error:
            raise ValueError("first") from error
    except ValueError:
        torch.zeros(2, device="cuda:7")


def by_os_exit() -> None:
    take(1)
    print("lost, as it is under python", end="")
    os._exit(7)


def by_itself() -> None:
    sys.stdout.close()
    take(1)


def without_optimizer() -> None:
    torch.ones(1024, device="cuda") * 2


def swallowing() -> None:
    while True:
        try:
            take(1_000_000)
        except BaseException as error:
            print("swallowed", type(error).__name__)


def swallowing_without_steps() -> None:
    try:
        take(1_000_000)
    except BaseException:
        waiting()


def wrapped() -> None:
    try:
        take(1_000_000)
    except BaseException as error:
        raise RuntimeError("training failed") from error


def in_a_thread() -> None:
    threading.Thread(target=take, args=(1_000_000,)).start()
    threading.Thread(target=waiting).start()
    waiting()


def waiting() -> None:
    while True:
        time.sleep(0.01)


def terminal() -> None:
    """Shares a terminal: lines, a line in two pieces, a bar that returns to its beginning."""
    for number in steps(2):
        print("step", number)
        time.sleep(0.1)
        print("a prompt: ", end="", flush=True)
        time.sleep(0.1)
        print("answered")
        print("\r 10 %\r 100 %", end="", file=sys.stderr)
        time.sleep(0.1)
        print(file=sys.stderr)
        time.sleep(0.1)


def told() -> None:
    """Trains, says so, and waits for a signal."""
    try:
        for _ in steps(1):
            print("ready", flush=True)
        waiting()
    finally:
        print("cleaned up", flush=True)


def told_and_deaf() -> None:
    """Its first signal ends up in a `finally` that never ends."""
    try:
        told()
    finally:
        print("ready again", flush=True)
        waiting()


def told_and_deaf_to_all() -> None:
    while True:
        try:
            told_and_deaf()
        except BaseException:
            continue


def told_in_a_finalizer() -> None:
    """Python drops what a `__del__` raises."""

    class Finalized:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(1000):
                pass

    Finalized()
    waiting()


def interrupted_in_a_finalizer() -> None:
    """The interrupt arrives in what is run when something dies, before any code of the script's."""
    weakref.finalize(model := torch.nn.Linear(2, 2), os.kill, os.getpid(), signal.SIGINT)
    del model
    waiting()


def own_handler() -> None:
    def handler(number: int, frame: Any) -> None:
        print("handled", number)
        sys.exit(4)

    signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGINT, handler)
    told()


def own_handler_in_a_finalizer(name: str = "__del__") -> None:
    """The signal arrives while the storage of a tensor is freed, which is Python code here."""
    import torch

    def tell(frame: Any, event: str, argument: Any) -> None:
        if frame.f_code.co_name == name and event == "call":
            sys.setprofile(None)
            os.kill(os.getpid(), signal.SIGTERM)

    def handler(number: int, frame: Any) -> None:
        print("handled", number)
        sys.exit(4)

    signal.signal(signal.SIGTERM, handler)
    assert signal.getsignal(signal.SIGTERM) is handler
    tensor = torch.empty(8, device="cuda")
    optimizer = torch.optim.SGD([tensor], lr=0.1)
    sys.setprofile(tell)
    del optimizer, tensor
    waiting()


def own_handler_when_an_optimizer_ends() -> None:
    own_handler_in_a_finalizer("_optimizer_died")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
