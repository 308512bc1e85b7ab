"""device, precision and threads are resolved to what the machine has, or refused."""

import pytest
import torch

from cct import machine


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cpu:0", "mps:1", ""])
def test_an_unknown_device_is_refused_with_the_choices(name):
    with pytest.raises(ValueError, match="choices are auto, cpu, cuda, cuda:<number>, mps"):
        machine.resolve_device(name)


@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_cuda_is_refused_where_there_is_none(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=f"device={name}: no CUDA device"):
        machine.resolve_device(name)


def test_a_number_beyond_the_last_device_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert machine.resolve_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ValueError, match=r"device=cuda:2: the last CUDA device is cuda:1"):
        machine.resolve_device("cuda:2")


def test_auto_takes_the_best_device_there_is(monkeypatch):
    for cuda, mps, best in ((True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda answer=cuda: answer)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda answer=mps: answer)
        assert machine.resolve_device("auto").type == best


def test_auto_precision_is_bf16_on_cuda_only():
    assert machine.resolve_precision("auto", torch.device("cuda")) == "bf16"
    assert machine.resolve_precision("auto", torch.device("cpu")) == "fp32"
    assert machine.resolve_precision("bf16", torch.device("cpu")) == "bf16"
    assert machine.resolve_precision("fp32", torch.device("cuda")) == "fp32"


def test_threads_stay_within_what_the_process_may_use(monkeypatch):
    monkeypatch.setattr(machine, "usable_cores", lambda: 3)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert machine.resolve_threads("auto") == 3
    assert machine.resolve_threads(2) == 2
    with pytest.raises(ValueError, match="threads=4: this process may use 3"):
        machine.resolve_threads(4)


@pytest.mark.parametrize(
    ("variable", "threads"),
    [("1", 1), ("2,1", 2), (" 2 ", 2), ("9", 3), ("", 3), ("0", 3), ("all", 3), ("1" * 99, 3)],
)
def test_the_first_number_of_the_variable_limits_automatic_threads(monkeypatch, variable, threads):
    monkeypatch.setattr(machine, "usable_cores", lambda: 3)
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert machine.resolve_threads("auto") == threads


@pytest.mark.parametrize(
    ("device", "wanted", "expected"),
    [("cpu", "auto", True), ("cuda", "auto", False), ("cuda", True, True), ("cpu", False, False)],
)
def test_deterministic_is_automatic_on_a_cpu_only(device, wanted, expected):
    assert machine.resolve_deterministic(wanted, torch.device(device)) is expected


@pytest.mark.parametrize(("setting", "expected"), [("auto", True), ("false", False)])
def test_a_run_tells_torch_whether_to_be_deterministic(trained, setting, expected):
    done = trained(f"deterministic={setting}", "epochs=1")
    assert torch.are_deterministic_algorithms_enabled() is expected
    assert torch.backends.cudnn.deterministic is expected
    assert done.summary["deterministic"] is expected


def test_a_container_that_may_use_half_a_core_gets_one_thread(monkeypatch, tmp_path):
    limit = tmp_path / "cpu.max"
    monkeypatch.setattr(machine, "CGROUP_LIMIT", limit)
    limit.write_text("50000 100000\n")
    assert machine.usable_cores() == 1
    limit.write_text("max 100000\n")
    assert machine.usable_cores() >= 1


@pytest.mark.parametrize(("said", "threads"), [("2", 2), ("8", 3), ("0", 3), ("4,2", 3), ("", 3)])
def test_auto_takes_no_more_threads_than_a_launcher_allows(monkeypatch, said, threads):
    monkeypatch.setattr(machine, "usable_cores", lambda: 3)
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert machine.resolve_threads("auto") == threads
    assert machine.resolve_threads(3) == 3


def test_float32_is_float32_unless_tf32_is_allowed():
    machine.allow_tf32(True)
    assert torch.get_float32_matmul_precision() == "high"
    assert torch.backends.cudnn.allow_tf32
    machine.allow_tf32(False)
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cudnn.allow_tf32


def test_without_a_compiler_compile_is_refused_in_one_line(monkeypatch):
    def fail(_):
        raise RuntimeError("no C++ compiler\n\nSet TORCHDYNAMO_VERBOSE=1 for more")

    monkeypatch.setattr(torch, "compile", fail)
    with pytest.raises(ValueError, match=r"^compile=true: .* here: no C\+\+ compiler$"):
        machine.require_compiler(torch.device("cpu"))
