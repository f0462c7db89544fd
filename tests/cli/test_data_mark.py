"""Marking fields by mouse: with real requests, also of strangers, and in a headless Chromium."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from docleak.documents import Field, folder
from docleak.documents.loaders import load_pages
from docleak.documents.marking import MOST_BYTES, Marking, MarkingServer
from docleak.documents.synthetic import make_pages
from docleak.errors import DocumentError
from tests.cli.browser import browser


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """Two synthetic pages; the first has words and no field, the second a field without a place."""
    path = folder.save(make_pages(2, seed=0), tmp_path / "pages")
    rows = [json.loads(line) for line in (path / folder.INDEX).read_text().splitlines()]
    rows[0]["fields"], rows[1]["fields"] = [], [{"key": "open", "value": "</script><b>x", "words": []}]
    (path / folder.INDEX).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def server(pages: Path) -> Iterator[MarkingServer]:
    with MarkingServer(Marking(pages)) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(
    server: MarkingServer, path: str, body: Any = None, *, method: str = "", token: str | None = None, **headers: str
) -> tuple[int, Any, dict[str, str]]:  # fmt: skip
    """Status, body and headers of a request with the headers of the server's own page, but for ``headers``."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    home = f"127.0.0.1:{server.server_port}"
    said = {"Host": home} | (
        {"Origin": f"http://{home}", "Content-Type": "application/json"} if body is not None else {}
    )
    said |= {key.replace("_", "-"): value for key, value in headers.items()}
    content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    way = server.token if token is None else token
    sent = {key: value for key, value in said.items() if value}
    connection.putrequest(method or ("POST" if body is not None else "GET"), f"/{way}/{path}", skip_host=True)
    for key, value in (sent | ({"Content-Length": str(len(content))} if content is not None else {})).items():
        connection.putheader(key, value)
    connection.endheaders(content)
    answer = connection.getresponse()
    raw = answer.read()
    connection.close()
    payload = json.loads(raw) if answer.headers.get_content_type() == "application/json" else raw
    return answer.status, payload, dict(answer.headers)


def test_a_drawn_field_is_the_words_in_it_and_other_lines_stay(server: MarkingServer, pages: Path) -> None:
    lines = (pages / folder.INDEX).read_text().splitlines()
    status, page, _ = ask(server, "page/0")
    word = page["words"][3]
    drawn = {"key": "k", "value": word["text"], "private": True, "drawn": True, "box": word["box"]}
    exact = {"key": "signature", "value": "J. Doe", "private": False, "box": [1, 2, 9, 8]}
    status, saved, _ = ask(server, "page/0", {"version": page["version"], "fields": [drawn, exact]})
    assert status == 200 and [field["boxes"] for field in saved["fields"]] == [[word["box"]], [[1, 2, 9, 8]]]
    after = (pages / folder.INDEX).read_text().splitlines()
    assert after[1:] == lines[1:] and (pages / folder.INDEX).stat().st_mode & 0o777 == 0o600
    (read, _) = load_pages(str(pages), seed=0)
    assert read.fields[0] == Field("k", word["text"], (3,)) and not read.fields[1].private
    old, new = json.loads(lines[0]), json.loads(after[0])
    assert {key: new[key] for key in old if key != "fields"} == {key: old[key] for key in old if key != "fields"}
    assert ask(server, "pages")[1]["pages"][1]["open"] == 1
    assert ask(server, "image/0")[1][:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("headers", "token", "status"),
    [
        ({"Host": "evil.example"}, None, 403),  # a name of another site that points here
        ({"Host": "evil.example:{port}"}, None, 403),
        ({"Host": ""}, None, 403),
        ({"Origin": "https://evil.example"}, None, 403),
        ({"Origin": "null"}, None, 403),
        ({"Origin": ""}, None, 403),
        ({"Origin": "http://localhost:{port}"}, None, 403),  # its own page is at the host that it asked
        ({"Sec_Fetch_Site": "cross-site"}, None, 403),
        ({"Sec_Fetch_Site": "same-site"}, None, 403),
        ({"Content_Type": "text/plain"}, None, 415),  # what a form of another site can send
        ({"Content_Type": "application/x-www-form-urlencoded"}, None, 415),
        ({}, "wrong", 404),
        ({}, "", 404),
        ({}, "%C3%A9", 404),
    ],
)
def test_strangers_change_and_see_nothing(
    server: MarkingServer, pages: Path, headers: dict[str, str], token: str | None, status: int
) -> None:  # fmt: skip
    before = (pages / folder.INDEX).read_bytes()
    version = ask(server, "page/0")[1]["version"]
    said = {key: value.format(port=server.server_port) for key, value in headers.items()}
    body = {"version": version, "fields": [{"key": "k", "value": "v", "box": [1, 1, 5, 5]}]}
    assert ask(server, "page/0", body, token=token, **said)[:2] == (status, b"")
    assert (pages / folder.INDEX).read_bytes() == before
    if "Content_Type" not in headers and headers.get("Origin", "x"):
        assert ask(server, "page/0", token=token, **said)[:2] == (status, b"")


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("page/0", {"fields": [{"key": "k", "value": "v", "box": [1, 1, 9999, 5]}]}, 409, "leaves the page"),
        ("page/0", {"fields": [{"key": "k", "value": 3}]}, 409, "'value' is 3"),
        ("page/0", {"fields": [{"key": "k", "value": "v", "words": [999]}]}, 409, "numbers of the page's"),
        ("page/0", {"fields": [{"key": "k", "value": "v", "drawn": True, "box": "x"}]}, 409, "box 'x'"),
        ("page/0", {"fields": ["x"]}, 409, "a field is no object"),
        ("page/0", {"fields": 3}, 400, ""),
        ("page/0", {"version": "old", "fields": []}, 409, "was changed meanwhile"),
        ("page/9", {"fields": []}, 400, ""),
        ("page/-1", {"fields": []}, 400, ""),
        ("image/0", {"fields": []}, 404, ""),
        ("page/0", b"{", 400, ""),
        ("page/0", b"\xff", 400, ""),
        ("page/0", b"", 413, ""),
        ("page/0", [], 400, ""),
    ],
)
def test_what_no_page_can_have_is_refused(
    server: MarkingServer, pages: Path, path: str, body: Any, status: int, said: str
) -> None:  # fmt: skip
    before = (pages / folder.INDEX).read_bytes()
    if isinstance(body, dict):
        body = {"version": server.marking.version} | body
    answer = ask(server, path, body)
    assert answer[0] == status and said in str(answer[1]), answer
    assert (pages / folder.INDEX).read_bytes() == before


