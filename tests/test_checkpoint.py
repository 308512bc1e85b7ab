"""The states of a run: whole or not there, verified, few, and the newest good one is used."""

from pathlib import Path

import pytest
import torch
from torch import nn

from cct.checkpoint import Checkpoints, NoCheckpoints, save, verify

FACTS = {"name": "linear", "seed": 0}
CPU = torch.device("cpu")


def subject() -> tuple[nn.Linear, torch.optim.Optimizer]:
    model = nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def trained(out: Path, epochs: int, *, every: int = 1, keep: int = 2) -> None:
    """Save the states of a run whose weights are all equal to the number of the epoch."""
    model, optimizer = subject()
    checkpoints = Checkpoints(out, FACTS, every=every, keep=keep)
    for epoch in range(1, epochs + 1):
        nn.init.constant_(model.weight, epoch)
        checkpoints.save(model, optimizer, epoch, best=False, final=epoch == epochs)


def restored(out: Path, **facts: object) -> tuple[int, float, list[str]]:
    """Return the epoch and weight that are gone on from, and what was said."""
    model, optimizer = subject()
    found = Checkpoints(out, FACTS | facts, every=1, keep=2).restore(model, optimizer, CPU)
    return found.epochs, model.weight[0, 0].item(), found.refused


@pytest.mark.parametrize(
    ("every", "keep", "kept"),
    [
        (1, 1, {"last.pt": 7}),
        (1, 3, {"last.pt": 7, "last.1.pt": 6, "last.2.pt": 5}),
        (3, 2, {"last.pt": 7, "last.1.pt": 6}),
        (5, 3, {"last.pt": 7, "last.1.pt": 5}),
        (9, 3, {"last.pt": 7}),
    ],
)
def test_the_newest_states_are_kept_and_the_last_epochs_is_one(tmp_path, every, keep, kept):
    trained(tmp_path, 7, every=every, keep=keep)
    found = {path.name: torch.load(path)["epoch"] for path in tmp_path.iterdir()}
    assert found == kept
    assert restored(tmp_path)[:2] == (7, 7.0)


def test_fewer_are_kept_once_fewer_are_asked_for(tmp_path):
    trained(tmp_path, 5, keep=4)
    trained(tmp_path, 2, keep=2)
    assert {path.name for path in tmp_path.iterdir()} == {"last.pt", "last.1.pt"}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def flip(path: Path) -> None:
    """Change a weight's bits, which torch.load does not see."""
    content = bytearray(path.read_bytes())
    at = content.index(torch.tensor(3.0).numpy().tobytes() * 3)
    content[at] ^= 0xFF
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def foreign_model(path: Path) -> None:
    state = torch.load(path)
    state["model"] = nn.Linear(5, 2).state_dict()
    torch.save(state, path)


def foreign_run(path: Path) -> None:
    torch.save(torch.load(path) | {"name": "other"}, path)


def headless(path: Path) -> None:
    state = torch.load(path)
    del state["optimizer"]
    torch.save(state, path)


def gone(path: Path) -> None:
    path.unlink()


DAMAGES = {
    cut: "not a checkpoint that can be read",
    flip: "not a checkpoint that can be read",
    empty: "not a checkpoint that can be read",
    foreign_model: "not a checkpoint of this run",
    foreign_run: "its name is other, not linear",
    headless: "not a checkpoint of this run: 'optimizer'",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_state_that_is_damaged_or_of_another_run_gives_way_to_the_one_before(tmp_path, damage):
    trained(tmp_path, 3)
    damage(tmp_path / "last.pt")
    bad = (tmp_path / "last.pt").read_bytes()
    epoch, weight, said = restored(tmp_path)
    assert (epoch, weight) == (2, 2.0)
    assert len(said) == 1
    assert DAMAGES[damage] in said[0]
    assert "last.pt" in said[0]
    assert (tmp_path / "last.refused").read_bytes() == bad  # kept, and not counted as a state
    assert restored(tmp_path) == (2, 2.0, [])


@pytest.mark.parametrize("damage", DAMAGES)
def test_where_no_state_can_be_used_all_stay_and_a_way_out_is_told(tmp_path, damage):
    trained(tmp_path, 3, keep=1)
    damage(tmp_path / "last.pt")
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=r"last\.pt: .*rerun=true puts this run aside"):
        restored(tmp_path)
    assert files == {path: path.read_bytes() for path in tmp_path.iterdir()}


def test_a_kill_between_two_renames_leaves_the_state_before(tmp_path):
    trained(tmp_path, 3)
    gone(tmp_path / "last.pt")
    assert restored(tmp_path) == (2, 2.0, [])


def test_states_of_another_seed_are_not_used(tmp_path):
    trained(tmp_path, 1)
    with pytest.raises(ValueError, match="its seed is 0, not 5"):
        restored(tmp_path, seed=5)


def test_what_was_saved_is_read_back_before_it_replaces_anything(tmp_path, monkeypatch):
    trained(tmp_path, 3)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    really = torch.save

    def save_badly(state, path):
        really(state, path)
        cut(path)

    monkeypatch.setattr(torch, "save", save_badly)
    with pytest.raises(ValueError, match="can be read"):
        trained(tmp_path, 3)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_a_full_disk_leaves_the_earlier_file(tmp_path, monkeypatch):
    save(tmp_path / "a.pt", number=1)

    def fail(*_: object) -> None:
        (tmp_path / "a.pt.tmp").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path / "a.pt", number=2)
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]
    assert torch.load(tmp_path / "a.pt") == {"number": 1}


def test_no_checkpoints_are_none_but_earlier_ones_serve(tmp_path):
    model, optimizer = subject()
    none = NoCheckpoints(tmp_path, FACTS)
    assert not none.save(model, optimizer, 1, best=True, final=True)
    assert not [*tmp_path.iterdir()]
    trained(tmp_path, 2)
    assert none.restore(model, optimizer, CPU).epochs == 2


def test_verification_reads_every_byte(tmp_path):
    path = tmp_path / "a.pt"
    save(path, weights=torch.full((1000,), 3.0))
    verify(path)
    flip(path)
    torch.load(path)  # sees nothing
    with pytest.raises(ValueError, match="is damaged"):
        verify(path)
