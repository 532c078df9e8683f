"""`python -m models.compressed_resnet.train` on scikit-learn's digits, files and arrays."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.compressed_resnet.data.batches import batch_indices, training_batches
from models.compressed_resnet.data.dataset import load_dataset
from models.compressed_resnet.train import main
from xlapipe.errors import XlapipeError

pytestmark = pytest.mark.jax

SMALL = ("--blocks", "1", "--width", "8", "--image-size", "16", "--batch", "16", "--json")


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The error of a command that must exit with 2."""
    try:
        code = main(arguments)
    except SystemExit as exit_:  # argparse's
        code = int(exit_.code or 0)
    assert code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(lines) == 1
    return lines[0]


def trained(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*SMALL, *arguments]) == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    """Forty images of 6×5 pixels, whose grey level is ten times their label."""
    labels = np.arange(40) % 4
    images = np.broadcast_to((labels * 10)[:, None, None], (40, 6, 5)).astype(np.uint8)
    np.savez(tmp_path / "images.npz", images=images, labels=labels)
    return tmp_path / "images.npz"


@pytest.mark.slow
def test_a_resumed_run_computes_the_same_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: make setup")
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    options = ("--steps", "4", "--save-every", "2", "--checkpoints")
    uninterrupted = trained(capsys, *options, str(whole))
    assert uninterrupted["first_step"] == 0
    assert len(uninterrupted["losses"]) == 4
    assert 0 <= uninterrupted["test_accuracy"] <= 1
    shutil.copytree(whole, resumed, ignore=shutil.ignore_patterns("4"))
    second_half = trained(capsys, *options, str(resumed))
    assert second_half["first_step"] == 2
    assert second_half["losses"] == uninterrupted["losses"][2:]
    assert second_half["test_accuracy"] == uninterrupted["test_accuracy"]
    states = [saved_leaves(folder / "4") for folder in (whole, resumed)]
    assert states[0] == states[1]
    assert len(states[0]) > 20
    error = error_of(capsys, *SMALL, "--bits", "4", *options, str(resumed))
    assert "its run has --bits 2; found 4; fix: pass the same options" in error
    error = error_of(capsys, *SMALL, "--steps", "3", "--checkpoints", str(resumed))
    assert "--steps 3: expected at least 4" in error
    for file in (resumed / "4" / "default").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    assert "not a checkpoint of this network" in error_of(capsys, *SMALL, *options, str(resumed))


def saved_leaves(checkpoint: Path) -> list[bytes]:
    """The bytes of every array of a checkpoint, in the order of their names."""
    import jax
    import orbax.checkpoint as ocp

    tree = ocp.StandardCheckpointer().restore(checkpoint / "default")
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


