"""Sources against archives and folders written here, in the official formats but tiny."""

import gc
import hashlib
import inspect
import io
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from PIL import Image
from torchvision import datasets

from cct.schema import one_line
from cct.sources import CIFAR10, CIFAR100, Digits, Folder, Synthetic, cifar, common

torch.set_num_threads(1)

HOME = Path(__file__).parents[1]
ONE_LINE = r"\A[^\n]+\Z"
CLOSED = "http://127.0.0.1:9/"  # nobody listens there: refused at once


@dataclass
class Official:
    """A tiny archive in the official format, and what torchvision's class is to know of it."""

    source: type[CIFAR10]
    archive: bytes
    attributes: dict
    train: np.ndarray  # N 3 32 32
    train_labels: list[int]
    test: np.ndarray
    test_labels: list[int]

    def put_archive(self, root: Path) -> Path:
        path = root / self.source.archive
        path.write_bytes(self.archive)
        return path

    def unpack(self, root: Path) -> Path:
        with tarfile.open(fileobj=io.BytesIO(self.archive)) as tar:
            tar.extractall(root, filter="data")
        return root / self.source.folder

    def construct(self, root: Path, **settings) -> CIFAR10:
        defaults = {"download": False, "mean": [0.5] * 3, "std": [0.25] * 3}
        defaults |= dict.fromkeys(["image_size", "train_size", "test_size"])
        return self.source(root=str(root), **(defaults | settings))


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def pack(folder: str, members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def official_archive(source: type[CIFAR10], train: np.ndarray, test: np.ndarray) -> Official:
    """Archive whose training images are spread evenly over the files; labels go round."""
    hundred = source is CIFAR100
    batches = ["train"] if hundred else [f"data_batch_{number}" for number in range(1, 6)]
    last, meta = ("test", "meta") if hundred else ("test_batch", "batches.meta")
    labels, names = ("fine_labels", "fine_label_names") if hundred else ("labels", "label_names")
    classes = source.names.split()
    arrays = dict(zip(batches, np.split(train, len(batches)), strict=True)) | {last: test}
    members, given, start = {}, {}, 0
    for name, pixels in arrays.items():
        start = 0 if name == last else start
        given[name] = [index % len(classes) for index in range(start, start + len(pixels))]
        start += len(pixels)
        batch = {"data": pixels.reshape(len(pixels), 3072), labels: given[name]}
        members[name] = pickle.dumps(batch, protocol=2)
    members[meta] = pickle.dumps({names: classes}, protocol=2)
    archive = pack(source.folder, members)
    attributes = {
        "url": f"{CLOSED}{source.archive}",
        "tgz_md5": md5(archive),
        "train_list": [[name, md5(members[name])] for name in batches],
        "test_list": [[last, md5(members[last])]],
        "meta": {"filename": meta, "key": names, "md5": md5(members[meta])},
    }
    train_labels = [label for name in batches for label in given[name]]
    return Official(source, archive, attributes, train, train_labels, test, given[last])


def noise(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)


def adopt(monkeypatch: pytest.MonkeyPatch, official: Official) -> Official:
    """Make torchvision's class take the tiny archive for the official one."""
    theirs = {CIFAR10: datasets.CIFAR10, CIFAR100: datasets.CIFAR100}[official.source]
    for name, value in official.attributes.items():
        monkeypatch.setattr(theirs, name, value)
    monkeypatch.setenv("no_proxy", "*")
    return official


@pytest.fixture(params=[CIFAR10, CIFAR100])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Official:
    return adopt(monkeypatch, official_archive(request.param, noise(60, 0), noise(20, 1)))


@pytest.fixture
def official(monkeypatch: pytest.MonkeyPatch) -> Official:
    return adopt(monkeypatch, official_archive(CIFAR10, noise(60, 0), noise(20, 1)))


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)


