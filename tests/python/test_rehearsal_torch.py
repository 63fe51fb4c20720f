"""The simulated device of torch: its tensors are what they are on the CPU, and as late as those of a device."""

from __future__ import annotations

import copy
import io
import json
import pickle
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from device_process import DeviceProcess, held
from isthmus import launch, rehearse
from patience import patient
from ranks import RUNNER, by_value, forked
from vendor_files import DEVICES, LIBRARIES, Library

pytestmark = pytest.mark.computes

DEVICE = "rehearsal"
TOGETHER = "torch devices"


@pytest.fixture(scope="module")
def there() -> Iterator[DeviceProcess]:
    """A process with two devices; it must end well after all tests."""
    process = DeviceProcess()
    yield process
    status, said = process.end()
    assert status == 0 and "misuse" not in said, said


@pytest.fixture(scope="module")
def late() -> Iterator[DeviceProcess]:
    """One whose device takes 60 ms for everything, and has two hardware queues."""
    process = DeviceProcess({"LATENCY_US": "60000", "QUEUES": "2"})
    yield process
    status, said = process.end()
    assert status == 0 and "misuse" not in said, said


def run(code: str) -> None:
    exec(compile(code, "<code>", "exec"), {"__name__": "__main__"})


def alone(code: str, fresh: bool = False, **env: str) -> launch.Result:
    """Code in a process of its own, with the device registered. With `fresh` in an interpreter that has just begun."""
    head = "import torch\nfrom isthmus import rehearsal_torch\nrehearsal_torch.register()\n"
    variables = {"LD_LIBRARY_PATH": str(rehearse.folder().resolve() / "nvidia"), "REHEARSAL_QUIET": "1", **env}
    with tempfile.TemporaryDirectory(prefix="isthmus-alone-") as folder:
        Path(folder, "task").write_bytes(by_value((run, (head + textwrap.dedent(code),), False)))
        with forked(("torch_preloaded",), fresh):
            job = launch.start([sys.executable, str(RUNNER), folder], 1, env=variables)
        with job:
            return job.wait(patient(120))[0]


# ---- what it is ----


def test_the_device_says_that_it_is_simulated(there: DeviceProcess) -> None:
    def body() -> None:
        assert torch.rehearsal.IS_SIMULATION and torch.rehearsal.vendor() == "cuda"
        assert "Simulated" in torch.rehearsal.get_device_name()
        assert torch.rehearsal.is_available() and torch.rehearsal.device_count() == 2
        assert torch.accelerator.current_accelerator() == torch.device("rehearsal")

    there(body)


def test_registering_twice_changes_nothing(there: DeviceProcess) -> None:
    def body() -> None:
        from isthmus import rehearsal_torch

        assert rehearsal_torch.register() == rehearsal_torch.register() == torch.device("rehearsal")

    there(body)


def test_importing_it_loads_neither_torch_nor_a_driver() -> None:
    code = "import sys, isthmus.rehearsal_torch; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=patient(60)).returncode == 0


def test_without_a_simulated_vendor_it_says_how_to_get_one() -> None:
    ended = alone("", LD_LIBRARY_PATH="")
    assert ended.returncode != 0 and "isthmus rehearse --fleet" in ended.stderr
    said = "isthmus._errors.Error: rehearsal: this process finds no simulated vendor"
    assert ended.stderr.splitlines()[-1].startswith(said), ended.stderr


@pytest.mark.parametrize(
    "driver", [library for library in LIBRARIES if library.name in DEVICES], ids=lambda library: library.file
)
def test_with_a_real_driver_it_refuses_to_start(tmp_path: Path, driver: Library) -> None:
    """What the loader finds has the driver's name and its functions, and does not stand on the rehearsal's engine."""
    driver.build(tmp_path / driver.file)
    ended = alone("print('registered')", LD_LIBRARY_PATH=str(tmp_path))
    assert ended.returncode != 0 and not ended.stdout, ended.stdout
    refused = "isthmus._errors.Error: rehearsal: the driver that this process finds is a real one"
    assert ended.stderr.splitlines()[-1].startswith(refused), ended.stderr