def test_other_addresses_and_large_bodies(server: MarkingServer) -> None:
    for path in (
        "../pages.jsonl",
        "image/../../pages.jsonl",
        "image/%2e%2e",
        "image/0/x",
        "image/",
        "image/%C2%B2",
        "x",
    ):
        assert ask(server, path)[0] in (400, 404), path
    assert ask(server, "page/0", b"{}", Content_Length=str(MOST_BYTES + 1))[0] in (400, 413)
    status, text, headers = ask(server, "")
    assert status == 200 and b"NONCE" not in text and "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "no-referrer" and headers["Cache-Control"] == "no-store"
    assert "Python" not in headers["Server"]
    assert MarkingServer(server.marking).token != server.token and server.server_address[0] == "127.0.0.1"


def test_a_change_by_someone_else_is_not_overwritten(server: MarkingServer, pages: Path) -> None:
    version = ask(server, "page/1")[1]["version"]
    lines = (pages / folder.INDEX).read_text().splitlines()
    (pages / folder.INDEX).write_text(lines[1] + "\n")
    assert ask(server, "page/0", {"version": version, "fields": []})[0] == 409
    assert (pages / folder.INDEX).read_text() == lines[1] + "\n"
    assert len(ask(server, "pages")[1]["pages"]) == 1


def test_images_alone_get_an_index_with_the_first_change(tmp_path: Path) -> None:
    Image.new("RGB", (30, 20), "white").save(tmp_path / "b.png")
    shutil.copy(tmp_path / "b.png", tmp_path / "a.png")
    (tmp_path / "c.heic").write_text("")
    marking = Marking(tmp_path)
    assert marking.left_out == ["c.heic"]
    assert len(marking) == 2 and not (tmp_path / folder.INDEX).exists()
    marking.save(1, "", [{"key": "k", "value": "v", "box": [1, 1, 9, 9], "drawn": True}])
    first, second = load_pages(str(tmp_path), seed=0)
    assert (first.name, first.fields) == ("a", ()) and second.fields == (Field("k", "v", (0,)),)
    (tmp_path / folder.INDEX).write_text('{"image": "c.png"}')
    with pytest.raises(DocumentError, match=r"there is no image 'c\.png'"):
        Marking(tmp_path)


def test_with_a_mouse(server: MarkingServer, pages: Path, tmp_path: Path) -> None:
    """In Chromium: a rectangle around a word makes a field, a field without a place gets one, another is deleted."""
    with browser(tmp_path / "profile", server.url) as tab:
        tab.wait_for("document.querySelectorAll('.word').length > 3")
        at = "(i => { const r = document.querySelectorAll('.word')[i].getBoundingClientRect(); " \
             "return [r.left, r.top, r.right, r.bottom]; })"  # fmt: skip
        x0, y0, x1, y1 = tab.run(f"{at}(3)")
        tab.drag((x0 - 1, y0 - 1), (x1 + 1, y1 + 1))
        tab.wait_for("!document.getElementById('form').hidden")
        words = server.marking.row(0)["words"]
        assert tab.run("document.getElementById('value').value") == words[3]["text"]
        tab.run("document.getElementById('key').value = 'marked'; document.querySelector('#form button').click()")
        tab.wait_for("document.getElementById('status').textContent === 'saved'")
        assert load_pages(str(pages), seed=0)[0].fields == (Field("marked", words[3]["text"], (3,)),)

        tab.run("document.querySelectorAll('#pages button')[1].click()")
        tab.wait_for("document.querySelector('li.open') !== null")
        assert tab.run("document.querySelector('li.open').textContent").startswith("open: </script><b>x")
        tab.run("document.querySelector('li.open button').click()")
        x0, y0, x1, y1 = tab.run(f"{at}(5)")
        tab.drag((x1 + 1, y1 + 1), (x0 - 1, y0 - 1))
        tab.wait_for("document.querySelector('li.open') === null && document.querySelector('.field') !== null")
        assert load_pages(str(pages), seed=0)[1].fields == (Field("open", "</script><b>x", (5,)),)

        tab.run("[...document.querySelectorAll('aside li button')].at(-1).click()")
        tab.wait_for("document.querySelectorAll('aside li').length === 0")
        assert load_pages(str(pages), seed=0)[1].fields == () and not tab.errors
