from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from docleak.documents.files import (
    describe_folder,
    image_size,
    images_by_stem,
    read_image,
    read_json,
    read_json_lines,
    require_new,
)
from docleak.errors import DocumentError


def test_json_errors_name_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"a": 1,\n "b" 2}')
    with pytest.raises(DocumentError, match=r"x\.json: not JSON at line 2, column 6"):
        read_json(path)


def test_json_lines_collect_every_fault(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes('\ufeff{"a": "\u2028"}\r\n\n[1]\n{"b": }\n{"c": 3}'.encode())
    rows, faults = read_json_lines(path)
    assert rows == [(1, {"a": "\u2028"}), (5, {"c": 3})]
    assert faults[0].startswith("line 3: a JSON list") and faults[1].startswith("line 4, column 7: not JSON")


def test_text_that_is_not_utf8_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "latin.json").write_bytes(b'{"a": "caf\xe9"}')
    with pytest.raises(DocumentError, match="byte 10 is not UTF-8"):
        read_json(tmp_path / "latin.json")
    with pytest.raises(DocumentError, match="No such file"):
        read_json(tmp_path / "absent.json")


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "CMYK"])
def test_images_of_every_common_mode_become_rgb(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("x.tif" if mode == "CMYK" else "x.png")
    Image.new(mode, (7, 5)).save(path)
    image = read_image(path)
    assert image.shape == (5, 7, 3) and image.dtype == np.uint8
    assert (image == (255 if mode in ("RGBA", "LA", "CMYK") else 0)).all()  # transparency is laid on white


def test_images_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="no such image"):
        read_image(tmp_path / "absent.png")
    (tmp_path / "text.png").write_text("not an image")
    with pytest.raises(DocumentError, match="cannot be decoded"):
        read_image(tmp_path / "text.png")
    Image.effect_noise((64, 64), 50).save(tmp_path / "whole.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:900])
    with pytest.raises(DocumentError, match="cannot be decoded"):
        read_image(tmp_path / "cut.png")
    Image.fromarray(np.full((4, 4), 40000, np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(DocumentError, match="8 bits"):
        read_image(tmp_path / "deep.png")
    frame = Image.new("L", (4, 4))
    frame.save(tmp_path / "two.tif", save_all=True, append_images=[frame])
    with pytest.raises(DocumentError, match="2 frames"):
        read_image(tmp_path / "two.tif")


def test_a_picture_that_one_may_not_read_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "a.png")

    monkeypatch.setattr(Image, "open", refused)
    with pytest.raises(DocumentError, match=r"a\.png may not be read .*the right to read it") as told:
        read_image(tmp_path / "a.png")
    assert "Restore" not in str(told.value)


def test_a_folder_that_may_not_be_written_to_is_not_replaced(tmp_path: Path) -> None:
    """Also as root, who may write anywhere: whoever took that right from all wanted nothing written."""
    (tmp_path / "read-only").mkdir(mode=0o555)
    with pytest.raises(DocumentError, match=r"read-only is a folder .*not be written to"):
        require_new(tmp_path / "read-only", "pages")
    (tmp_path / "mine").mkdir()
    require_new(tmp_path / "mine", "pages")
    require_new(tmp_path / "new", "pages")


def test_photos_are_turned_only_if_asked(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the stored picture is to be turned by 90 degrees
    Image.new("RGB", (30, 10)).save(tmp_path / "x.jpg", exif=exif)
    assert read_image(tmp_path / "x.jpg").shape[:2] == (10, 30)
    assert read_image(tmp_path / "x.jpg", upright=True).shape[:2] == (30, 10)


def test_a_png_tells_that_it_is_turned_in_each_way_and_a_plain_ones_pixels_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size of a page is asked of a whole folder; a PNG may say that it is turned behind its pixels."""
    exif = Image.Exif()
    exif[0x0112] = 6
    told = {name: PngImagePlugin.PngInfo() for name in ("raw", "xmp", "packed")}
    told["raw"].add_text("Raw profile type exif", "\nexif\n1\n" + exif.tobytes().hex(), zip=True)
    for name in ("xmp", "packed"):
        told[name].add_itxt("XML:com.adobe.xmp", '<x tiff:Orientation="6"/>', zip=name == "packed")
    picture, files = Image.new("RGB", (30, 10)), {name: tmp_path / f"{name}.png" for name in (*told, "exif", "late")}
    for name, words in told.items():
        picture.save(files[name], pnginfo=words)
    picture.save(files["exif"], exif=exif)
    content = files["exif"].read_bytes()
    at = content.index(b"eXIf") - 4
    chunk = content[at : at + 12 + int.from_bytes(content[at : at + 4], "big")]
    end = content.index(b"IEND") - 4
    files["late"].write_bytes(content[:at] + content[at + len(chunk) : end] + chunk + content[end:])
    for file in files.values():
        assert image_size(file, upright=True) == (10, 30) == read_image(file, upright=True).shape[1::-1], file.name
        assert image_size(file) == (30, 10), file.name
    picture.save(tmp_path / "plain.png")
    content = (tmp_path / "plain.png").read_bytes()
    (tmp_path / "short.png").write_bytes(content[: content.index(b"IDAT") + 8])
    assert image_size(tmp_path / "short.png", upright=True) is None  # it was cut off
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", None)
    assert image_size(tmp_path / "plain.png", upright=True) == (30, 10)


def test_images_by_stem_prefers_lossless_and_ignores_other_files(tmp_path: Path) -> None:
    for name in ("a.jpg", "a.png", "b.JPG", "notes.txt"):
        (tmp_path / name).touch()
    assert {k: v.name for k, v in images_by_stem(tmp_path).items()} == {"a": "a.png", "b": "b.JPG"}


def test_describe_folder(tmp_path: Path) -> None:
    assert describe_folder(tmp_path / "absent") == "does not exist"
    assert describe_folder(tmp_path) == "is an empty folder"
    for i in range(10):
        (tmp_path / f"{i}").touch()
    assert describe_folder(tmp_path).endswith("7 and 2 more")
    assert describe_folder(tmp_path / "1") == "is a file"
