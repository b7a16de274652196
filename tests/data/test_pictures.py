import io

import numpy as np
import pytest
import torch
from PIL import Image

from guided_collapse.data.pictures import Files, Pictures, decode, image_size_of
from tests.data.made_up import encode


def picture(height, width, channels=3):
    return np.random.default_rng(0).integers(0, 256, (height, width, channels)).astype(np.uint8)


def saved(image, file_format="PNG"):
    buffer = io.BytesIO()
    image.save(buffer, file_format)
    return buffer.getvalue()


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_of_the_right_size_is_itself(channels):
    image = picture(6, 9, channels)
    assert torch.equal(decode(encode(image), (channels, 6, 9), name="it"), torch.from_numpy(image.transpose(2, 0, 1)))


@pytest.mark.parametrize(("height", "width"), [(8, 14), (15, 8), (40, 16), (5, 4), (3, 11)])
def test_an_oblong_image_is_scaled_and_cut_to_its_centre(height, width):
    # Left to right the image goes from red to green, top to bottom from dark to light blue.
    image = np.zeros((height, width, 3), dtype=np.uint8)
    image[:, :, 0] = np.linspace(0, 250, width)
    image[:, :, 2] = np.linspace(0, 250, height)[:, None]
    result = decode(encode(image), (3, 8, 8), name="it").float()
    assert result.shape == (3, 8, 8)
    assert float((result[0].mean() - 125).abs()) < 10
    assert float((result[2].mean() - 125).abs()) < 10
    across, down = float(result[0].max() - result[0].min()), float(result[2].max() - result[2].min())
    # The shorter side is seen whole, the longer one in part.
    assert (across > down) == (width < height)


def test_grey_becomes_colour_and_colour_grey():
    grey = picture(4, 4, 1)
    assert torch.equal(decode(encode(grey), (3, 4, 4), name="it"), torch.from_numpy(grey.transpose(2, 0, 1)).expand(3, 4, 4))
    assert decode(encode(picture(4, 4)), (1, 4, 4), name="it").shape == (1, 4, 4)


@pytest.mark.parametrize("mode", ["RGBA", "P", "LA", "1", "CMYK"])
def test_images_of_other_modes(mode):
    image = Image.fromarray(picture(4, 4)).convert(mode)
    file_format = "TIFF" if mode == "CMYK" else "PNG"
    expected = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    assert torch.equal(decode(saved(image, file_format), (3, 4, 4), name="it"), torch.from_numpy(expected.copy()))


def test_a_large_jpeg_is_close_to_a_plain_reduction():
    rows, columns = np.mgrid[0:400, 0:600]
    smooth = np.stack([rows * 0.6, columns * 0.4, (rows + columns) * 0.25], axis=2).astype(np.uint8)
    contents = encode(smooth, "JPEG")
    result = decode(contents, (3, 32, 32), name="it").int()
    plain = Image.open(io.BytesIO(contents)).resize((48, 32), Image.Resampling.BOX).crop((8, 0, 40, 32))
    assert int((result - torch.from_numpy(np.array(plain).transpose(2, 0, 1)).int()).abs().max()) <= 6


@pytest.mark.parametrize(
    "contents",
    [
        b"",
        b"no image",
        encode(picture(30, 30))[:-400],
        encode(picture(30, 30), "JPEG")[:300],
        saved(Image.fromarray(np.full((4, 4), 5000, np.uint16))),
    ],
    ids=["empty", "text", "short PNG", "short JPEG", "16 bits"],
)
def test_an_unreadable_image_is_named(contents):
    with pytest.raises(ValueError, match="every image must be readable; the third one is not"):
        decode(contents, (3, 8, 8), name="the third one")


def test_an_unreadable_file_is_named(tmp_path):
    for source in (tmp_path / "missing.png", tmp_path):
        with pytest.raises(ValueError, match="every image must be readable; it is not"):
            decode(source, (3, 8, 8), name="it")
        with pytest.raises(ValueError, match="every image must be readable; it is not"):
            image_size_of(source, name="it")


def test_sizes():
    assert image_size_of(encode(picture(30, 40)), name="it") == (30, 40)
    assert image_size_of(encode(picture(30, 4000)), name="it") == (30, 256)


def test_pictures_are_the_same_one_by_one_and_in_memory(tmp_path):
    images = [picture(5 + number, 7) for number in range(3)]
    for number, image in enumerate(images):
        (tmp_path / f"{number}.png").write_bytes(encode(image))
    pictures = Pictures(Files(sorted(tmp_path.iterdir())), (3, 5, 7))
    assert len(pictures) == 3
    assert pictures.num_bytes == 3 * 3 * 5 * 7
    assert torch.equal(pictures.to_memory(), torch.stack([pictures[index] for index in range(3)]))
