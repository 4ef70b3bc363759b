"""Whether Python itself called the factory that is running: then its device is the one named.

A factory that torch calls in C++ takes its device from a tensor (`x.options()`), and a virtual
tensor's is "meta" there.
"""

import threading


class Asking(threading.local):
    """How many factories called from Python this thread is inside of."""

    depth = 0


ASKING = Asking()