def test_the_memory_is_the_drivers_and_the_host_cannot_touch_it(there: DeviceProcess) -> None:
    def body() -> None:
        import ctypes

        x = torch.arange(100.0, device=f"{DEVICE}:1")[7:]
        driver = ctypes.CDLL("libcuda.so.1")
        kind, ordinal = ctypes.c_uint(), ctypes.c_int(-1)
        assert driver.cuPointerGetAttribute(ctypes.byref(kind), 2, ctypes.c_uint64(x.data_ptr())) == 0
        assert driver.cuPointerGetAttribute(ctypes.byref(ordinal), 9, ctypes.c_uint64(x.data_ptr())) == 0
        assert (kind.value, ordinal.value) == (2, 1)
        assert torch.empty(0, device=DEVICE).data_ptr() == 0

    there(body)
    ended = alone("import ctypes\nctypes.string_at(torch.ones(4, device='rehearsal').data_ptr(), 1)")
    assert ended.returncode == -11


# ---- copies ----

TYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


def test_every_type_goes_there_and_back(there: DeviceProcess) -> None:
    def body() -> None:
        for dtype in TYPES:
            x = (torch.arange(60).reshape(3, 4, 5) % (2 if dtype == torch.bool else 60)).to(dtype)
            y = x.to(DEVICE)
            assert y.device == torch.device(DEVICE, 0) and y.dtype == dtype
            back = y.cpu()
            assert back.view(torch.uint8).equal(x.view(torch.uint8)), dtype
            assert y.clone().cpu().view(torch.uint8).equal(x.view(torch.uint8)), dtype

    there(body)


def test_views_and_strides_copy_as_on_the_cpu(there: DeviceProcess) -> None:
    def body() -> None:
        views = [
            lambda t: t, lambda t: t.t(), lambda t: t[1:], lambda t: t[:, 2:5], lambda t: t[::2, ::3], lambda t: t[3],
            lambda t: t[:, 3], lambda t: t.t()[1:4, ::2], lambda t: t.unfold(1, 3, 2), lambda t: t.diagonal(),
            lambda t: t.reshape(2, 4, 6)[:, :, 1], lambda t: t.view(-1)[5:29], lambda t: t[0:0], lambda t: t[2, 2],
        ]  # fmt: skip
        base = torch.arange(48.0).reshape(8, 6)
        for n, view in enumerate(views):
            device = base.to(DEVICE)
            assert view(device).cpu().equal(view(base)), n  # out
            assert view(device).contiguous().cpu().equal(view(base)), n
            if n == 8:
                continue  # its elements lie on each other
            host = base.clone()
            new = torch.randn(view(base).shape)
            view(host).copy_(new)
            view(device).copy_(new)  # in
            assert device.cpu().equal(host), n
            other = torch.zeros(8, 6, device=DEVICE)
            view(other).copy_(view(device))  # within
            expected = torch.zeros(8, 6)
            view(expected).copy_(view(host))
            assert other.cpu().equal(expected), n

    there(body)


def test_a_copy_writes_nothing_between_the_elements_of_a_view(there: DeviceProcess) -> None:
    """Two streams write into the even and the odd columns; many pieces are copied as one, few are not."""

    def body() -> None:
        x = torch.zeros(8, 10, device=DEVICE)
        streams = [torch.Stream(device=DEVICE) for _ in range(2)]
        for n, stream in enumerate(streams):
            with stream:
                x[:, n::2].copy_(torch.full((8, 5), n + 1.0))
        torch.accelerator.synchronize()
        assert x.cpu().equal(torch.tensor([1.0, 2.0]).repeat(8, 5))
        many = torch.zeros(1000, 3)
        there_ = many.to(DEVICE)
        there_[:, 1] = torch.arange(1000.0)
        many[:, 1] = torch.arange(1000.0)
        assert there_.cpu().equal(many)

    there(body)