@dataclass
class Server:
    """What a local web server answers with, and how many bytes it says there are."""

    address: str
    content: bytes = b""
    announced: int | None = None


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            length = len(state.content) if state.announced is None else state.announced
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(state.content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = Server(f"http://127.0.0.1:{web.server_port}/")
    thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    web.shutdown()
    thread.join()
    web.server_close()


def contents(root: Path) -> set[str]:
    """What lies in ``root``, without the lock file."""
    return {path.name for path in root.iterdir() if not path.name.endswith(".lock")}


def refusal(source: CIFAR10 | Folder) -> str:
    """The one line with which ``load`` refuses."""
    with pytest.raises(ValueError, match=ONE_LINE) as caught:
        source.load()
    return str(caught.value)


def construction_refusal(source: type, **settings) -> str:
    with pytest.raises(ValueError, match=ONE_LINE) as caught:
        source(**settings)
    return str(caught.value)


# CIFAR: what is loaded


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("download", [False, True])
def test_an_archive_put_there_by_hand_needs_no_network(
    either: Official, tmp_path: Path, download: bool
):
    either.put_archive(tmp_path)
    data = either.construct(tmp_path, download=download).load()
    np.testing.assert_array_equal(data.train.images.numpy(), either.train)
    np.testing.assert_array_equal(data.test.images.numpy(), either.test)
    assert data.train.labels.tolist() == either.train_labels
    assert data.test.labels.tolist() == either.test_labels
    assert data.train.labels.dtype == torch.int64
    assert data.train.images.is_contiguous()
    assert contents(tmp_path) == {either.source.archive, either.source.folder}
    assert data.name == either.source.title


@pytest.mark.usefixtures("no_network")
def test_an_unpacked_folder_is_used_without_a_lock_or_a_write(either: Official, tmp_path: Path):
    folder = either.unpack(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path, folder)}
    folder.chmod(0o555)
    tmp_path.chmod(0o555)
    data = either.construct(tmp_path, download=True).load()
    np.testing.assert_array_equal(data.train.images.numpy(), either.train)
    assert [path.name for path in tmp_path.iterdir()] == [either.source.folder]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    tmp_path.chmod(0o755)
    folder.chmod(0o755)


def test_a_subset_has_equal_shares_and_leaves_the_measured_statistics(
    official: Official, tmp_path: Path
):
    official.unpack(tmp_path)
    whole = official.construct(tmp_path).load()
    source = official.construct(tmp_path, train_size=23, test_size=10)
    data = source.load()
    assert (source.train_size, source.test_size) == (len(data.train), len(data.test)) == (23, 10)
    assert sorted(Counter(data.train.labels.tolist()).values()) == [2] * 7 + [3] * 3
    assert torch.equal(data.measured_mean, whole.measured_mean)
    assert torch.equal(data.measured_std, whole.measured_std)
    assert data.fingerprint != whole.fingerprint
    assert data.fingerprint == source.load().fingerprint


@pytest.mark.parametrize(("image_size", "size"), [(20, (20, 20)), ([48, 40], (48, 40))])
def test_images_are_resized_like_pillow_does(
    official: Official, tmp_path: Path, image_size: int | list[int], size: tuple[int, int]
):
    official.unpack(tmp_path)
    source = official.construct(tmp_path, image_size=image_size)
    data = source.load()
    assert source.image_size == data.train.images.shape[2:] == size
    assert data.test.images.dtype == torch.uint8
    original = Image.fromarray(official.train[7].transpose(1, 2, 0))
    expected = np.asarray(original.resize((size[1], size[0]), Image.Resampling.BILINEAR), dtype=int)
    got = data.train.images[7].permute(1, 2, 0).int().numpy()
    assert np.abs(got - expected).max() <= 1
    native = official.construct(tmp_path).load()
    assert torch.equal(data.measured_std, native.measured_std)


