"""Checkpoints of a simulated run: shapes travel, bytes do not."""

import copy
import io
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import torchtally
from tests.traces import traced
from torchtally.errors import UnsupportedError
from torchtally.trace import EffectKind

MIB = 1024**2


def save_some(path: Path) -> None:
    with torchtally.virtual_gpu("H100-SXM"):
        torch.save({"weight": torch.randn(1024, 1024, device="cuda")}, path)


def test_a_checkpoint_goes_round(tmp_path: Path):
    path = tmp_path / "model.pt"
    with torchtally.virtual_gpu("H100-SXM"):
        model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(4, 2)).cuda()
        torch.save(model.state_dict(), path)
        loaded = torch.load(path)
        assert list(loaded) == ["0.weight", "0.bias", "1.weight", "1.bias"]
        assert all(t.is_cuda for t in loaded.values())
        assert loaded["0.weight"].shape == (1024, 1024)
        assert loaded["1.weight"].tolist() == model[1].weight.tolist()  # small: it has values
        assert loaded["0.weight"].data_ptr() != model[0].weight.data_ptr()
        model.load_state_dict(loaded)


def test_the_file_is_small(tmp_path: Path):
    path = tmp_path / "model.pt"
    with torchtally.virtual_gpu("H100-SXM"):
        torch.save(nn.Linear(8192, 8192, device="cuda").state_dict(), path)  # 256 MiB
    assert path.stat().st_size < 64 * 1024


def test_the_bytes_are_reported(tmp_path: Path):
    def script() -> None:
        torch.save({"w": torch.randn(1024, 1024, device="cuda")}, tmp_path / "w.pt")

    (file,) = traced(script).effects
    assert (file.kind, file.placeholder_bytes) == (EffectKind.WRITTEN, 4 * MIB)
    assert 4 * MIB < file.bytes < 4 * MIB + 2048


def test_shared_storages_are_loaded_as_one(tmp_path: Path):
    path = tmp_path / "tied.pt"
    with torchtally.virtual_gpu("H100-SXM"):
        w = torch.randn(1024, 1024, device="cuda")
        torch.save({"embed": w, "head": w, "row": w[3], "turned": w.t()}, path)
        before = torch.cuda.memory_allocated()
        loaded = torch.load(path)
        assert torch.cuda.memory_allocated() - before == 4 * MIB
        assert loaded["embed"].data_ptr() == loaded["head"].data_ptr()
        assert loaded["row"].data_ptr() == loaded["embed"].data_ptr() + 3 * 4096
        assert loaded["turned"].stride() == (1, 1024)


@pytest.mark.parametrize("location", ["cpu", torch.device("cpu"), {"cuda:0": "cpu"}])
def test_map_location_moves_what_is_loaded(tmp_path: Path, location):
    path = tmp_path / "w.pt"
    with torchtally.virtual_gpu("H100-SXM"):
        torch.save({"w": torch.randn(1024, 1024, device="cuda")}, path)
        before = torch.cuda.memory_allocated()
        assert torch.load(path, map_location=location)["w"].device.type == "cpu"
        assert torch.cuda.memory_allocated() == before


def test_map_location_cuda(tmp_path: Path):
    path = tmp_path / "w.pt"
    host = torch.arange(4.0)
    torch.save({"w": host, "step": 3}, path)  # written by a real run
    with torchtally.virtual_gpu("H100-SXM"):
        for location in ("cuda", "cuda:0", torch.device("cuda"), 0):
            loaded = torch.load(path, map_location=location)
            assert loaded["w"].is_cuda
            assert loaded["w"].tolist() == [0, 1, 2, 3]
            assert loaded["step"] == 3
        assert not torch.load(path)["w"].is_cuda
        moved = torch.load(path, map_location=lambda storage, location: storage)
        assert moved["w"].tolist() == [0, 1, 2, 3]