def test_copies_convert_types_and_expand(there: DeviceProcess) -> None:
    def body() -> None:
        x = torch.tensor([1.5, -2.5, 300.25])
        for dtype in (torch.int32, torch.float16, torch.bfloat16, torch.complex64, torch.float64):
            assert x.to(DEVICE).to(dtype).cpu().equal(x.to(dtype))
            assert x.to(DEVICE, dtype).cpu().equal(x.to(dtype))
            assert x.to(DEVICE).to("cpu", dtype).equal(x.to(dtype))
        y = torch.zeros(4, 3, device=DEVICE)
        y.copy_(x)
        assert y.cpu().equal(x.expand(4, 3))
        y.copy_(x.to(DEVICE).expand(4, 3).to(torch.float64))
        assert y.cpu().equal(x.expand(4, 3))
        assert x.to(DEVICE).expand(4, 3).cpu().equal(x.expand(4, 3))
        with pytest.raises(RuntimeError):
            y.copy_(torch.zeros(5))

    there(body)


def test_conjugate_and_negative_views_copy(there: DeviceProcess) -> None:
    def body() -> None:
        x = torch.randn(4, 3, dtype=torch.complex64)
        y = x.to(DEVICE)
        assert y.conj().cpu().equal(x.conj())
        assert y.conj().clone().cpu().equal(x.conj())
        assert y.conj().imag.cpu().equal(x.conj().imag)
        z = torch.empty_like(y)
        z.conj().copy_(y)
        assert z.cpu().equal(x.conj().resolve_conj())
        assert (y.conj() * 2).cpu().equal(x.conj() * 2)
        assert torch.view_as_real(y).cpu().equal(torch.view_as_real(x))
        assert torch.view_as_complex(torch.view_as_real(y)).cpu().equal(x)

    there(body)


def test_copies_between_two_devices(there: DeviceProcess) -> None:
    def body() -> None:
        x = torch.arange(1000.0)
        y = x.to("rehearsal:0").to("rehearsal:1")
        assert y.device.index == 1 and y.cpu().equal(x)
        y[::2] = x.to("rehearsal:0")[::2] * 2
        x[::2] *= 2
        assert y.cpu().equal(x)
        with pytest.raises(RuntimeError, match="same device"):
            y + x.to("rehearsal:0")
        with torch.rehearsal.device(1):
            assert torch.ones(2, device=DEVICE).device.index == 1
        assert torch.ones(2, device=DEVICE).device.index == 0
        with pytest.raises(RuntimeError, match="no device 7"):
            torch.ones(2, device="rehearsal:7")

    there(body)


def test_overlapping_copies_are_refused(there: DeviceProcess) -> None:
    def body() -> None:
        x = torch.arange(10.0, device=DEVICE)
        with pytest.raises(RuntimeError, match="single memory location"):
            x[1:].copy_(x[:-1])
        with pytest.raises(RuntimeError, match="single memory location"):
            x[:1].expand(4).copy_(torch.ones(4))
        x.copy_(x)
        assert x.cpu().equal(torch.arange(10.0))

    there(body)


def test_copies_from_pinned_memory_return_before_they_are_done(late: DeviceProcess) -> None:
    def body() -> None:
        host = torch.arange(1000.0).pin_memory()
        assert host.is_pinned() and not torch.arange(3.0).is_pinned()
        stream = torch.accelerator.current_stream()
        device = torch.empty(1000, device=DEVICE)
        back = torch.zeros(1000).pin_memory()
        with held(stream):
            device.copy_(host, non_blocking=True)
            back.copy_(device, non_blocking=True)
            assert not stream.query()
            assert not back.equal(host)
        stream.synchronize()
        assert back.equal(host)
        pageable = torch.zeros(1000)
        pageable.copy_(device, non_blocking=True)  # waits
        assert pageable.equal(host)
        del back  # so that there is pinned memory to give out
        with held(stream):
            pinned = device.to("cpu", non_blocking=True)  # does not: torch makes it pinned
            assert pinned.is_pinned() and not stream.query()
        stream.synchronize()
        assert pinned.equal(host)
        device.copy_(host * 2)
        assert device.cpu().equal(host * 2)

    late(body)


