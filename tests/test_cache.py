"""Cached pixels are those of today's files or are not used."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from cct import config
from cct.build import build_source
from cct.data import Data
from cct.sources import Folder
from tests.test_sources import picture, write_folder

COUNTS = {"train/cat": 3, "train/dog": 4, "test/cat": 2, "test/dog": 1}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_folder(tmp_path / "images", COUNTS)
    return tmp_path / "images"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def source(root: Path, place: Path | None, **settings) -> Folder:
    sizes = dict.fromkeys(["image_size", "train_size", "test_size"])
    return Folder(root=str(root), cache=str(place) if place else None, **(sizes | settings))


def is_decoded(folder: Folder) -> bool:
    """Whether images are opened to load the folder."""

    def refuse(*_: object) -> None:
        raise ZeroDivisionError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Image, "open", refuse)
        try:
            folder.load()
        except ValueError as error:  # as a damaged image is refused
            assert isinstance(error.__cause__, ZeroDivisionError)  # noqa: PT017
            return True
    return False


def assert_same(data: Data, other: Data) -> None:
    assert torch.equal(data.train.images, other.train.images)
    assert torch.equal(data.train.labels, other.train.labels)
    assert torch.equal(data.test.images, other.test.images)
    assert torch.equal(data.test.labels, other.test.labels)
    assert torch.equal(data.mean, other.mean)
    assert (data.classes, data.name) == (other.classes, other.name)
    assert data.fingerprint == other.fingerprint


def kept(place: Path) -> list[Path]:
    """What lies in the cache, without the lock files."""
    return [path for path in place.iterdir() if path.suffix != ".lock"]


@pytest.mark.parametrize("settings", [{}, {"image_size": [4, 5]}, {"train_size": 4}])
def test_the_second_start_has_the_same_data_without_decoding(
    root: Path, place: Path, settings: dict, capfd: pytest.CaptureFixture
):
    plain = source(root, None, **settings).load()
    assert_same(source(root, place, **settings).load(), plain)
    again = source(root, place, **settings)
    assert_same(again.load(), plain)
    assert not is_decoded(again)
    assert capfd.readouterr() == ("", "")


def test_a_root_spelled_differently_is_the_same_root(
    root: Path, place: Path, monkeypatch: pytest.MonkeyPatch
):
    source(root, place).load()
    (root.parent / "link").symlink_to(root)
    monkeypatch.chdir(root)
    for spelled in (Path(), Path("../images"), root.parent / "link"):
        assert not is_decoded(source(spelled, place))


def rewrite(root: Path) -> None:
    picture(77).save(root / "train/cat/0.png")


def add(root: Path) -> None:
    picture(77).save(root / "train/cat/3.png")


def add_to_test(root: Path) -> None:
    picture(77).save(root / "test/dog/3.png")


def remove(root: Path) -> None:
    (root / "train/cat/2.png").unlink()


def rename(root: Path) -> None:
    (root / "train/cat/2.png").rename(root / "train/cat/3.png")


def move(root: Path) -> None:
    (root / "train/cat/2.png").rename(root / "train/dog/9.png")


def rename_a_class(root: Path) -> None:
    for half in ("train", "test"):
        (root / half / "dog").rename(root / half / "eel")


def touch(root: Path) -> None:
    os.utime(root / "train/dog/0.png", ns=(0, 1))


def replace_and_keep_the_times(root: Path) -> None:
    path = root / "train/cat/0.png"
    before, content = path.stat(), bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


CHANGES = [
    rewrite,
    add,
    add_to_test,
    remove,
    rename,
    rename_a_class,
    move,
    touch,
    replace_and_keep_the_times,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_decoded_and_takes_the_place_of_the_old_pixels(
    root: Path, place: Path, change, capfd: pytest.CaptureFixture
):
    source(root, place).load()
    (before,) = kept(place)
    change(root)
    assert is_decoded(source(root, place))
    if change is not replace_and_keep_the_times:  # its image is damaged
        assert_same(source(root, place).load(), source(root, None).load())
        assert not is_decoded(source(root, place))
    assert kept(place) == [before]
    assert capfd.readouterr().err == ""


def test_another_decoder_decodes(root: Path, place: Path, monkeypatch: pytest.MonkeyPatch):
    source(root, place).load()
    monkeypatch.setattr("PIL.__version__", "1")
    assert is_decoded(source(root, place))
    source(root, place).load()
    monkeypatch.setattr("cct.sources.folder.DECODER", 0)
    assert is_decoded(source(root, place))


def test_settings_and_roots_have_a_file_each(root: Path, place: Path, tmp_path: Path):
    write_folder(tmp_path / "other", COUNTS)
    sources = [
        source(root, place),
        source(root, place, image_size=6),
        source(root, place, image_size=[6, 8]),  # the size they have, but others may come
        source(root, place, train_size=4),
        source(root, place, test_size=2),
        source(tmp_path / "other", place),
    ]
    for one in sources:
        assert is_decoded(one)
        one.load()
    assert len(kept(place)) == len(sources)
    assert not any(is_decoded(one) for one in sources)


def flip(path: Path, index: int) -> None:
    content = bytearray(path.read_bytes())
    content[index] ^= 1
    path.write_bytes(content)


def flip_a_pixel(path: Path) -> None:
    pixels = torch.load(path)["pixels"]
    flip(path, path.read_bytes().index(pixels[0].numpy().tobytes()) + 5)


def other_state(path: Path) -> None:
    torch.save({"model": torch.zeros(3)}, path)


def other_shape(path: Path) -> None:
    state = torch.load(path)
    torch.save(state | {"pixels": [one.flatten(0, 1) for one in state["pixels"]]}, path)


def other_type(path: Path) -> None:
    state = torch.load(path)
    torch.save(state | {"pixels": [one.view(torch.int8) for one in state["pixels"]]}, path)


def no_list(path: Path) -> None:
    torch.save(torch.load(path) | {"pixels": 3}, path)


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("no pixels\n" * 99),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-700]),
    "header": lambda path: flip(path, 0),
    "pixel": flip_a_pixel,
    "state": other_state,
    "shape": other_shape,
    "type": other_type,
    "no list": no_list,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_told_and_replaced(
    root: Path, place: Path, damage: str, capfd: pytest.CaptureFixture
):
    plain = source(root, place).load()
    (path,) = kept(place)
    DAMAGES[damage](path)
    assert_same(source(root, place).load(), plain)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"data.cache: {path} is not used, the images are decoded again: ")
    assert not is_decoded(source(root, place))
    assert capfd.readouterr().err == ""


def test_a_file_that_would_run_code_does_not(root: Path, place: Path, tmp_path: Path):
    class Evil:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(tmp_path / "made"),)

    plain = source(root, place).load()
    torch.save(Evil(), kept(place)[0])
    assert_same(source(root, place).load(), plain)
    assert not (tmp_path / "made").exists()


def test_a_place_that_is_none_is_told_and_the_run_goes_on(
    root: Path, tmp_path: Path, capfd: pytest.CaptureFixture
):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file/below", Path("/proc/cct")):
        assert_same(source(root, place).load(), source(root, None).load())
        (line,) = capfd.readouterr().err.splitlines()
        assert line.startswith(f"data.cache: {place}/")
        assert "cannot be written" in line


def test_a_full_disk_is_told_and_leaves_nothing(
    root: Path, place: Path, capfd: pytest.CaptureFixture
):
    plain = source(root, None).load()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, limits[1]))
    try:
        assert_same(source(root, place).load(), plain)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (line,) = capfd.readouterr().err.splitlines()
    assert "cannot be written" in line
    assert kept(place) == []


def test_nothing_is_kept_of_images_that_cannot_be_decoded(root: Path, place: Path):
    (root / "test/dog/0.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match="cannot be decoded"):
        source(root, place).load()
    assert not place.exists()


def test_a_run_does_not_write_beside_another_that_writes(
    root: Path, place: Path, capfd: pytest.CaptureFixture
):
    place.mkdir()
    path = source(root, place).cache
    assert path
    hold = """
