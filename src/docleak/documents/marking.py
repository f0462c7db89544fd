"""Mark private fields by mouse: a page of one file, served to this machine's browser alone.

Whoever can open a port of this machine could ask for the pages, and any site in the browser could try. So the server
listens on 127.0.0.1; every address begins with a secret that is new each time; a request must name this server as its
host (a name that another site had point here is refused) and come from its own page; a request that changes something
must say so by its origin and be JSON, which no form of another site can send.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from docleak.documents.files import IMAGE_SUFFIXES, describe_folder, inside, raise_faults, read_image, read_text
from docleak.documents.folder import INDEX, line_faults, load, page_name, shared_stems, words_and_fields
from docleak.documents.page import line_boxes
from docleak.errors import DocleakError, DocumentError
from docleak.files import parse_json, png_bytes, write_atomically

LOCAL = "127.0.0.1"
#: Bytes of a request at most: thousands of fields.
MOST_BYTES = 4_000_000
#: Seconds after which a silent client is left.
PATIENCE = 30
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


@dataclass
class Marking:
    """A folder of pages, and changes of its ``pages.jsonl``: one page's fields at a time, the other lines untouched.

    A folder with images and no index gets one with the first change. Raises DocumentError for a folder that ``load``
    does not take, or without images.
    """

    folder: Path
    lines: list[str] = field(init=False)
    places: list[int] = field(init=False)
    version: str = field(init=False)
    #: Files beside the images of a folder without an index that are none that docleak reads.
    left_out: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        if (self.folder / INDEX).is_file():
            load(self.folder)
        self._read()

    def _read(self) -> None:
        index = self.folder / INDEX
        if index.is_file():
            text = read_text(index)
            self.lines, self.version = text.split("\n"), _digest(index)
        else:
            files = sorted(p for p in self.folder.iterdir() if p.is_file()) if self.folder.is_dir() else []
            images = [p.name for p in files if p.suffix.lower() in IMAGE_SUFFIXES and inside(self.folder, p.name)]
            self.left_out = [p.name for p in files if p.name not in images and not p.name.startswith(".")]
            if not images:
                raise DocumentError(
                    f"{self.folder} {describe_folder(self.folder)}; expected page images, or {INDEX} beside them. PDFs "
                    "become such a folder with docleak data convert pdf:FOLDER NEW-FOLDER."
                )
            self.lines, self.version = [json.dumps({"image": name}, ensure_ascii=False) for name in images] + [""], ""
        self.places = [number for number, line in enumerate(self.lines) if line.strip()]

    def __len__(self) -> int:
        return len(self.places)

    def row(self, number: int) -> dict[str, Any]:
        """Page ``number`` (from 0) as its line says."""
        row: dict[str, Any] = parse_json(self.lines[self.places[number]])
        return row

    def overview(self) -> list[dict[str, object]]:
        """Name and numbers of fields, placed and not, of each page."""
        with self._lock:
            rows = [self.row(number) for number in range(len(self))]
        shared = shared_stems(rows)
        return [
            {
                "name": page_name(row, shared),
                "fields": len(row.get("fields", [])),
                "open": sum("box" not in item and not item.get("words") for item in row.get("fields", [])),
            }
            for row in rows
        ]

    def page(self, number: int) -> dict[str, object]:
        """The words of a page, its fields as the index has them, and the boxes to show for each."""
        with self._lock:
            row, version = self.row(number), self.version
        words, fields = words_and_fields(row)
        height, width, _ = read_image(self.folder / row["image"], upright=True).shape
        count = len(row.get("words", []))
        return {
            "version": version,
            "width": width,
            "height": height,
            "words": [{"text": word.text, "box": word.box} for word in words[:count]],
            "fields": [
                item | {"boxes": line_boxes([words[index].box for index in made.words])}
                for item, made in zip(row.get("fields", []), fields, strict=True)
            ],
        }

    def picture(self, number: int) -> bytes:
        """The page's picture as PNG, upright."""
        return png_bytes(read_image(self.folder / self.row(number)["image"], upright=True))

    def save(self, number: int, version: str, fields: list[Any]) -> None:
        """Replace the fields of a page. Raises DocumentError, and writes nothing, for fields that no page can have, or
        if the index is not the one of ``version``: someone else has changed it.

        A field that is ``drawn`` has a box: it becomes the words whose middle lies in it, if there are some.
        """
        with self._lock:
            index = self.folder / INDEX
            if version != self.version or (_digest(index) if index.exists() else "") != self.version:
                self._read()
                raise DocumentError(f"{INDEX} was changed meanwhile. The page was read again; repeat the last step.")
            row = self.row(number)
            row["fields"] = [_settled(item, row) for item in fields]
            raise_faults(self.folder / INDEX, line_faults(row, self.folder), "Nothing was saved.")
            lines = [*self.lines]
            lines[self.places[number]] = json.dumps(row, ensure_ascii=False)
            write_atomically(index, "\n".join(lines).encode())
            self.lines, self.version = lines, _digest(index)


def _digest(index: Path) -> str:
    return hashlib.sha256(index.read_bytes()).hexdigest()


