"""A packed program is the program: it writes the same runs."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tests.programs.families import FAMILIES, LAYERS, program_of_family, written_out
from torchtally.errors import ProgramError
from torchtally.models.config_symbols import symbols_of
from torchtally.programs import write
from torchtally.programs.checked import differences
from torchtally.programs.file import load_programs, save_programs
from torchtally.programs.packed import PackedProgram, PackedPrograms, pack

MODES = ("llama", "llama-autocast", "llama-checkpointed")
BYTES_OF_A_PROGRAM = 20_000


@pytest.fixture(scope="module")
def packed() -> PackedPrograms:
    return pack(map(program_of_family, MODES))


@pytest.fixture
def file(packed: PackedPrograms, tmp_path: Path) -> Path:
    path = tmp_path / "llama.programs"
    save_programs(packed, path)
    return path


@pytest.mark.parametrize("number", range(len(MODES)))
def test_it_writes_the_same_run(packed: PackedPrograms, number: int) -> None:
    name = MODES[number]
    sizes = symbols_of(FAMILIES[name].configuration).sizes | FAMILIES[name].asked
    written = write(packed.program(number), sizes, LAYERS)
    assert list(differences(written, written_out(name))) == []
    assert {site.line for site in written.sites} == {site.line for site in written_out(name).sites}


def test_programs_share_their_rows(packed: PackedPrograms, file: Path, tmp_path: Path) -> None:
    alone = [pack([program_of_family(name)]) for name in MODES]
    assert len(packed.calls) < sum(len(each.calls) for each in alone)
    sizes = []
    for each in alone:
        save_programs(each, tmp_path / "alone")
        sizes.append((tmp_path / "alone").stat().st_size)
    assert max(sizes) < BYTES_OF_A_PROGRAM
    assert file.stat().st_size < sum(sizes)


def test_a_file_is_read_as_it_was_written(packed: PackedPrograms, file: Path) -> None:
    assert load_programs(file, PackedPrograms) == packed


def test_every_damage_is_one_error(file: Path) -> None:
    whole = file.read_bytes()
    for place in (0, 30, 60, len(whole) // 2, len(whole) - 1):
        changed = bytearray(whole)
        changed[place] ^= 1
        for damaged in (bytes(changed), whole[:place]):
            file.write_bytes(damaged)
            with pytest.raises(ProgramError, match=r"llama\.programs: "):
                load_programs(file, PackedPrograms)


def test_another_format_is_named(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"format=1 ", b"format=2 "))
    with pytest.raises(ProgramError, match="programs of format 2, this torchtally reads 1"):
        load_programs(file, PackedPrograms)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"none\.programs: cannot be read \(No such file"):
        load_programs(tmp_path / "none.programs", PackedPrograms)


def test_columns_that_contradict_each_other_are_damage(packed: PackedPrograms) -> None:
    program = msgspec.msgpack.decode(packed.programs[0], type=PackedProgram)
    far = replace(program.ops, storages=(10**6, *program.ops.storages[1:]))
    longer = replace(program.ops, storages=(*program.ops.storages, 1))
    unknown = replace(program.ops, calls=(10**6, *program.ops.calls[1:]))
    for columns in (far, longer, unknown):
        raw = msgspec.Raw(msgspec.msgpack.encode(replace(program, ops=columns)))
        with pytest.raises(ProgramError, match="program 0 of the file is damaged"):
            replace(packed, programs=(raw,)).program(0)