def test_pinned_memory_is_not_given_out_again_while_a_copy_reads_it(late: DeviceProcess) -> None:
    def body() -> None:
        device = torch.empty(5000, device=DEVICE)
        stream = torch.accelerator.current_stream()
        for n in range(3):
            host, spare = torch.full((5000,), float(n)).pin_memory(), torch.empty(5000).pin_memory()
            address = host.data_ptr()
            with held(stream):
                device.copy_(host, non_blocking=True)
                del spare, host
                assert torch.zeros(5000).pin_memory().fill_(99.0).data_ptr() != address
                assert not stream.query()
            assert device.cpu().unique().tolist() == [float(n)]

    late(body)


# ---- views and sizes ----


def test_writing_through_a_view_changes_the_base(there: DeviceProcess) -> None:
    def body() -> None:
        def work(x: torch.Tensor) -> torch.Tensor:
            x[1:3, 1:3].fill_(9)
            x.diagonal().add_(1)
            x.view(-1)[::5].mul_(2)
            x.t()[0].zero_()
            x[x > 12] = -1
            x.unsqueeze(0).squeeze(0).narrow(0, 2, 1).sub_(3)
            x[[0, 2]] = x[[2, 0]]
            x.chunk(2)[1].relu_()
            x.as_strided((2, 2), (5, 1), 3).neg_()
            x.unfold(0, 2, 2)[0].mul_(3)
            x.split(2, dim=1)[0].copy_(x.split(2, dim=1)[1])
            return x

        assert work(torch.arange(24.0).reshape(4, 6).to(DEVICE)).cpu().equal(work(torch.arange(24.0).reshape(4, 6)))

    there(body)


def test_tensors_and_storages_resize_and_keep_what_they_hold(there: DeviceProcess) -> None:
    def body() -> None:
        x = torch.arange(6.0, device=DEVICE)
        x.resize_(2, 2)
        assert x.cpu().tolist() == [[0.0, 1.0], [2.0, 3.0]]
        x.resize_(500)
        assert x[:4].cpu().tolist() == [0.0, 1.0, 2.0, 3.0] and x.untyped_storage().nbytes() == 2000
        x.untyped_storage().resize_(16)
        assert x.untyped_storage().nbytes() == 16
        x.untyped_storage().resize_(0)
        assert x.untyped_storage().data_ptr() == 0
        y = torch.empty(0, device=DEVICE)
        torch.add(torch.ones(3, device=DEVICE), 1, out=y)
        assert y.cpu().tolist() == [2.0, 2.0, 2.0]
        z = torch.empty(2, 3, 4, 5, device=DEVICE).to(memory_format=torch.channels_last)
        assert z.is_contiguous(memory_format=torch.channels_last)
        z.set_(y)
        assert z.data_ptr() == y.data_ptr()
        z.set_()
        assert z.numel() == 0
        y.data = torch.ones(2)
        assert y.device.type == "cpu"

    there(body)


# ---- arithmetic ----