def test_resizing_in_chunks_is_resizing_at_once(
    official: Official, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    official.unpack(tmp_path)
    whole = official.construct(tmp_path, image_size=16).load()
    monkeypatch.setattr(common, "VALUES_AT_ONCE", 7 * 3 * 32 * 32)
    assert official.construct(tmp_path, image_size=16).load().fingerprint == whole.fingerprint


def test_known_pixels_have_their_statistics_and_no_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    train = np.zeros((10, 3, 32, 32), dtype=np.uint8)
    train[:, :, ::2] = 255  # channels half white: mean 1/2, deviation 1/2
    train[:5, 2] = 255  # the blue one three quarters: mean 3/4, deviation sqrt(3)/4
    known = adopt(monkeypatch, official_archive(CIFAR10, train, noise(10, 1)))
    known.unpack(tmp_path)
    data = known.construct(tmp_path, mean=[0.5, 0.5, 0.75], std=[0.5, 0.5, 0.433]).load()
    assert data.measured_mean.tolist() == pytest.approx([0.5, 0.5, 0.75])
    assert data.measured_std.tolist() == pytest.approx([0.5, 0.5, 3**0.5 / 4])
    assert data.mean.tolist() == [0.5, 0.5, 0.75]
    assert data.warnings() == []


def test_pixels_that_are_not_the_official_ones_are_told(official: Official, tmp_path: Path):
    official.unpack(tmp_path)
    (line,) = official.construct(tmp_path).load().warnings()
    assert line.startswith("CIFAR-10: mean 0.5000, 0.5000, 0.5000 and std 0.2500")
    assert "\n" not in line


def test_numpy_disliking_the_old_pickles_is_no_warning(
    official: Official, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    official.unpack(tmp_path)
    load = pickle.load

    def load_with_warning(*args, **settings):
        warnings.warn(
            "dtype(): align should be passed as Python boolean", UserWarning, stacklevel=1
        )
        return load(*args, **settings)

    monkeypatch.setattr(datasets.cifar.pickle, "load", load_with_warning)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = official.construct(tmp_path).load()
    assert len(data.train) > 0  # nothing was raised on the way


# CIFAR: what is missing or damaged


def test_a_missing_set_without_download_is_refused_at_construction(either: Official, tmp_path):
    with pytest.raises(ValueError, match=ONE_LINE) as caught:
        either.construct(tmp_path)
    line = str(caught.value)
    source = either.source
    for part in (tmp_path, source.folder, source.archive, source.url):
        assert str(part) in line
    for part in ("missing", "data.download=true", "data=digits", "data=synthetic"):
        assert part in line
    assert contents(tmp_path) == set()


def test_a_truncated_archive_is_refused_and_kept(either: Official, tmp_path: Path):
    archive = either.put_archive(tmp_path)
    archive.write_bytes(either.archive[:-1000])
    for download in (False, True):  # with download, the address refuses the connection
        line = refusal(either.construct(tmp_path, download=download))
        assert f"{either.source.archive}: its md5 differs" in line
        assert either.source.url in line
        assert str(tmp_path) in line
        assert ("Connection refused" in line) is download
        assert archive.read_bytes() == either.archive[:-1000]
        assert contents(tmp_path) == {archive.name}


def test_a_failing_network_is_told_within_seconds(either: Official, tmp_path: Path):
    start = time.monotonic()
    line = refusal(either.construct(tmp_path / "new" / "root", download=True))
    assert time.monotonic() - start < 5
    assert f"{either.source.archive}: missing" in line
    assert "Connection refused" in line
    assert contents(tmp_path / "new" / "root") == set()


def test_a_server_that_never_answers_is_given_up(
    official: Official, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert cifar.SOCKET_TIMEOUT <= 20
    monkeypatch.setattr(cifar, "SOCKET_TIMEOUT", 0.2)
    socket.setdefaulttimeout(7.0)
    start = time.monotonic()
    try:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            monkeypatch.setattr(datasets.CIFAR10, "url", f"http://127.0.0.1:{port}/x.tar.gz")
            assert "timed out" in refusal(official.construct(tmp_path, download=True))
        assert time.monotonic() - start < 5
        assert socket.getdefaulttimeout() == 7.0
    finally:
        socket.setdefaulttimeout(None)
    assert contents(tmp_path) == set()


@pytest.mark.parametrize("in_the_way", [False, True])
def test_a_good_download_is_put_in_place(
    official: Official,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    server: Server,
    in_the_way: bool,
):
    if in_the_way:
        official.put_archive(tmp_path).write_bytes(b"damaged")
    server.content = official.archive
    monkeypatch.setattr(datasets.CIFAR10, "url", server.address)
    data = official.construct(tmp_path, download=True).load()
    np.testing.assert_array_equal(data.train.images.numpy(), official.train)
    assert (tmp_path / CIFAR10.archive).read_bytes() == official.archive
    assert contents(tmp_path) == {CIFAR10.archive, CIFAR10.folder}


@pytest.mark.parametrize("cut_short", [False, True])
def test_a_bad_download_leaves_things_as_they_were(
    official: Official,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    server: Server,
    cut_short: bool,
):
    archive = official.put_archive(tmp_path)
    archive.write_bytes(b"damaged")
    server.content = official.archive[:-1000]
    server.announced = len(official.archive) if cut_short else None
    monkeypatch.setattr(datasets.CIFAR10, "url", server.address)
    line = refusal(official.construct(tmp_path, download=True))
    assert "the download failed (" in line
    assert archive.read_bytes() == b"damaged"
    assert contents(tmp_path) == {CIFAR10.archive}
    gc.collect()  # the broken connection's socket is torchvision's to close


@pytest.mark.parametrize("damage", ["changed", "removed"])
def test_a_damaged_folder_is_mended_from_the_archive(
    official: Official, tmp_path: Path, damage: str
):
    folder = official.unpack(tmp_path)
    official.put_archive(tmp_path)
    if damage == "changed":
        (folder / "data_batch_3").write_bytes(b"damaged")
    else:
        (folder / "data_batch_3").unlink()
    data = official.construct(tmp_path).load()
    np.testing.assert_array_equal(data.train.images.numpy(), official.train)
    assert contents(tmp_path) == {CIFAR10.archive, CIFAR10.folder}


def test_a_damaged_folder_alone_is_refused_and_kept(official: Official, tmp_path: Path):
    folder = official.unpack(tmp_path)
    (folder / "data_batch_3").write_bytes(b"damaged")
    line = refusal(official.construct(tmp_path))
    assert f"md5 of {CIFAR10.folder}/{{data_batch_3}} differs, {CIFAR10.archive}: missing" in line
    assert (folder / "data_batch_3").read_bytes() == b"damaged"


def test_an_archive_with_other_files_inside_is_refused(
    official: Official, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    other = pack(CIFAR10.folder, {"data_batch_1": b"no batch"})
    (tmp_path / CIFAR10.archive).write_bytes(other)
    monkeypatch.setattr(datasets.CIFAR10, "tgz_md5", md5(other))
    assert "is whole, but inside" in refusal(official.construct(tmp_path))
    assert contents(tmp_path) == {CIFAR10.archive}


def test_a_root_that_is_a_file_is_refused(official: Official, tmp_path: Path):
    root = tmp_path / "file"
    root.write_text("")
    for download in (False, True):
        with pytest.raises(ValueError, match=f"data.root={root}: this is a file"):
            official.construct(root, download=download)
    with pytest.raises(ValueError, match=f"data.root={root}/below: .* cannot be written to"):
        official.construct(root / "below", download=True)


def test_a_root_that_cannot_be_written_to_is_refused(
    official: Official, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = []

    def refuse(path: Path, mode: int) -> bool:  # tests may run as root, who may write anywhere
        asked.append((path, mode))
        return False

    monkeypatch.setattr(os, "access", refuse)
    with pytest.raises(ValueError, match=f"{tmp_path} cannot be written to"):
        official.construct(tmp_path / "new" / "root", download=True)
    assert asked == [(tmp_path, os.W_OK)]


def test_a_root_where_no_lock_can_be_had_is_one_line(official: Official, tmp_path: Path):
    (tmp_path / f".{CIFAR10.folder}.lock").mkdir()
    official.put_archive(tmp_path)
    line = refusal(official.construct(tmp_path))
    assert line.startswith(f"data.root={tmp_path}: ")
    assert "Is a directory" in line


def test_a_reason_is_one_line_and_never_empty():
    assert one_line(OSError("first\n  second\n")) == "first second"
    assert one_line(TimeoutError()) == "TimeoutError"


# CIFAR: several processes

CHILD = """
import json, os, signal, sys, tarfile, time
from pathlib import Path
import torch
from torchvision import datasets
from cct.sources import CIFAR10
root, attributes, role = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
for name, value in attributes.items():
    setattr(datasets.CIFAR10, name, value)
extract = tarfile.TarFile.extractall
def slowly(tar, path, *args, **settings):
    if role == "killed":
        tar.extract(tar.getmembers()[0], path)
        os.kill(os.getpid(), signal.SIGKILL)
    print("extracts", flush=True)
    time.sleep(0.5)
    extract(tar, path, *args, **settings)
tarfile.TarFile.extractall = slowly
source = CIFAR10(root=str(root), download=True, mean=[0.5] * 3, std=[0.5] * 3,
                 image_size=None, train_size=None, test_size=None)
print("ready", flush=True)
sys.stdin.readline()
print(source.load().fingerprint)
"""


def child(official: Official, root: Path, role: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(root), json.dumps(official.attributes), role],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(HOME), "OMP_NUM_THREADS": "1", "no_proxy": "*"},
    )


def answers(children: list[subprocess.Popen[str]]) -> list[list[str]]:
    """What each printed after all were told to go on at once."""
    for process in children:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for process in children:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    return [process.communicate()[0].split() for process in children]


def test_two_first_downloads_at_once_do_not_disturb_each_other(
    official: Official, tmp_path: Path, server: Server
):
    server.content = official.archive
    official.attributes["url"] = server.address
    said = answers([child(official, tmp_path, "patient") for _ in range(2)])
    fingerprint = official.construct(tmp_path).load().fingerprint
    assert sorted(said, key=len) == [[fingerprint], ["extracts", fingerprint]]
    assert contents(tmp_path) == {CIFAR10.archive, CIFAR10.folder}


def test_what_a_killed_process_left_is_removed_by_the_next(official: Official, tmp_path: Path):
    official.put_archive(tmp_path)
    process = child(official, tmp_path, "killed")
    answers([process])
    assert process.returncode == -signal.SIGKILL
    assert len(contents(tmp_path)) == 2  # the archive and something half extracted
    data = official.construct(tmp_path).load()
    np.testing.assert_array_equal(data.train.images.numpy(), official.train)
    assert contents(tmp_path) == {CIFAR10.archive, CIFAR10.folder}


# CIFAR: settings and constants


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train_size": 60_000}, "data.train_size=60000: there are 50000 training images"),
        ({"test_size": 10_001}, "data.test_size=10001: there are 10000 test images"),
        ({"mean": [0.5]}, r"data.mean=\[0.5\]: three numbers are needed"),
        ({"std": [0.5] * 4}, r"data.std=\[0.5, 0.5, 0.5, 0.5\]: three numbers are needed"),
        ({"image_size": [32]}, r"data.image_size=\[32\]: one number or \[height, width\]"),
    ],
)
def test_wrong_settings_are_refused_at_construction(
    official: Official, tmp_path: Path, settings: dict, message: str
):
    with pytest.raises(ValueError, match=message):
        official.construct(tmp_path, download=True, **settings)


@pytest.mark.parametrize(
    ("source", "theirs", "count"),
    [(CIFAR10, datasets.CIFAR10, 10), (CIFAR100, datasets.CIFAR100, 100)],
)
def test_names_of_files_are_those_of_torchvision(source: type[CIFAR10], theirs: type, count: int):
    assert (source.folder, source.archive, source.url) == (
        theirs.base_folder,
        theirs.filename,
        theirs.url,
    )
    listed = [name for name, _ in theirs.train_list + theirs.test_list]
    assert [*listed, theirs.meta["filename"]] == list(source.files)
    assert len(set(source.names.split())) == count


def test_construction_imports_none_of_the_slow_packages():
    code = """
import sys
from cct.sources import CIFAR10, Digits, Folder, Synthetic
sizes = dict(image_size=None, train_size=None, test_size=None)
CIFAR10(root="nowhere", download=True, mean=[0.5] * 3, std=[0.5] * 3, **sizes)
Digits(**sizes)
Synthetic(classes=10, **sizes)
try:
    Folder(root="nowhere", **sizes)
except ValueError:
    pass
print({"torchvision", "sklearn", "filelock", "PIL"} & set(sys.modules))
"""
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=HOME, capture_output=True, text=True, check=True
    )
    assert answer.stdout == "set()\n"
    assert not (HOME / "nowhere").exists()