@pytest.mark.slow
def test_arrays_are_learned_with_and_without_compression(
    npz: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Images whose brightness is their class: the loss of both falls."""
    for bits in ("2", "none"):
        options = ("--data", str(npz), "--bits", bits, "--steps", "12", "--learning-rate", "0.05")
        result = trained(capsys, *options)
        assert (result["classes"], result["first_step"]) == (4, 0)
        assert np.mean(result["losses"][-3:]) < 0.8 * np.mean(result["losses"][:3])


@pytest.mark.slow
def test_a_loss_that_is_not_finite_is_an_error(
    npz: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--data", str(npz), "--steps", "20", "--learning-rate", "1e30")
    assert "the loss is " in error_of(capsys, *SMALL, *options)


def test_batches_are_a_function_of_seed_and_step() -> None:
    epochs = [
        [batch_indices(10, 3, 7, step) for step in range(first, first + 3)] for first in (0, 3)
    ]
    for epoch in epochs:
        images = [index for batch in epoch for index in batch]
        assert len(set(images)) == 9
        assert set(images) <= set(range(10))
    assert epochs[0] != epochs[1]
    assert batch_indices(10, 3, 8, 0) != epochs[0][0]


def test_arrays_are_resized_and_divided(npz: Path) -> None:
    training, testing = load_dataset(str(npz), 12)
    assert (len(training.labels), len(testing.labels), training.classes) == (32, 8, 4)
    images = training.images([3, 0])
    assert (images.shape, images.dtype) == ((2, 12, 12, 3), np.uint8)
    assert (images == 10 * training.labels[[3, 0]][:, None, None, None]).all()
    batches = list(training_batches(training, 8, 0, range(2, 4)))
    assert len(batches) == 2
    for step, (images, labels) in enumerate(batches, 2):
        indices = batch_indices(32, 8, 0, step)
        assert (labels == training.labels[indices]).all()
        assert (images == training.images(indices)).all()


@pytest.mark.parametrize("divided", [True, False])
def test_a_folder_has_a_folder_for_each_class(tmp_path: Path, divided: bool) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: make setup")
    parts = ("train", "val") if divided else (".",)
    for part in parts:
        for label, name in enumerate(("cat", "dog")):
            folder = tmp_path / part / name
            folder.mkdir(parents=True)
            for number in range(5):
                pixels = np.full((8, 20, 3), 0, np.uint8)
                # The central square has the class's colour.
                pixels[:, 6:14] = 100 + label
                image.fromarray(pixels).save(folder / f"{number}.png")
            (folder / "notes.txt").write_text("not an image")
    training, testing = load_dataset(str(tmp_path), 4)
    expected = (10, 10) if divided else (8, 2)
    assert (len(training.labels), len(testing.labels)) == expected
    for dataset in (training, testing):
        images = dataset.images(range(len(dataset.labels)))
        assert images.shape[1:] == (4, 4, 3)
        assert (images == 100 + dataset.labels[:, None, None, None]).all()
    (tmp_path / parts[0] / "cat" / "0.png").write_bytes(b"broken")
    with pytest.raises(XlapipeError, match=r"0\.png: not an image that Pillow can read"):
        training.images(range(len(training.labels)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--bits", "3"), "expected 2, 4, 8 or none; found '3'"),
        (("--batch", "0"), "expected an integer of at least 1; found '0'"),
        (("--blocks", "1,x"), "expected an integer of at least 1; found 'x'"),
        (("--seed", "-1"), "expected an integer of at least 0; found '-1'"),
        (("--learning-rate", "-1"), "expected a number above 0; found '-1'"),
        (("--data", "absent"), "found none of these"),
    ],
    ids=str,
)
def test_bad_options_are_one_error(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in error_of(capsys, *arguments)


def test_bad_data_is_one_error(
    npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def error(path: Path, *arguments: str) -> str:
        return error_of(capsys, "--data", str(path), *arguments)

    assert "--batch 33: expected at most 32" in error(npz, "--batch", "33")
    assert "--classes 3: expected at least 4" in error(npz, "--classes", "3")
    bad = tmp_path / "bad.npz"
    bad.write_bytes(b"not a zip")
    assert "expected arrays named 'images' and 'labels'" in error(bad)
    with bad.open("wb") as file:
        np.save(file, np.zeros(4))
    assert "expected arrays named 'images' and 'labels'" in error(bad)
    np.savez(bad, images=np.zeros((4, 2, 2, 3), np.uint8))
    assert "expected arrays named 'images' and 'labels'" in error(bad)
    np.savez(bad, images=np.zeros((4, 2, 2, 3)), labels=np.zeros(4, int))
    assert "images: expected uint8" in error(bad)
    np.savez(bad, images=np.zeros((4, 2, 2, 3), np.uint8), labels=np.zeros(3, int))
    assert "labels: expected 4 integers" in error(bad)
    np.savez(bad, images=np.zeros((4, 2, 2, 3), np.uint8), labels=np.array([0, 1, -1, 0]))
    assert "labels: expected class numbers from 0; found -1" in error(bad)
    (tmp_path / "empty").mkdir()
    pytest.importorskip("PIL", reason="Pillow is not installed: make setup")
    assert "found 0 and 0" in error(tmp_path / "empty")
