"""Values that a script reads of tensors that have none: where, how often, and what for."""

import linecache
from types import CodeType, FrameType

from msgspec.structs import replace

from torchtally.errors import EndlessLoopError
from torchtally.trace import Frame, Placeholder, Use
from torchtally.tracer.departures import Departures, Exit
from torchtally.tracer.reads import use_of
from torchtally.tracer.source import Code, Stacks, asking_frame, classify_path, line_of, own_frame
from torchtally.tracer.texts import shown_file

LEFT = "left after"
"""Of what an unknown value ended."""

PLACEHOLDER_LIMIT = 10_000
"""Placeholders that a condition may read between two training steps."""

Read = tuple[Frame | None, str, str, Use]
"""Of the user's code, by which operator, what was given, and what for."""


class PlaceholderReads:
    """How often each was read."""

    def __init__(self, stacks: Stacks, limit: int) -> None:
        self.counts: dict[Read, int] = {}
        self._stacks, self._limit = stacks, limit
        self._reads: dict[tuple[int, int], tuple[Use, int, CodeType]] = {}
        """By code and instruction: what the value read there is for, and the line."""
        self._departures = Departures()
        self._own_files: dict[str, bool] = {}
        self._loop_reads: dict[tuple[int, int], tuple[int, int]] = {}
        """By code and line: training steps completed, and placeholders read there since then."""

    def facts(self) -> tuple[Placeholder, ...]:
        return tuple(
            Placeholder(frame, operator, value, count, use)
            for (frame, operator, value, use), count in self.counts.items()
        )

    def count(self, frame: FrameType, operator: str, value: str) -> None:
        """One more read; `watch` tells what the script does because of it."""
        reader = self._stacks.reader(frame)
        use = Use.NUMBER if reader is None else self._read_at(reader)[0]
        key = (own_frame(self._stacks, frame), operator, value, use)
        self.counts[key] = self.counts.get(key, 0) + 1

    def watch(self, frame: FrameType, operator: str) -> None:
        """Tell what the frame leaves because of a placeholder that it has read."""
        asking = asking_frame(frame)
        if asking is None:
            return
        is_own = self._is_own(asking.f_code)

        def left(at: FrameType, statement: Exit, rounds: int) -> None:
            own, code = own_frame(self._stacks, at), at.f_code
            text = linecache.getline(code.co_filename, statement.lineno).strip()
            given = f"{LEFT} {rounds:,} {'round' if rounds == 1 else 'rounds'}"
            if own is not None and is_own:
                own = replace(own, line=statement.lineno, text=text)
            else:
                given += f", in {shown_file(code.co_filename)}:{statement.lineno}: {text}"
            key = own, operator, given, Use.EXIT
            self.counts[key] = self.counts.get(key, 0) + 1

        self._departures.watch(asking, left, is_own=is_own)

    def _is_own(self, code: CodeType) -> bool:
        file = code.co_filename
        if file not in self._own_files:
            self._own_files[file] = classify_path(shown_file(file)) is Code.OWN
        return self._own_files[file]

    def _read_at(self, reader: FrameType) -> tuple[Use, int]:
        """What the value read by a frame is for, and the line that reads."""
        code, instruction = reader.f_code, reader.f_lasti
        place = (id(code), instruction)
        read = self._reads.get(place)
        if read is None:
            # The code is kept, so that no other gets its id.
            read = use_of(code, instruction), line_of(code, instruction), code
            self._reads[place] = read
        return read[:2]

    def watch_loop(self, frame: FrameType, value: str, steps: int) -> None:
        """Raise EndlessLoopError when a condition has read placeholders too often since so many
        training steps were completed.
        """
        reader = self._stacks.reader(frame)
        if reader is None:
            return
        use, line = self._read_at(reader)
        if use is not Use.BRANCH:
            return
        # By line: Python compiles the condition of a `while` twice, before the loop and at its end.
        place = id(reader.f_code), line
        step, reads = self._loop_reads.get(place, (steps, 0))
        reads = reads + 1 if step == steps else 1
        self._loop_reads[place] = steps, reads
        if reads > self._limit:
            raise endless_loop(reader, own_frame(self._stacks, frame), value, reads - 1)


def endless_loop(reader: FrameType, own: Frame | None, value: str, reads: int) -> EndlessLoopError:
    """The error for a condition that has read so many placeholders."""
    code = reader.f_code
    line = line_of(code, reader.f_lasti)
    source = linecache.getline(code.co_filename, line).strip()
    file = shown_file(code.co_filename)
    place = f"{file}:{line}"
    message = (
        f"{place}: `{source}` asked {reads:,} times without a training step in between for a value "
        f"that does not exist on the virtual GPU, and was given {value} each time: the loop may "
        "never end."
    )
    if own is not None and (own.file, own.line) != (file, line):
        message += f" It runs below {own.file}:{own.line}: `{own.text}`."
    return EndlessLoopError(
        f"{message}\nLimit the loop by a number of iterations (max_new_tokens, range), or allow "
        "more reads: --placeholder-limit N."
    )