def _settled(item: Any, row: Mapping[str, Any]) -> Any:
    """A field as the browser sent it, as the index holds it."""
    if not isinstance(item, dict):
        raise DocumentError("a field is no object. Nothing was saved.")
    kept = {key: value for key, value in item.items() if key not in ("boxes", "drawn")}
    if kept.get("private") is True:
        del kept["private"]
    if item.get("drawn"):
        under = [index for index, word in enumerate(row.get("words", [])) if _inside(word["box"], item.get("box"))]
        if under:
            del kept["box"]
            kept["words"] = under
    return kept


def _inside(box: list[float], outer: Any) -> bool:
    if not (isinstance(outer, list) and len(outer) == 4 and all(isinstance(v, int | float) for v in outer)):
        return False
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    return bool(outer[0] <= x <= outer[2] and outer[1] <= y <= outer[3])


class MarkingServer(ThreadingHTTPServer):
    """Serves a Marking on 127.0.0.1 at ``port`` (0: a free one), below a secret address.

    ``url`` is to be opened in a browser. ``serve_forever`` works until it is interrupted.
    """

    daemon_threads = True

    def __init__(self, marking: Marking, port: int = 0) -> None:
        self.marking, self.token = marking, secrets.token_urlsafe(24)
        super().__init__((LOCAL, port), _Handler)
        self.hosts = {f"{name}:{self.server_port}" for name in (LOCAL, "localhost")}

    @property
    def url(self) -> str:
        return f"http://{LOCAL}:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: MarkingServer
    timeout = PATIENCE
    server_version, sys_version = "docleak", ""

    def do_GET(self) -> None:
        self._answer(changing=False)

    def do_POST(self) -> None:
        self._answer(changing=True)

    def _answer(self, *, changing: bool) -> None:
        refusal = self._refusal(changing)
        if refusal:
            return self._send(refusal, b"", "text/plain")
        try:
            return self._save() if changing else self._show()
        except DocleakError as error:
            return self._send(HTTPStatus.CONFLICT, json.dumps({"error": str(error)}).encode(), "application/json")
        except (ValueError, LookupError, TypeError, OSError):
            return self._send(HTTPStatus.BAD_REQUEST, b"", "text/plain")

    def _refusal(self, changing: bool) -> HTTPStatus | None:
        """Why the request is none of this page's own, or None."""
        headers = self.headers
        if headers.get_all("Host", []) != [host := headers.get("Host", "")] or host not in self.server.hosts:
            return HTTPStatus.FORBIDDEN
        origin = headers.get("Origin")
        if (origin is not None or changing) and origin != f"http://{host}":
            return HTTPStatus.FORBIDDEN
        if headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return HTTPStatus.FORBIDDEN
        token = self.path.split("/")[1] if self.path.count("/") > 1 else ""
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode()):
            return HTTPStatus.NOT_FOUND
        if changing and headers.get_content_type() != "application/json":
            return HTTPStatus.UNSUPPORTED_MEDIA_TYPE
        return None

    def _show(self) -> None:
        marking, what = self.server.marking, self.path.split("/")[2:]
        if what == [""]:
            nonce = secrets.token_urlsafe(16)
            text = Path(__file__).with_name("marking.html").read_text("utf-8").replace("NONCE", nonce)
            rules = f"default-src 'none'; img-src 'self' data:; connect-src 'self'; script-src 'nonce-{nonce}'; "
            rules += f"style-src 'nonce-{nonce}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
            return self._send(HTTPStatus.OK, text.encode(), "text/html; charset=utf-8", rules)
        if what == ["pages"]:
            return self._json({"folder": marking.folder.name, "pages": marking.overview()})
        if what[:1] == ["page"]:
            return self._json(marking.page(self._number(what)))
        if what[:1] == ["image"]:
            return self._send(HTTPStatus.OK, marking.picture(self._number(what)), "image/png")
        return self._send(HTTPStatus.NOT_FOUND, b"", "text/plain")

    def _save(self) -> None:
        what, length = self.path.split("/")[2:], int(self.headers.get("Content-Length", ""))
        if not 0 < length <= MOST_BYTES:
            return self._send(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"", "text/plain")
        if what[:1] != ["page"]:
            return self._send(HTTPStatus.NOT_FOUND, b"", "text/plain")
        number, asked = self._number(what), parse_json(self.rfile.read(length).decode())
        self.server.marking.save(number, asked["version"], list(asked["fields"]))
        return self._json(self.server.marking.page(number))

    def _number(self, what: list[str]) -> int:
        """The page's number at the end of an address; LookupError for any other end."""
        if len(what) != 2 or not what[1].isascii() or not what[1].isdecimal() or len(what[1]) > 8:
            raise LookupError
        number = int(what[1])
        if number >= len(self.server.marking):
            raise LookupError
        return number

    def _json(self, value: object) -> None:
        self._send(HTTPStatus.OK, json.dumps(value).encode(), "application/json")

    def _send(self, status: HTTPStatus, body: bytes, kind: str, rules: str = "default-src 'none'") -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Security-Policy", rules)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: addresses hold the secret."""