def test_arithmetic_is_the_cpus_to_the_bit(there: DeviceProcess) -> None:
    def body() -> None:
        def work(device: str) -> list[torch.Tensor]:
            torch.manual_seed(5)
            a, b = torch.randn(33, 17, device=device), torch.randn(17, 9, device=device)
            out = torch.empty(33, 9, device=device)
            torch.matmul(a, b, out=out)
            values, places = a.sort(dim=1)
            x = torch.zeros(33, 17, device=device).index_add_(0, torch.tensor([3, 3, 5], device=device), a[:3])
            return [
                a, out, a.sum(1), a.softmax(0), values, places, a.topk(3).values, torch.cat([a, a * 2]), x,
                a.max(1).indices, a.cumsum(0), torch.where(a > 0, a, b.sum()), torch.linalg.svd(b).S, a.std(), a.norm(),
                torch.fft.rfft(a), a.half().float(), torch.arange(5, device=device) // 2, torch.randperm(11, device=device),
                torch.nn.functional.dropout(a, 0.3), torch.nn.functional.one_hot(torch.arange(4, device=device)),
                torch.nonzero(a > 1), a[a > 1], a.nan_to_num(), torch.empty(3, 3, device=device).uniform_(),
                a.bernoulli(0.5), torch.stack([a, a]), torch.einsum("ij,jk->ik", a, b), torch.full((3,), 7, device=device),
                torch.linspace(0, 1, 7, device=device),
                *torch._foreach_mul([a, b], 3.0), a.masked_fill(a < 0, 0), a.roll(3, 0), a.flip(0), torch.tril(a),
            ]  # fmt: skip

        for n, (ours, cpus) in enumerate(zip(work(DEVICE), work("cpu"), strict=True)):
            assert ours.device.type == DEVICE and ours.dtype == cpus.dtype and ours.stride() == cpus.stride(), n
            assert ours.cpu().equal(cpus), n
        x = torch.tensor([2.5], device=DEVICE)
        assert x.item() == 2.5 and float(x) == 2.5 and x.tolist() == [2.5] and bool(x > 2) and "2.5" in repr(x)

    there(body)


def test_gradients_are_the_cpus(there: DeviceProcess) -> None:
    def body() -> None:
        def work(device: str) -> list[torch.Tensor]:
            torch.manual_seed(1)
            x = torch.randn(2, 3, 8, 8, device=device, requires_grad=True)
            layer = torch.nn.Conv2d(3, 4, 3, padding=1).to(device)
            up = torch.nn.ConvTranspose2d(4, 2, 2, stride=2, bias=False).to(device)
            y = up(torch.nn.functional.max_pool2d(layer(x).relu(), 2))
            (y * y).mean().backward()
            w = torch.randn(5, device=device, requires_grad=True)
            (second,) = torch.autograd.grad((torch.autograd.grad((w**3).sum(), w, create_graph=True)[0] ** 2).sum(), w)
            return [y, x.grad, layer.weight.grad, layer.bias.grad, up.weight.grad, second]

        for n, (ours, cpus) in enumerate(zip(work(DEVICE), work("cpu"), strict=True)):
            assert ours.cpu().equal(cpus), n

    there(body)


# ---- training ----


def network() -> torch.nn.Module:
    nn = torch.nn
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1),
        nn.Linear(144, 32), nn.GELU(), nn.LayerNorm(32), nn.GroupNorm(4, 32), nn.Linear(32, 10),
    )  # fmt: skip


def train(device: str, optimizer: str, steps: int = 4, **options: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
    torch.manual_seed(11)
    model = network()
    before = list(model.parameters())
    chosen = getattr(torch.optim, optimizer)(model.parameters(), lr=0.05, **options)
    model.to(device)
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True)), "the optimizer lost its parameters"
    losses = []
    for _ in range(steps):
        x, y = torch.randn(16, 64).to(device), torch.randint(10, (16,)).to(device)
        chosen.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        chosen.step()
        losses.append(loss.item())
    return losses, {name: value.cpu() for name, value in model.state_dict().items()}


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        ("SGD", {"momentum": 0.9, "foreach": False}),
        ("SGD", {"momentum": 0.9, "foreach": True}),
        ("AdamW", {"foreach": False}),
        ("AdamW", {"foreach": True}),
        ("AdamW", {"fused": True}),
    ],
)
def test_a_network_trains_to_the_cpus_loss_to_the_bit(there: DeviceProcess, optimizer: str, options: dict[str, Any]) -> None:
    def body() -> None:
        ours, cpus = train(DEVICE, optimizer, **options), train("cpu", optimizer, **options)
        assert ours[0] == cpus[0]
        for name, value in cpus[1].items():
            assert ours[1][name].equal(value), name

    there(body)


