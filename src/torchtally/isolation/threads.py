"""Which threads a run is made of: all but those that ran before it, the one it is in excepted."""

import threading


class OtherThreads:
    """Those that ran already when this was made."""

    def __init__(self) -> None:
        own = threading.current_thread()
        self._threads = {
            thread.ident: thread for thread in threading.enumerate() if thread is not own
        }

    @property
    def is_current(self) -> bool:
        """Whether the caller is in one of them."""
        ident = threading.get_ident()
        thread = self._threads.get(ident)
        if thread is None:
            return False
        if not thread.is_alive():  # its identifier is given to a new thread
            del self._threads[ident]
            return False
        return True
