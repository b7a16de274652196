import io

import numpy as np
import pytest
import torch
from PIL import Image

from guided_collapse.experiments.data import pictures as module
from guided_collapse.experiments.data.pictures import Pictures, decode, usual_size
from tests.experiments.data.made_up import encode


def picture(height, width, channels=3):
    return np.random.default_rng(0).integers(0, 256, (height, width, channels)).astype(np.uint8)


def saved(image, file_format="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_of_the_right_size_is_itself_in_gray_or_color(channels):
    image = picture(6, 9, channels)
    pixels = torch.from_numpy(image.transpose(2, 0, 1))
    assert torch.equal(decode(encode(image), (channels, 6, 9), name="it"), pixels)
    assert torch.equal(decode(encode(image), (3, 6, 9), name="it"), pixels.expand(3, 6, 9))
    assert decode(encode(image), (1, 6, 9), name="it").shape == (1, 6, 9)


@pytest.mark.parametrize(("height", "width"), [(8, 14), (15, 8), (40, 16), (5, 4), (3, 11)])
def test_an_oblong_image_is_scaled_and_cut_to_its_center(height, width):
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


@pytest.mark.parametrize("mode", ["RGBA", "P", "LA", "1", "CMYK", "P with transparency"])
def test_images_of_other_modes(mode):
    image = Image.fromarray(picture(4, 4)).convert(mode.split()[0])
    options = {"transparency": bytes(range(256))} if "transparency" in mode else {}
    expected = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    contents = saved(image, "TIFF" if mode == "CMYK" else "PNG", **options)
    assert torch.equal(decode(contents, (3, 4, 4), name="it"), torch.from_numpy(expected.copy()))


def test_of_several_frames_the_first_is_taken():
    frames = [Image.fromarray(np.full((4, 4, 3), value, dtype=np.uint8)) for value in (10, 200)]
    contents = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode(contents, (3, 4, 4), name="it").unique().tolist() == [10]


def test_a_large_jpeg_is_close_to_a_plain_reduction():
    rows, columns = np.mgrid[0:400, 0:600]
    smooth = np.stack([rows * 0.6, columns * 0.4, (rows + columns) * 0.25], axis=2).astype(np.uint8)
    contents = encode(smooth, "JPEG")
    result = decode(contents, (3, 32, 32), name="it").int()
    plain = Image.open(io.BytesIO(contents)).resize((48, 32), Image.Resampling.BOX).crop((8, 0, 40, 32))
    assert int((result - torch.from_numpy(np.array(plain).transpose(2, 0, 1)).int()).abs().max()) <= 6


def test_an_unreadable_image_is_named():
    short = [encode(picture(30, 30))[:-400], encode(picture(30, 30), "JPEG")[:300]]
    for contents in (b"", b"no image", *short, saved(Image.fromarray(np.full((4, 4), 5000, np.uint16)))):
        with pytest.raises(ValueError, match="every image must be readable; the third one is not"):
            decode(contents, (3, 8, 8), name="the third one")


def test_the_usual_size_is_that_of_most_pictures(tmp_path, monkeypatch):
    def saved_as(name, *size):
        (tmp_path / name).write_bytes(encode(picture(*size)))
        return str(tmp_path / name)

    first, others, wide = saved_as("first", 9, 9), saved_as("others", 30, 40), saved_as("wide", 30, 4000)
    assert usual_size([first, others, wide, others]) == (30, 40)
    assert usual_size([first, wide, wide]) == (30, 256)
    assert usual_size([first, others]) == (9, 9)  # a tie
    monkeypatch.setattr(module, "MAX_INSPECTED", 3)
    assert usual_size([first, "not even opened"] * 3) == (9, 9)


def test_pictures_come_from_files_bytes_and_rows(tmp_path, monkeypatch):
    contents = [encode(picture(5 + number, 7)) for number in range(3)]
    for number, content in enumerate(contents):
        (tmp_path / f"{number}.png").write_bytes(content)
    shape = (3, 5, 7)
    pictures = Pictures([str(path) for path in sorted(tmp_path.iterdir())], shape)
    expected = torch.stack([decode(content, shape, name="it") for content in contents])
    for same in (pictures, Pictures(contents, shape), Pictures([{"bytes": content} for content in contents], shape)):
        assert len(same) == 3
        assert torch.equal(same.to_memory(), expected)
    for limit, fits in ((3 * 3 * 5 * 7, True), (3 * 3 * 5 * 7 - 1, False)):
        monkeypatch.setattr(module, "IN_MEMORY_BYTES", limit)
        assert pictures.fit_in_memory == fits


def test_postscript_under_another_name_starts_no_program(monkeypatch):
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *arguments, **options: pytest.fail("Ghostscript was started"))
    contents = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
    with pytest.raises(ValueError, match=r"every image must be readable; it is not: it is none of PNG, JPEG"):
        decode(contents, (3, 8, 8), name="it")


@pytest.mark.parametrize("side", [8, 40, 256])
@pytest.mark.parametrize("size", [(1, 1_000_000), (1_000_000, 1)])
def test_a_narrow_picture_is_refused_before_it_takes_memory(size, side):
    contents = saved(Image.new("L", size))
    with pytest.raises(ValueError, match=rf"it has {size[0]} x {size[1]} pixels, which would be .* when scaled.*crop it"):
        decode(contents, (3, side, side), name="it")
    assert decode(saved(Image.new("L", (20, 4000))), (3, 40, 40), name="it").shape == (3, 40, 40)


def test_a_picture_of_too_many_pixels_is_refused_with_its_name(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 600)
    for side in (30, 40):  # Pillow warns of the first and refuses the second
        with pytest.raises(ValueError, match=r"every image must be readable; it is not: .*exceeds limit of"):
            decode(encode(picture(side, side)), (3, 8, 8), name="it")


def test_every_format_that_is_named_can_be_read():
    image = Image.fromarray(np.full((4, 5, 3), 77, dtype=np.uint8))
    for file_format in module.FORMATS:
        assert (decode(saved(image, file_format), (3, 4, 5), name=file_format).int() - 77).abs().max() < 4
    assert {Image.registered_extensions()[suffix] for suffix in module.SUFFIXES} == set(module.FORMATS)


def test_a_file_that_is_missing_is_named(tmp_path):
    path = str(tmp_path / "missing.png")
    for read in (lambda path: decode(path, (3, 8, 8), name=path), lambda path: usual_size([path])):
        with pytest.raises(ValueError, match=f"every image must be readable; {path} is not: .*No such file"):
            read(path)
