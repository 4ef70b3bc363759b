"""Nsight Systems' exports: what lies in what, which operator launched which kernel."""

import math
import sqlite3
from pathlib import Path

import pytest

from tests.profiles.nsys_files import COPY, GRAPH, OTHER_PID, SET, US, ExportMaker, linear_step
from torchtally.errors import TraceFileError
from torchtally.profiles import Profile, is_nsys, read_nsys
from torchtally.profiles.profile import ANY_ARGUMENT, ANY_TENSOR


def profile(tmp_path: Path, content: ExportMaker) -> Profile:
    return read_nsys(str(content.write(tmp_path / "report.sqlite")))


def test_a_kernel_belongs_to_the_innermost_range_around_its_launch(tmp_path: Path) -> None:
    read_profile = profile(tmp_path, linear_step())
    names = [read_profile.operators[each.operator].name for each in read_profile.activities]
    assert names == ["aten::mm", "aten::mm", "aten::mm", "aten::mul_"]
    forward = read_profile.operators[read_profile.activities[0].operator]
    assert read_profile.operators[forward.parent].name == "aten::linear"
    assert forward.sequence == 5
    assert [each.launched_us for each in read_profile.activities] == [20, 115, 150, 320]
    assert sum(each.duration_us for each in read_profile.activities) == pytest.approx(610)
    assert {each.name for each in read_profile.annotations} == {"step 3", "Optimizer.step#SGD.step"}


def test_sizes_are_shapes_without_types(tmp_path: Path) -> None:
    read_profile = profile(tmp_path, linear_step())
    update = next(each for each in read_profile.operators if each.name == "aten::mul_")
    arguments = read_profile.arguments[update.arguments]
    assert arguments.shapes == ((4096, 4096), ())
    assert arguments.types == (ANY_TENSOR, ANY_ARGUMENT)
    assert read_profile.has_shapes
    assert not read_profile.has_strides


def test_the_gpu_is_the_one_that_the_process_calls_its_first(tmp_path: Path) -> None:
    read_profile = profile(tmp_path, linear_step())
    (device,) = read_profile.devices
    assert (device.number, device.name, device.multiprocessors) == (3, "NVIDIA H100 80GB HBM3", 132)
    assert {each.device for each in read_profile.activities} == {3}


def test_copies_memsets_and_graphs_are_activities(tmp_path: Path) -> None:
    maker = linear_step()
    maker.launched(COPY, 500, 720, 4, 1 << 20, 1, by="cudaMemcpyAsync_v3020")
    maker.launched(SET, 510, 730, 2, 0, 64, by="cudaMemsetAsync_v3020_ptsz")
    maker.launched(GRAPH, 520, 740, 50, 9, by="cudaGraphLaunch_v10000")
    maker.call("cudaStreamSynchronize_v3020", 530, 300)
    read_profile = profile(tmp_path, maker)
    copy, memset, graph = read_profile.activities[4:]
    assert (copy.name, copy.kind, copy.bytes) == ("Memcpy HtoD", "memcpy", 1 << 20)
    assert (memset.kind, memset.bytes) == ("memset", 64)
    assert (graph.name, graph.is_in_graph) == ("CUDA graph", True)
    assert sum(each.duration_us for each in read_profile.activities) == pytest.approx(
        610 + 4 + 2 + 50
    )
    ((name, start_us, end_us, _),) = read_profile.waits
    assert (name, start_us, end_us) == ("cudaStreamSynchronize", 530, 830)


def test_the_busiest_process_is_read_and_the_rest_is_said(tmp_path: Path) -> None:
    maker = linear_step()
    maker.correlations = 0  # a process of its own counts from one again
    maker.kernel("elsewhere", 20, 30, 100, pid=OTHER_PID)
    read_profile = profile(tmp_path, maker)
    assert sum(each.duration_us for each in read_profile.activities) == pytest.approx(610)
    ((_, activities, duration_us),) = read_profile.left_out
    assert (activities, duration_us) == (1, pytest.approx(100))