def test_a_transformer_trains_as_on_the_cpu(there: DeviceProcess) -> None:
    def body() -> None:
        def work(device: str) -> float:
            torch.manual_seed(2)
            model = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0)
            embedding = torch.nn.Embedding(20, 16)
            model.to(device), embedding.to(device)
            optimizer = torch.optim.Adam([*model.parameters(), *embedding.parameters()])
            loss = torch.zeros(())
            for _ in range(3):
                loss = model(embedding(torch.arange(20, device=device).view(4, 5))).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            return loss.item()

        assert abs(work(DEVICE) - work("cpu")) < 1e-6

    there(body)


def test_batches_of_a_data_loader_go_there(there: DeviceProcess) -> None:
    def body() -> None:
        data = torch.utils.data.TensorDataset(torch.arange(20.0).view(10, 2), torch.arange(10))
        for workers, pin in ((0, False), (0, True), (2, True)):
            seen = []
            for x, y in torch.utils.data.DataLoader(data, batch_size=4, num_workers=workers, pin_memory=pin):
                assert x.is_pinned() == pin
                x, y = x.to(DEVICE, non_blocking=True), y.to(DEVICE, non_blocking=True)
                assert x.sum().item() == float(x.cpu().sum())
                seen += y.tolist()
            assert seen == list(range(10))

    there(body)


# ---- saving ----


def test_models_are_saved_loaded_and_copied(there: DeviceProcess) -> None:
    def body() -> None:
        model = network().to(DEVICE)
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        for where in (None, "cpu", DEVICE, "rehearsal:1"):
            file.seek(0)
            state = torch.load(file, map_location=where, weights_only=True)
            expected = {None: "rehearsal:0", DEVICE: "rehearsal:0"}.get(where, where)
            assert all(str(value.device) == expected for value in state.values())
            fresh = network().to(DEVICE)
            fresh.load_state_dict(state)
            for a, b in zip(fresh.state_dict().values(), model.state_dict().values(), strict=True):
                assert a.device.type == DEVICE and a.cpu().equal(b.cpu())
        file = io.BytesIO()
        torch.save(network().state_dict(), file)
        file.seek(0)
        assert all(v.device.type == DEVICE for v in torch.load(file, map_location=DEVICE).values())

        x = torch.arange(6.0, device=DEVICE).view(2, 3)
        pair = {"whole": x, "part": x[1]}
        for again in (pickle.loads(pickle.dumps(pair)), copy.deepcopy(pair)):
            assert again["whole"].device == x.device and again["whole"].cpu().equal(x.cpu())
        shared = copy.deepcopy(pair)
        shared["part"].fill_(8.0)
        assert shared["whole"][1].cpu().tolist() == [8.0] * 3 and x[1].cpu().tolist() == [3.0, 4.0, 5.0]
        twin = copy.deepcopy(model)
        assert all(p.device.type == DEVICE for p in twin.parameters())
        assert x.untyped_storage().cpu().nbytes() == 24

    there(body)


# ---- streams and events ----


def test_a_stream_does_its_work_in_order_and_others_do_not_wait(late: DeviceProcess) -> None:
    def body() -> None:
        x = torch.zeros(100, device=DEVICE)
        torch.accelerator.synchronize()
        sources = [torch.full((100,), n).pin_memory() for n in (5.0, 3.0, 1.0)]
        busy, other = torch.Stream(device=DEVICE), torch.Stream(device=DEVICE)
        assert busy != other and busy.native_handle != other.native_handle != 0
        with held(busy):
            with busy:
                assert torch.accelerator.current_stream() == busy
                for source in sources:
                    x.copy_(source, non_blocking=True)
                assert not busy.query()
            assert torch.accelerator.current_stream() != busy
            other.synchronize()
            assert other.query() and not busy.query()
        busy.synchronize()
        assert x.cpu().equal(sources[-1])

    late(body)


