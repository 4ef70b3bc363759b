"""Prints what a script can know of how it is run, and much more; trains where it is told to."""

import argparse
import atexit
import logging
import os
import pickle
import sys
import threading

import torch as t

annotated: int = 1


class Point:
    def __init__(self, x: int) -> None:
        self.x = x


def main() -> None:
    os.chdir("/")
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    print(sys.argv, __name__, sys.path[0], __file__, __package__, __spec__, __doc__)
    print(sorted(globals()), vars(sys.modules["__main__"]) is globals())
    print(
        pickle.loads(pickle.dumps(Point(3))).x,
        Point.__module__,
        [thread.name for thread in threading.enumerate()],
    )
    print("read", sys.stdin.read(), ascii(sys.stdin.encoding))
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int)
    parser.add_argument("words", nargs="*")
    args = parser.parse_args()
    print(args)
    atexit.register(print, "the end")
    model = t.nn.Linear(4, 4, device=args.device)
    optimizer = t.optim.SGD(model.parameters(), lr=0.1)
    t.nn.init.ones_(model.weight)
    for step in range(3):
        loss = model(t.ones(2, 4, device=args.device)).mean()
        loss.backward()
        optimizer.step()
        if args.device == "cpu":
            print(f"step {step}: {model.weight.sum().item():.4f}")
    logging.info("done")
    for line in range(20_000):
        print(line, "x" * 80)
    sys.stdout.buffer.write(b"\xff\x00 raw bytes without an end")


if __name__ == "__main__":
    main()