@pytest.mark.parametrize(
    ("choice", "source"),
    [("cifar10", CIFAR10), ("cifar100", CIFAR100), ("folder", Folder), ("synthetic", Synthetic)],
)
def test_a_yaml_says_everything_its_source_needs(choice: str, source: type, tmp_path: Path):
    path = HOME / "conf" / "data" / f"{choice}.yaml"
    assert path.read_text().startswith("# ")
    settings = OmegaConf.load(path)
    assert set(settings) - {"_target_"} == set(inspect.signature(source).parameters)
    if "root" in settings:
        settings.root = str(tmp_path)
        write_folder(tmp_path, {"train/a": 1, "train/b": 1, "test/a": 1})
    settings.image_size = [24, 16]
    built = instantiate(settings)
    assert type(built) is source
    assert built.image_size == (24, 16)


# Folder


def picture(seed: int, height: int = 6, width: int = 8, mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def write_folder(root: Path, counts: dict[str, int]) -> None:
    """PNG images 0.png, 1.png, ... with different pixels in each of the folders."""
    for number, (folder, count) in enumerate(counts.items()):
        (root / folder).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            picture(100 * number + index).save(root / folder / f"{index}.png")


def folder_source(root: Path, **settings) -> Folder:
    return Folder(
        root=str(root),
        **(dict.fromkeys(["image_size", "train_size", "test_size"]) | settings),
    )


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    write_folder(
        tmp_path,
        {"train/dog": 5, "train/cat": 3, "train/emu": 4, "test/cat": 2, "test/dog": 1},
    )
    return tmp_path


def test_a_folder_gives_the_pixels_of_its_files_in_sorted_order(animals: Path):
    source = folder_source(animals)
    assert source.classes == ["cat", "dog", "emu"]
    assert source.image_size == (6, 8)
    assert (source.train_size, source.test_size) == (12, 3)
    data = source.load()
    files = [animals / "train" / "cat" / f"{index}.png" for index in range(3)]
    files += [animals / "train" / "dog" / f"{index}.png" for index in range(5)]
    files += [animals / "train" / "emu" / f"{index}.png" for index in range(4)]
    expected = np.stack([np.asarray(Image.open(path)).transpose(2, 0, 1) for path in files])
    np.testing.assert_array_equal(data.train.images.numpy(), expected)
    assert data.train.labels.tolist() == [0] * 3 + [1] * 5 + [2] * 4
    assert data.test.labels.tolist() == [0, 0, 1]  # no emu to test: accepted
    assert data.classes == source.classes
    assert str(animals) in data.name
    assert "not the official CIFAR-10" in data.name


def test_other_data_are_normalised_by_their_own_statistics(animals: Path):
    data = folder_source(animals).load()
    pixels = data.train.images.numpy().astype(np.float64) / 255
    np.testing.assert_allclose(data.mean.numpy(), pixels.mean(axis=(0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(data.std.numpy(), pixels.std(axis=(0, 2, 3)), rtol=1e-6)
    assert data.warnings() == []


def test_a_channel_without_contrast_stays_finite(tmp_path: Path):
    for name in ("train/a", "train/b", "test/a"):
        (tmp_path / name).mkdir(parents=True)
        Image.new("RGB", (4, 4), (len(name) * 9, 0, 7)).save(tmp_path / name / "x.png")
    data = folder_source(tmp_path).load()
    assert data.normalize(data.train.images).isfinite().all()


def test_more_files_than_one_block_keep_their_places(tmp_path: Path):
    write_folder(tmp_path, {"train/a": 150, "train/b": 3, "test/b": 1})
    data = folder_source(tmp_path).load()
    for index in (0, 10, 63, 64, 149):
        name = sorted(f"{number}.png" for number in range(150))[index]
        expected = np.asarray(Image.open(tmp_path / "train/a" / name)).transpose(2, 0, 1)
        np.testing.assert_array_equal(data.train.images[index].numpy(), expected)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "LA", "1"])
def test_images_of_other_modes_become_rgb(animals: Path, mode: str):
    image = picture(5, mode=mode)
    image.save(animals / "train/cat/0.png")
    data = folder_source(animals).load()
    expected = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    np.testing.assert_array_equal(data.train.images[0].numpy(), expected)


def test_suffixes_are_read_in_any_case_and_other_files_ignored(animals: Path):
    picture(7).save(animals / "train/cat/A.JPG", format="JPEG")
    picture(8).save(animals / "train/cat/b.TIFF")
    (animals / "train/cat/notes.txt").write_text("x")
    (animals / "train/cat/._0.png").write_text("x")
    (animals / "train/.hidden").mkdir()
    (animals / "train/list.csv").write_text("x")
    (animals / "test/empty").mkdir()
    source = folder_source(animals)
    assert source.classes == ["cat", "dog", "emu"]
    data = source.load()
    assert data.train.labels.tolist() == [0] * 5 + [1] * 5 + [2] * 4
    expected = np.asarray(Image.open(animals / "train/cat/A.JPG")).transpose(2, 0, 1)
    np.testing.assert_array_equal(data.train.images[3].numpy(), expected)  # after 0, 1 and 2


@pytest.mark.parametrize(("image_size", "size"), [(5, (5, 5)), ([4, 10], (4, 10))])
def test_a_folder_of_several_sizes_is_resized(
    animals: Path, image_size: int | list[int], size: tuple[int, int]
):
    other = picture(3, 13, 7)
    other.save(animals / "train/cat/1.png")
    source = folder_source(animals, image_size=image_size)
    data = source.load()
    assert source.image_size == data.train.images.shape[2:] == size
    expected = np.asarray(other.resize((size[1], size[0]), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(data.train.images[1].numpy(), expected.transpose(2, 0, 1))


def test_an_image_of_another_size_is_named(animals: Path):
    picture(3, 13, 7).save(animals / "train/dog/1.png")
    line = refusal(folder_source(animals))
    for part in (animals / "train/dog/1.png", "13x7", "6x8", "data.image_size="):
        assert str(part) in line


@pytest.mark.parametrize("content", [b"", b"no image", "half"])
def test_an_image_that_cannot_be_decoded_is_named(animals: Path, content: bytes | str):
    path = animals / "train/dog/4.png"
    whole = path.read_bytes()
    path.write_bytes(content if isinstance(content, bytes) else whole[: len(whole) // 2])
    assert f"{path} cannot be decoded" in refusal(folder_source(animals))


def test_a_first_image_without_a_header_is_named(animals: Path):
    path = animals / "train/cat/0.png"
    path.write_bytes(b"no image")
    settings = {"root": str(animals), "image_size": None, "train_size": None, "test_size": None}
    assert str(path) in construction_refusal(Folder, **settings)
    assert folder_source(animals, image_size=4).image_size == (4, 4)


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_deep_images_are_refused_rather_than_cut(animals: Path, dtype: type):
    path = animals / "train/dog/4.tif"
    Image.fromarray(np.full((6, 8), 300, dtype=dtype)).save(path)
    assert f"{path} has more than 8 bits" in refusal(folder_source(animals))


def test_only_the_chosen_images_are_decoded(animals: Path):
    source = folder_source(animals, train_size=7, test_size=2)
    whole = source.load()
    for path in animals.rglob("*.png"):
        if str(path) not in source.train_files + source.test_files:
            path.write_bytes(b"no image")
    data = source.load()
    assert data.fingerprint == whole.fingerprint
    assert sorted(Counter(data.train.labels.tolist()).values()) == [2, 2, 3]
    assert len(data.test) == source.test_size == 2


def test_construction_decodes_nothing(animals: Path):
    for path in animals.rglob("*.png"):
        path.write_bytes(path.read_bytes()[:-30])  # the header is whole
    assert folder_source(animals).image_size == (6, 8)


@pytest.mark.parametrize(
    ("counts", "settings", "message"),
    [
        ({"train/a": 1, "train/b": 1}, {}, "there is no test/ in it"),
        ({"test/a": 1, "test/b": 1}, {}, "there is no train/ in it"),
        ({"train": 1, "test/b": 1}, {}, "train/ has no class folder"),
        ({"train/a": 1, "test/a": 1}, {}, "train/ has only the class a, there is nothing to learn"),
        ({"train/a": 1, "train/b": 0, "test/a": 1}, {}, "no image in train/b"),
        ({"train/a": 1, "train/b": 1, "test/c": 1}, {}, "train/ has no class c, test/c has"),
        ({"train/a": 1, "train/b": 1, "test/a": 0}, {}, "there is no image in test/<class>/"),
        (
            {"train/a": 2, "train/b": 3, "test/a": 1},
            {"train_size": 6},
            "data.train_size=6: there are 5 training images",
        ),
        (
            {"train/a": 2, "train/b": 3, "test/a": 1},
            {"test_size": 2},
            "data.test_size=2: there are 1 test images",
        ),
        (
            {"train/a": 4, "train/b": 1, "test/a": 1},
            {"train_size": 4},
            "data.train_size=4: class 1 has 1 images, equal shares take 2 "
            "(train images; class 1 is b)",
        ),
    ],
)
def test_a_folder_that_cannot_work_is_refused_at_construction(
    tmp_path: Path, counts: dict[str, int], settings: dict, message: str
):
    write_folder(tmp_path, counts)
    defaults = {"image_size": None, "train_size": None, "test_size": None}
    line = construction_refusal(Folder, root=str(tmp_path), **(defaults | settings))
    assert message in line
    assert settings or line.startswith(f"data.root={tmp_path}: ")


def test_a_root_that_is_no_directory_is_refused(tmp_path: Path):
    settings = {"image_size": None, "train_size": None, "test_size": None}
    missing, file = tmp_path / "missing", tmp_path / "file"
    file.write_text("")
    assert "no such directory" in construction_refusal(Folder, root=str(missing), **settings)
    assert "this is a file" in construction_refusal(Folder, root=str(file), **settings)


# Digits and Synthetic


def digits_source(**settings) -> Digits:
    return Digits(**(dict.fromkeys(["image_size", "train_size", "test_size"]) | settings))


def test_digits_are_split_by_class_the_same_way_every_time():
    source = digits_source()
    data = source.load()
    assert (source.train_size, source.test_size) == (len(data.train), len(data.test))
    assert (len(data.train), len(data.test)) == (1437, 360)
    assert data.train.images.shape == (1437, 3, *source.image_size) == (1437, 3, 32, 32)
    assert data.train.labels.bincount().tolist() == list(Digits.train_counts)
    assert data.test.labels.bincount().tolist() == list(Digits.test_counts)
    assert data.train.labels.dtype == torch.int64
    assert torch.equal(data.train.images[:, 0], data.train.images[:, 2])
    assert data.warnings() == []
    torch.manual_seed(5)
    assert source.load().fingerprint == data.fingerprint


def test_digits_are_the_scaled_levels_of_scikit_learn():
    from sklearn.datasets import load_digits

    levels, labels = load_digits(return_X_y=True)
    small, large = digits_source(image_size=8).load(), digits_source().load()
    pixels = np.rint(levels * 255 / 16).astype(np.uint8)
    expected = Counter(
        (image.tobytes(), label) for image, label in zip(pixels, labels, strict=True)
    )
    got = Counter(
        (image[0].numpy().tobytes(), int(label))
        for half in (small.train, small.test)
        for image, label in zip(half.images, half.labels, strict=True)
    )
    assert got == expected
    original = Image.fromarray(small.train.images[3, 0].numpy())
    resized = np.asarray(original.resize((32, 32), Image.Resampling.BILINEAR), dtype=int)
    assert np.abs(large.train.images[3, 0].int().numpy() - resized).max() <= 1


def test_a_subset_of_digits_has_equal_shares():
    data = digits_source(train_size=101, test_size=30).load()
    assert sorted(data.train.labels.bincount().tolist()) == [10] * 9 + [11]
    assert data.test.labels.bincount().tolist() == [3] * 10


def test_too_many_digits_are_refused_at_construction():
    with pytest.raises(ValueError, match=r"data.train_size=1438: there are 1437 training images"):
        digits_source(train_size=1438)
    with pytest.raises(ValueError, match=r"data.test_size=360: class 2 has 35 images"):
        digits_source(test_size=360)


def synthetic_source(**settings) -> Synthetic:
    defaults = {"classes": 10, "image_size": 4, "train_size": 50, "test_size": 20}
    return Synthetic(**(defaults | settings))


def test_synthetic_images_have_the_sizes_asked_for():
    source = synthetic_source(classes=3, image_size=[4, 6])
    data = source.load()
    assert data.train.images.shape == (50, 3, 4, 6)
    assert data.test.images.shape == (20, 3, 4, 6)
    assert source.classes == data.classes == ["0", "1", "2"]
    assert sorted(data.train.labels.bincount().tolist()) == [16, 17, 17]
    assert data.train.images.min() == 0
    assert data.train.images.max() == 255
    assert not torch.equal(data.train.images[:20], data.test.images)


def test_synthetic_images_do_not_depend_on_the_seed():
    torch.manual_seed(1)
    first = synthetic_source().load()
    torch.manual_seed(2)
    assert synthetic_source().load().fingerprint == first.fingerprint


def test_synthetic_sizes_have_defaults():
    source = synthetic_source(train_size=None, test_size=None, image_size=None)
    assert (source.train_size, source.test_size) == (50_000, 10_000)
    assert source.image_size == (32, 32)
    assert len(synthetic_source(train_size=None, image_size=1).load().train) == 50_000


def test_one_class_is_refused():
    with pytest.raises(ValueError, match=r"data.classes=1: at least 2 classes are needed"):
        synthetic_source(classes=1)


def test_one_pixel_is_a_size():
    data = Digits(image_size=1, train_size=20, test_size=10).load()
    assert data.train.images.shape == (20, 3, 1, 1)


def test_a_pipe_among_the_images_is_passed_over(tmp_path: Path):
    for half in ("train", "test"):
        for label in ("cat", "dog"):
            (tmp_path / half / label).mkdir(parents=True)
            Image.new("RGB", (4, 4)).save(tmp_path / half / label / "1.png")
            os.mkfifo(tmp_path / half / label / "0.png")
    source = Folder(root=str(tmp_path), image_size=None, train_size=None, test_size=None)
    assert (source.train_size, source.test_size) == (2, 2)
