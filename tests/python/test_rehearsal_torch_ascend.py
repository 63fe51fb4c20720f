"""The simulated device of torch over Huawei's simulated runtime: the same tensors, on other calls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from device_process import DeviceProcess, held

pytestmark = pytest.mark.computes

DEVICE = "rehearsal"
TOGETHER = "torch devices"


@pytest.fixture(scope="module")
def there() -> Iterator[DeviceProcess]:
    """A process with two devices that take 20 ms for everything; it must end well after all tests."""
    process = DeviceProcess({"LATENCY_US": "20000", "QUEUES": "2"}, vendor="ascend")
    yield process
    status, said = process.end()
    assert status == 0 and "misuse" not in said, said


def test_the_memory_is_the_runtimes(there: DeviceProcess) -> None:
    def body() -> None:
        import ctypes

        assert torch.rehearsal.vendor() == "npu" and torch.rehearsal.device_count() == 2
        assert "Simulated Ascend" in torch.rehearsal.get_device_name()
        runtime = ctypes.CDLL("libascendcl.so")
        where = (ctypes.c_uint32 * 7)()
        x = torch.arange(100.0, device=f"{DEVICE}:1")[7:]
        assert runtime.aclrtPointerGetAttributes(ctypes.c_void_p(x.data_ptr()), where) == 0 and list(where[:2]) == [1, 1]
        pinned = torch.ones(4).pin_memory()
        assert pinned.is_pinned() and not torch.ones(4).is_pinned()
        left, whole = torch.rehearsal.mem_get_info(1)
        assert 0 < left < whole == 1 << 30

    there(body)


def test_values_go_there_and_back_and_to_the_other_device(there: DeviceProcess) -> None:
    def body() -> None:
        for dtype in (torch.bool, torch.uint8, torch.int16, torch.bfloat16, torch.float64):
            x = (torch.arange(1000) % 7).to(dtype).view(10, 100)
            over = x.to(f"{DEVICE}:0").to(f"{DEVICE}:1")
            assert torch.equal(over.t().cpu(), x.t()) and torch.equal((over + over).cpu(), x + x)
        assert torch.zeros(5, device=DEVICE).cpu().tolist() == [0.0] * 5
        assert torch.empty(0, device=DEVICE).cpu().numel() == 0

    there(body)


def test_streams_and_events(there: DeviceProcess) -> None:
    def body() -> None:
        first, second = torch.Stream(device=DEVICE), torch.Stream(device=DEVICE)
        begin, end = (torch.Event(DEVICE, enable_timing=True) for _ in range(2))
        assert end.query()  # never recorded
        host, x = torch.full((1000,), 3.0).pin_memory(), torch.empty(1000, device=DEVICE)
        with held(first):
            with first:
                begin.record()
                x.copy_(host, non_blocking=True)
                end.record()
            assert not end.query() and not first.query()
        second.wait_event(end)
        with second:
            y = x * 2
        second.synchronize()
        assert end.query() and begin.elapsed_time(end) >= 20
        assert y.cpu().tolist() == [6.0] * 1000
        for _ in range(20):  # events that go before they are reached
            torch.Event(DEVICE).record(first)
        torch.rehearsal.synchronize()

    there(body)


def test_a_network_trains_to_the_cpus_loss_to_the_bit(there: DeviceProcess) -> None:
    def body() -> list[list[float]]:
        losses = []
        for device in ("cpu", DEVICE):
            torch.manual_seed(3)
            model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).to(device)
            inputs, targets = torch.randn(32, 8).to(device), torch.randn(32, 1).to(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            seen = []
            for _ in range(3):
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                loss.backward()
                optimizer.step()
                seen.append(loss.item())
            losses.append(seen)
        return losses

    on_cpu, on_device = there(body)
    assert on_cpu == on_device and on_cpu[0] > on_cpu[-1]


def test_too_much_memory_is_an_error_that_names_the_switch(there: DeviceProcess) -> None:
    def body() -> None:
        with pytest.raises(torch.OutOfMemoryError, match="MEMORY"):
            torch.empty(2 << 30, dtype=torch.uint8, device=DEVICE)

    there(body)