def as_if_written_on_a_gpu(source: Path, target: Path) -> None:
    """The same checkpoint, with the location a machine with a GPU notes for every storage."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for item in old.infolist():
            content = old.read(item)
            if item.filename.endswith("data.pkl"):
                content = content.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
            new.writestr(item.filename, content)


def test_a_real_runs_cuda_checkpoint_loads(tmp_path: Path):
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    torch.save({"w": torch.arange(4.0), "model": model}, tmp_path / "host.pt")
    path = tmp_path / "cuda.pt"
    as_if_written_on_a_gpu(tmp_path / "host.pt", path)
    with torchtally.virtual_gpu("H100-SXM"):
        for location in (None, "cuda", lambda storage, location: storage.cuda(0)):
            loaded = torch.load(path, map_location=location, weights_only=False)
            assert loaded["w"].is_cuda
            assert loaded["w"].tolist() == [0, 1, 2, 3]
            assert loaded["model"][0].weight.is_cuda
            assert loaded["model"][0].weight is loaded["model"][1].weight
            assert loaded["model"][0].weight.tolist() == model[0].weight.tolist()
        for location in ("cpu", {"cuda:0": "cpu"}, lambda storage, location: storage):
            loaded = torch.load(path, map_location=location, weights_only=False)
            assert loaded["w"].device.type == "cpu"
            assert loaded["w"].tolist() == [0, 1, 2, 3]


def test_resuming_with_an_optimizer(tmp_path: Path):
    """Model and optimizer after a save and a load go on as if nothing had been."""

    def new_pair() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Linear(3, 1).cuda()
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
        loss = model(torch.tensor([[1.0, 2.0, 3.0]], device="cuda")).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    path = tmp_path / "checkpoint.pt"
    with torchtally.virtual_gpu("H100-SXM"):
        model, optimizer = new_pair()
        losses = [step(model, optimizer) for _ in range(2)]
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 2,
             "rng": torch.get_rng_state(), "cuda_rng": torch.cuda.get_rng_state()},
            path,
        )  # fmt: skip
        expected = [step(model, optimizer) for _ in range(2)]
        assert losses[0] != losses[1]

        model, optimizer = new_pair()
        checkpoint = torch.load(path, map_location="cuda")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        assert checkpoint["step"] == 2
        state = optimizer.state_dict()["state"][0]
        assert state["exp_avg"].is_cuda
        assert state["step"].item() == 2
        assert [step(model, optimizer) for _ in range(2)] == pytest.approx(expected)


def test_a_whole_module_and_parameters_pickle(tmp_path: Path):
    with torchtally.virtual_gpu("H100-SXM"):
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).cuda()
        torch.save(model, tmp_path / "model.pt")
        loaded = torch.load(tmp_path / "model.pt", weights_only=False)
        assert isinstance(loaded[0].weight, nn.Parameter)
        assert loaded[0].weight.is_cuda
        assert loaded[0].weight.requires_grad
        assert loaded[0].weight.tolist() == model[0].weight.tolist()
        copied = pickle.loads(pickle.dumps(model))
        assert copied[0].weight.tolist() == model[0].weight.tolist()
        tensor = pickle.loads(pickle.dumps(torch.arange(3, device="cuda")))
        assert tensor.tolist() == [0, 1, 2]
        assert tensor.is_cuda


def test_views_of_small_tensors_keep_their_values(tmp_path: Path):
    with torchtally.virtual_gpu("H100-SXM"):
        x = torch.arange(6.0, device="cuda").view(2, 3)
        torch.save([x, x[1], x.t(), x[:, 1]], tmp_path / "views.pt")
        whole, row, turned, column = torch.load(tmp_path / "views.pt")
        assert whole.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert row.tolist() == [3, 4, 5]
        assert turned.tolist() == [[0, 3], [1, 4], [2, 5]]
        assert column.tolist() == [1, 4]
        row[0] = 9
        assert whole[1, 0].item() == 9


def test_saving_to_a_buffer():
    with torchtally.virtual_gpu("H100-SXM"):
        buffer = io.BytesIO()
        torch.save(torch.ones(2, device="cuda"), buffer)
        buffer.seek(0)
        assert torch.load(buffer).tolist() == [1, 1]


def test_host_tensors_are_saved_as_ever(tmp_path: Path):
    with torchtally.virtual_gpu("H100-SXM"):
        torch.save(torch.arange(5), tmp_path / "host.pt")
    assert torch.load(tmp_path / "host.pt").tolist() == [0, 1, 2, 3, 4]


def test_loading_outside_a_session_says_what_the_file_is(tmp_path: Path):
    save_some(tmp_path / "w.pt")
    with pytest.raises((UnsupportedError, pickle.UnpicklingError), match="simulated run"):
        torch.load(tmp_path / "w.pt", weights_only=False)


@pytest.mark.thorough
def test_loading_it_in_another_process_says_what_is_missing(tmp_path: Path):
    """`weights_only` there names our function, which says whose file this is."""
    save_some(tmp_path / "w.pt")
    code = f"import torch; torch.load({str(tmp_path / 'w.pt')!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode != 0
    assert "torchtally" in done.stderr


def test_a_file_of_one_session_loads_in_the_next(tmp_path: Path):
    save_some(tmp_path / "w.pt")
    with torchtally.virtual_gpu("A100-SXM"):
        loaded = torch.load(tmp_path / "w.pt")["weight"]
        assert loaded.is_cuda
        assert loaded.shape == (1024, 1024)
        assert torch.cuda.memory_allocated() == 4 * MIB


def test_a_failed_load_leaves_nothing_behind(tmp_path: Path):
    (tmp_path / "bad.pt").write_bytes(b"no checkpoint")
    with torchtally.virtual_gpu("H100-SXM"):
        with pytest.raises(Exception):  # noqa: B017, PT011 (whatever torch says)
            torch.load(tmp_path / "bad.pt", map_location="cuda")
        save = tmp_path / "w.pt"
        torch.save(torch.ones(1, device="cuda"), save)
        assert torch.load(save).is_cuda


def test_safetensors(tmp_path: Path):
    safetensors = pytest.importorskip("safetensors.torch")
    safe_open = pytest.importorskip("safetensors").safe_open
    with torchtally.virtual_gpu("H100-SXM"):
        tensors = {"w": torch.randn(1024, 1024, device="cuda"), "b": torch.ones(4, device="cuda")}
        path = tmp_path / "model.safetensors"
        safetensors.save_file(tensors, path)
        assert path.stat().st_size < 64 * 1024
        host = tmp_path / "host.safetensors"
        safetensors.save_file({"x": torch.arange(4.0)}, host)
        with pytest.raises(UnsupportedError, match="bytes"):
            safetensors.save(tensors)
        loaded = safetensors.load_file(path)
        assert loaded["w"].shape == (1024, 1024)
        loaded = safetensors.load_file(host, device="cuda")
        assert loaded["x"].is_cuda
        assert loaded["x"].tolist() == [0, 1, 2, 3]
        assert safetensors.load_file(host)["x"].tolist() == [0, 1, 2, 3]
        with safe_open(host, framework="pt", device="cuda") as file:
            assert file.get_tensor("x").is_cuda
            assert file.get_slice("x")[1:3].tolist() == [1, 2]
    assert safetensors.load_file(host)["x"].tolist() == [0, 1, 2, 3]


def test_a_model_with_a_big_host_copy_saves(tmp_path: Path):
    """An exponential moving average kept on the host."""
    with torchtally.virtual_gpu("H100-SXM"):
        model = nn.Linear(1024, 1024).cuda()
        average = copy.deepcopy(model).cpu()
        torch.save(average.state_dict(), tmp_path / "ema.pt")
        loaded = torch.load(tmp_path / "ema.pt")
        assert loaded["weight"].device.type == "cpu"
        assert isinstance(loaded["weight"], Tensor)
    assert os.path.getsize(tmp_path / "ema.pt") < 64 * 1024


def test_files_of_safetensors_are_opened_tensor_by_tensor(tmp_path: Path):
    """As transformers reads a checkpoint that the same run has saved."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    path = tmp_path / "model.safetensors"
    with torchtally.virtual_gpu("H100-SXM"):
        from safetensors import safe_open as opened_inside

        weights = {"b": torch.randn(8, 4, device="cuda"), "a": torch.zeros(3).cuda().bfloat16()}
        save_file(weights, path, metadata={"format": "pt"})
        with opened_inside(path, framework="pt", device="cuda") as file:
            assert file.keys() == ["a", "b"]
            assert file.offset_keys() == ["b", "a"]
            assert file.metadata() == {"format": "pt"}
            assert file.get_tensor("b").shape == (8, 4)
            part = file.get_slice("b")
            assert (part.get_shape(), part.get_dtype()) == ([8, 4], "F32")
            assert part[2:4].shape == (2, 4)
            assert file.get_slice("a").get_dtype() == "BF16"
        assert set(load_file(path)) == {"a", "b"}
    save_file({"x": torch.ones(2)}, path)
    with torchtally.virtual_gpu("H100-SXM"), safe_open(path, "pt") as real:
        assert real.get_tensor("x").tolist() == [1, 1]