def test_events_order_streams_and_tell_the_time(late: DeviceProcess) -> None:
    def body() -> None:
        source = torch.arange(100.0).pin_memory()
        x, y = torch.zeros(100, device=DEVICE), torch.zeros(100, device=DEVICE)
        torch.accelerator.synchronize()
        first, second = torch.Stream(device=DEVICE), torch.Stream(device=DEVICE)
        begin, end = (torch.Event(DEVICE, enable_timing=True) for _ in range(2))
        assert begin.query()
        with held(first):
            with first:
                begin.record()
                x.copy_(source, non_blocking=True)
                end.record()
            assert not end.query()
            with second:
                second.wait_event(end)
                y.copy_(x)
            assert not second.query()
        end.synchronize()
        assert end.query() and begin.elapsed_time(end) >= 60
        second.synchronize()
        assert y.cpu().equal(source)
        torch.accelerator.current_stream().wait_stream(second)
        assert y.cpu().equal(source)

    late(body)


def test_memory_in_use_by_another_stream_is_not_given_out_again(late: DeviceProcess) -> None:
    def body() -> None:
        side = torch.Stream(device=DEVICE)
        back = torch.zeros(3000).pin_memory()
        for keeps in (True, False):
            x, spare = torch.full((3000,), 5.0).to(DEVICE), torch.empty(3000, device=DEVICE)
            torch.accelerator.synchronize()
            with held(side):
                with side:
                    back.copy_(x, non_blocking=True)
                address = x.data_ptr()
                if keeps:
                    x.record_stream(side)
                    del spare  # what is given out instead
                del x
                again = torch.empty(3000, device=DEVICE)
                assert (again.data_ptr() == address) is not keeps
                again.fill_(-1.0)
            side.synchronize()
            if keeps:
                assert back.unique().tolist() == [5.0]
            torch.accelerator.synchronize()

    late(body)


def test_each_thread_has_its_own_device_and_stream(there: DeviceProcess) -> None:
    def body() -> None:
        import threading

        seen = []
        torch.rehearsal.set_device(1)
        try:
            with torch.Stream(device="rehearsal:1") as stream:
                now = torch.rehearsal
                run = threading.Thread(target=lambda: seen.append((now.current_device(), now.current_stream())))
                run.start()
                run.join()
                assert torch.rehearsal.current_stream() == stream
        finally:
            torch.rehearsal.set_device(0)
        assert seen == [(0, torch.rehearsal.default_stream(0))]
        assert torch.rehearsal.default_stream().native_handle == 0

    there(body)


def test_threads_with_streams_of_their_own_do_not_disturb_each_other(there: DeviceProcess) -> None:
    def body() -> None:
        from concurrent.futures import ThreadPoolExecutor

        def work(place: str, seed: int) -> torch.Tensor:
            x = torch.arange(seed * 1000.0, seed * 1000 + 700).view(7, 100).to(place)
            for n in range(40):
                y = (x.t().contiguous() * 0.5)[::2].clone()
                x = torch.cat([x.roll(n, 1)[:, :50], y.t()], 1)
                x[:, ::3] += n
            return x.cpu()

        def on_a_stream(seed: int) -> torch.Tensor:
            place = f"{DEVICE}:{seed % 2}"
            with torch.Stream(device=place):
                return work(place, seed)

        with ThreadPoolExecutor(4) as pool:
            for seed, result in enumerate(pool.map(on_a_stream, range(12))):
                assert result.equal(work("cpu", seed))

    there(body)


# ---- memory ----


def test_memory_is_kept_for_reuse_and_given_back_on_demand(there: DeviceProcess) -> None:
    def body() -> None:
        import ctypes
        import gc

        gc.collect()
        torch.rehearsal.empty_cache()
        before, left = torch.rehearsal.memory_allocated(), torch.rehearsal.mem_get_info()[0]
        x = torch.zeros(1 << 20, device=DEVICE)
        assert torch.rehearsal.memory_allocated() - before == 4 << 20 == left - torch.rehearsal.mem_get_info()[0]
        address = x.data_ptr()
        del x
        assert torch.rehearsal.memory_allocated() == before
        assert torch.empty(1 << 20, device=DEVICE).data_ptr() == address
        torch.rehearsal.empty_cache()
        assert torch.rehearsal.mem_get_info()[0] == left
        assert torch.rehearsal.memory_reserved() >= before
        live = ctypes.CDLL("librehearsal.so").rehearsal_live
        assert live(b"registration") == 0

    there(body)


