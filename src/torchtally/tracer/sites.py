"""The sites of operators by number: a module and the lines of the script that called it there."""

import threading
from typing import Any

from torchtally.trace import Site
from torchtally.tracer.modules import Place
from torchtally.tracer.source import Stacks


class SiteTable:
    """Sites in the order in which they are met."""

    def __init__(self, stacks: Stacks) -> None:
        self.sites: list[Site] = []
        self.numbers: dict[Any, int] = {}
        self._stacks = stacks
        self._adding = threading.Lock()

    def number(self, place: Place, key: tuple[int, ...]) -> int:
        """The number of a site, known or new."""
        identity = (place.path, place.class_name, key)
        number = self.numbers.get(identity)
        if number is None:
            site = Site(place.path, place.class_name, self._stacks.frames(key))
            number = self.add(identity, site)
        return number

    def add(self, identity: Any, site: Site) -> int:
        """The number of a new site. Another thread may have added it, or others, meanwhile."""
        with self._adding:
            number = self.numbers.get(identity)
            if number is None:
                number = len(self.sites)
                self.sites.append(site)
                self.numbers[identity] = number
        return number