def test_parquet_gives_the_same(tmp_path: Path) -> None:
    maker = linear_step()
    one = profile(tmp_path, maker)
    folder = maker.write_parquet(tmp_path / "report_pqtdir")
    assert is_nsys(str(folder))
    other = read_nsys(str(folder))
    assert (one.operators, one.activities) == (other.operators, other.activities)
    assert (one.arguments, one.devices) == (other.arguments, other.devices)


def test_columns_of_an_old_version_are_enough(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT)")
        connection.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (0, {5 * US})")
    connection.close()
    (activity,) = read_nsys(str(path)).activities
    assert (activity.name, activity.duration_us) == ("unnamed", 5)
    assert math.isnan(activity.launched_us)


def test_the_file_and_its_folder_are_left_alone(tmp_path: Path) -> None:
    path = linear_step().write(tmp_path / "report ?#%41.sqlite")
    before = path.read_bytes()
    assert is_nsys(str(path))
    read_nsys(str(path))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("size", [0, 15, 100, 1000, 4096, 9000])
def test_a_file_cut_short_is_one_error(tmp_path: Path, size: int) -> None:
    path = linear_step().write(tmp_path / "report.sqlite")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(TraceFileError, match=r"report.sqlite: "):
        read_nsys(str(path))


def test_changed_bytes_are_one_error_or_leave_something_to_read(tmp_path: Path) -> None:
    path = linear_step().write(tmp_path / "report.sqlite")
    whole = path.read_bytes()
    outcomes = set()
    for place in range(0, len(whole), 397):
        path.write_bytes(whole[:place] + b"\xff" * 8 + whole[place + 8 :])
        try:
            profile_read = read_nsys(str(path))
        except TraceFileError:
            outcomes.add("error")
        else:
            outcomes.add("read" if profile_read.activities or profile_read.operators else "nothing")
    assert outcomes == {"error", "read"}


def test_hostile_schemas_are_not_run(tmp_path: Path) -> None:
    """A view that never ends, in the place of a table; texts in the place of times."""
    path = tmp_path / "report.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE VIEW NVTX_EVENTS AS WITH RECURSIVE n(start) AS "
            "(SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT start FROM n"
        )
        connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, demangledName)")
        connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ('x', 1e300, x'ff')")
        connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (2000, 1000, 'back')")
        connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000, 3000, 'k')")
    connection.close()
    profile_read = read_nsys(str(path))
    assert [(each.name, each.duration_us) for each in profile_read.activities] == [("k", 2)]
    assert profile_read.unreadable == 2


@pytest.mark.parametrize(
    "sizes", ["[[2], [3]", "[" * 5000, "[[-1]]", '["x"]', "7", "[[1e99]]", "[[[1]]]"]
)
def test_sizes_that_are_none_leave_an_operator_without_shapes(tmp_path: Path, sizes: str) -> None:
    maker = ExportMaker()
    maker.range(f"aten::relu, op_id = 3, sizes = {sizes}", 0, 10)
    maker.kernel("k", 2, 5, 1)
    read_profile = profile(tmp_path, maker)
    (operator,) = read_profile.operators
    assert operator.name == "aten::relu"
    assert len(read_profile.activities) == 1


def test_what_is_no_export_says_how_to_make_one(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE something (x)")
    connection.close()
    with pytest.raises(TraceFileError, match="nsys export --type sqlite"):
        read_nsys(str(path))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(TraceFileError, match="damaged or cut short"):
        read_nsys(str(folder))
    with pytest.raises(TraceFileError, match="no kernels or operators"):
        read_nsys(str(empty(tmp_path)))


def test_a_schema_whose_text_is_damaged_is_one_error(tmp_path: Path) -> None:
    path = empty(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"KERNEL (start", b"KERNEL \xe0start"))
    with pytest.raises(TraceFileError, match="damaged or cut short"):
        read_nsys(str(path))


def test_a_report_that_was_not_exported_says_how(tmp_path: Path) -> None:
    path = tmp_path / "report.nsys-rep"
    path.write_bytes(b"anything")
    assert is_nsys(str(path))
    with pytest.raises(TraceFileError, match=r"nsys export --type sqlite .*report.nsys-rep"):
        read_nsys(str(path))


def empty(tmp_path: Path) -> Path:
    path = tmp_path / "empty.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end)")
    connection.close()
    return path