def test_too_much_is_an_error_that_names_the_switch(there: DeviceProcess) -> None:
    def body() -> None:
        half = torch.empty(600 << 20, dtype=torch.uint8, device=DEVICE)
        del half  # kept, and given back when something else needs the room
        torch.empty(700 << 20, dtype=torch.uint8, device=DEVICE)
        with pytest.raises(torch.OutOfMemoryError, match="MEMORY"):
            torch.empty(2 << 30, dtype=torch.uint8, device=DEVICE)

    there(body)


def test_nothing_is_left_when_all_tensors_are_gone(tmp_path: Path) -> None:
    ended = alone(
        """
        import gc
        side = torch.Stream(device="rehearsal")
        def work():
            model = torch.nn.Linear(30, 30).to("rehearsal")
            with side:
                model(torch.ones(4, 30, device="rehearsal").pow(2)).sum().backward()
            event = torch.Event("rehearsal"); event.record(side); event.synchronize()
            model.weight.record_stream(side)
            torch.ones(9).pin_memory().to("rehearsal", non_blocking=True)
        for _ in range(20): work()
        gc.collect()
        assert torch.rehearsal.memory_allocated() == 0
        torch.rehearsal.empty_cache()
        assert torch.rehearsal.memory_reserved() == 0
        """,
        REHEARSAL_TRACE=str(tmp_path / "trace"),
    )
    assert ended.returncode == 0, ended.stderr
    trace = json.loads((tmp_path / "trace").read_text())
    assert trace["misuses"] == 0 and trace["live"]["allocation"] == 0 and trace["live"]["registration"] == 0
    assert trace["calls"]["cuMemAlloc"] == trace["calls"]["cuMemFree"] < 10


# ---- ends ----


def test_a_process_ends_well_with_work_under_way() -> None:
    ended = alone(
        """
        held = torch.ones(1000, device="rehearsal")
        host = torch.ones(1000).pin_memory()
        event = torch.Event("rehearsal")
        for _ in range(50): held.copy_(host, non_blocking=True)
        event.record()
        """,
        fresh=True,  # all of its libraries end
        REHEARSAL_LATENCY_US="5000",
    )
    assert ended.returncode == 0 and not ended.stderr, ended.stderr


def test_a_forked_child_is_told_and_ends_well() -> None:
    ended = alone(
        """
        import os
        x = torch.ones(5, device="rehearsal")
        child = os.fork()
        if not child:
            assert torch.rehearsal._is_in_bad_fork()
            try: x + 1
            except RuntimeError as error: print(error, flush=True)
            del x
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        assert x.sum().item() == 5
        """
    )
    assert ended.returncode == 0, ended.stderr
    assert "spawn" in ended.stdout


def test_a_failing_device_is_an_error_with_the_drivers_words() -> None:
    ended = alone(
        """
        x = torch.ones(5, device="rehearsal")
        try: x.cpu(); x.cpu(); x.cpu()
        except RuntimeError as error: print(error)
        """,
        REHEARSAL_FAIL_LATE="cuMemcpyDtoHAsync:2:700",
    )
    assert ended.returncode == 0, ended.stderr
    assert "illegal memory access" in ended.stdout and "(700)" in ended.stdout


PROGRAM = """
import torch, torch.distributed as dist
from isthmus import rehearsal_torch
x = torch.ones(3000, device=rehearsal_torch.register())
dist.init_process_group("isthmus")
dist.all_reduce(x)
print(torch.rehearsal.vendor(), x.sum().item())
dist.destroy_process_group()
"""


def test_a_program_runs_under_isthmus_rehearse_on_a_device_of_every_vendor(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    with rehearse.start([sys.executable, str(script)], "nvidia:1,amd:1,ascend:1") as job:
        ended = job.wait(patient(120))
    assert [end.returncode for end in ended] == [0, 0, 0], ended
    assert [end.stdout for end in ended] == ["cuda 9000.0\n", "hip 9000.0\n", "npu 9000.0\n"]
    assert not [end for end in ended if "misuse" in end.stderr], ended