import sys
from filelock import FileLock
with FileLock(sys.argv[1]):
    print("held", flush=True)
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(path.with_suffix(".lock"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        assert_same(source(root, place).load(), source(root, None).load())
        assert kept(place) == []
        other.communicate("\n")
    assert capfd.readouterr().err == ""
    source(root, place).load()
    assert kept(place) == [path]


def test_what_a_killed_run_left_is_replaced(root: Path, place: Path):
    place.mkdir()
    path = source(root, place).cache
    assert path
    path.with_name(f"{path.name}.tmp").write_text("half")
    source(root, place).load()
    assert kept(place) == [path]
    assert not is_decoded(source(root, place))


def test_pixels_are_kept_in_the_cache_of_the_user_or_where_it_is_told(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    settings = ["data=folder", f"data.root={root}"]
    for override, place in (
        ([], "xdg/cct"),
        (["data.cache=here"], "here"),
        (["data.cache='~/there'"], "home/there"),
    ):
        build_source(config.compose([*settings, *override]).cfg).load()
        assert len(kept(tmp_path / place)) == 1
    monkeypatch.delenv("XDG_CACHE_HOME")
    build_source(config.compose(settings).cfg).load()
    assert len(kept(tmp_path / "home/.cache/cct")) == 1
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert config.compose(settings).cfg.data.cache == "~/.cache/cct"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/folder")  # to be ignored, says its standard
    assert config.compose(settings).cfg.data.cache == "~/.cache/cct"
    with pytest.raises(ValueError, match=r"data\.cache=: the name of a folder"):
        build_source(config.compose([*settings, "data.cache="]).cfg)
    assert len([*tmp_path.rglob("*.pt")]) == 4


def test_off_is_off(root: Path, tmp_path: Path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        off = build_source(
            config.compose(["data=folder", f"data.root={root}", "data.cache=null"]).cfg
        )
        off.load()
        assert is_decoded(off)
    assert not (tmp_path / "xdg").exists()
