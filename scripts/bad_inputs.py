"""Give docleak 300 bad inputs through its command line, and count what becomes of them.

    python scripts/bad_inputs.py [--subprocesses 20] [--only WORD]

Every case is a command line, with files that this script writes into a temporary folder. What counts: refused in
words (exit code 1 and one message), a usage error (exit code 2), accepted by design (exit code 0, only where the case
says so), a traceback. The exit code is 1 if there is a traceback, or a case that was to be refused is accepted.
"""

# ruff: noqa: E501, UP031 # tables of bad texts, one a line
from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import struct
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.numpy import save_file

REFUSED, USAGE, ACCEPTED, TRACEBACK = "refused in words", "usage error", "accepted by design", "traceback"


@dataclass(frozen=True)
class Case:
    """A command line; ``accepted`` where it is no fault in docleak's eyes, and does little."""

    words: tuple[str, ...]
    accepted: bool = False


def case(text: str, *more: str, accepted: bool = False) -> Case:
    """The words of ``text``, and ``more`` words that hold spaces or nothing."""
    return Case((*text.split(), *more), accepted)


# --- numbers ---------------------------------------------------------------------------------------------------------

NUMBERS: dict[str, tuple[str, ...]] = {
    "audit": ("--seed", "--workers", "--pages", "--budget", "--batch-size", "--rounds"),
    "attack gi-dqa": ("--seed", "--workers", "--pages", "--budget", "--batch-size", "--rounds"),
    "attack mmgia": ("--count", "--skip", "--public", "--trained", "--noise", "--epsilon", "--threshold", "--strength"),
    "attack cdmi": ("--pages", "--fields", "--attempts", "--epochs", "--learning-rate", "--seed"),
    "attack membership": ("--seeds", "--providers", "--seed"),
    "audit updates pages": ("--round", "--budget", "--picture-budget", "--seed"),
    "attack canaries": ("--canaries", "--others", "--guesses", "--epsilon", "--delta", "--rounds", "--clip-norm",
                        "--confidence"),
    "defend": ("--pages", "--budget", "--utility-steps", "--seed"),
    "reproduce gi-dqa/table1": ("--pages", "--rounds", "--budget", "--seed", "--workers"),
    "train federated": ("--clients", "--documents", "--rounds", "--participation", "--minimum", "--server-rate",
                        "--epochs", "--max-steps", "--batch-size", "--learning-rate", "--weight-decay", "--holdout",
                        "--evaluate-every", "--seed", "--delta", "--clip-norm"),
    "train central": ("--pages", "--rounds", "--epochs", "--learning-rate", "--seed"),
    "budget": ("--epsilon", "--noise", "--rounds", "--delta", "--units"),
    "models pretrain donut out": ("--steps", "--seed"),
    "data make out": ("--count", "--seed", "--width", "--height", "--partition"),
    "data make out --blue-red": ("--issuers", "--per-issuer"),
    "deploy init out --silos 2": ("--port", "--superlink-port", "--timeout", "--days", "--evaluate-every"),
}  # fmt: skip


def numbers() -> Iterator[Case]:
    """Each number of each command: below its range or no number, and far beyond."""
    for command, options in NUMBERS.items():
        for option in options:
            yield case(f"{command} {option} -7")
            yield case(f"{command} {option} {'1' + '0' * 40}")
        yield case(f"{command} {options[0]} nan")
        yield case(f"{command} {options[-1]} {'9' * 6000}")
        yield case(command, options[0], "²")


# --- options that do not go together ---------------------------------------------------------------------------------


def combinations() -> Iterator[Case]:
    """Options that do nothing beside others, unknown names, empty texts."""
    gradient = ("--pages 2", "--rounds 2", "--stages vision", "--no-answer", "--recover-text", "--defense clip:bound=1",
                "--image-size 96x112", "--train-mode", "--compare-defenses", "--clean-template")  # fmt: skip
    for study in ("weights --model bros-tiny", "answers --division pages", "updates pages"):
        yield from (case(f"audit {study} {option}") for option in gradient)
    for option in ("--round 1", "--client a", "--local x", "--budget 9", "--ocr rapidocr",
                   "--allow-failed-self-test", "--attacks dlg", "--model donut-start"):  # fmt: skip
        yield case(f"audit weights {option}")
    for option in ("--round 1", "--client a", "--local x", "--release a=b", "--public x", "--public-documents x"):
        yield case(f"audit {option}")
    for text in (
        "attack", "attack nothing", "attack gi-dqa:priors=x", "attack dlg:a=b", "attack random --ocr nothing",
        "attack random --device quantum", "attack random --stages sound", "attack random --image-size 5",
        "attack random --image-size 999999x999999", "attack random --image-size 0x0", "attack random --defense magic",
        "attack random --documents nowhere", "attack random --documents sroie:", "attack random --documents pdf:x",
        "attack random --model nowhere", "attack random --model ./nowhere", "attack --list --pages 3",
        "attack mmgia --generator x", "attack mmgia,nothing", "attack mmgia,gi-dqa", "attack cdmi,cdmi-strong", "attack mmgia --image nothing",
        "attack lamp --strength 1", "attack mmgia --noise 1 --epsilon 2", "attack mmgia --count 3 --batch-size 2",
        "attack mmgia --pairs nowhere:x", "attack mmgia --language l --corpus c",
        "attack cdmi-weird", "attack cdmi:mean=none", "attack cdmi:top_p=7", "attack cdmi:candidates=-7", "attack cdmi --task dance", "attack cdmi --criterion none",
        "attack cdmi --metric none", "attack cdmi --public x", "attack cdmi --target x --pages 3", "attack cdmi --model nowhere", "attack cdmi --documents nowhere",
        "attack membership --minimum x", "attack membership --release x", "attack membership --division pages",
        "attack membership --division pages --release vt5-start", "attack APK:known=7", "attack APK:known=x",
        "attack APK:searched=-1", "attack memorisation --keys ,",
        "attack canaries --unit-rate x", "attack canaries --guesses 1",
        "defend nothing", "defend clip:bound=x", "defend noise:sigma=nan", "defend --list --pages 3",
        "defend --attack nothing", "reproduce nothing", "reproduce nothing.toml", "reproduce --pages 3",
        "reproduce gi-dqa/table1 --scale huge", "reproduce gi-dqa/table1 --rows nothing",
        "reproduce gi-dqa/table1 --model x", "reproduce gi-dqa/table1 --image-size donut=x",
        "reproduce gi-dqa/table1 --rounds 3", "reproduce gi-dqa/table1 --cluster x --workers 2",
        "report nowhere", "report pages", "report pages models --out both", "train federated --silos nowhere",
        "train federated --silos pages --clients 3", "train federated --beta1 0.5", "train federated --server sgd",
        "train federated --optimiser sgdx", "train federated --objective x", "train federated --compression zip",
        "train federated --compression topk:2", "train federated --compression topk:nan",
        "train federated --secure-limit 3", "train federated --epsilon 8", "train federated --epsilon 8 --noise 1",
        "train federated --epsilon 8 --denominator 9 --unit person", "train federated --model nowhere",
        "train federated --epsilon 8 --denominator 9 --unit-rate 1/0",
        "train central --unit record --noise 1 --denominator 9 --capture", "train central --documents nowhere",
        "budget --epsilon 1 --noise 1 --rounds 1", "budget --rate x", "budget --rate 1/0", "budget --rate 2",
        "budget --unit person", "budget --relation x", "budget --accountant x", "budget --plot x.txt",
        "budget --published", "budget --client-rate 0", "models pretrain nothing out", "models attention nowhere",
        "models attention vt5-start", "models assemble vt5 out --text nowhere --vision nowhere",
        "models assemble nothing out --text a --vision b", "data make pages", "data make out --documents pages",
        "data make out --partition 99 --documents pages", "data make out --partition 2 --by x",
        "data make out --blue-red --documents pages --by x", "data make out --issuers 30",
        "data make out --width 20000 --height 20000", "data convert nowhere out", "data convert pages pages",
        "data convert sroie:pages out --image-root .", "data inspect pages --page 99", "data inspect pages --seed 3",
        "data inspect nowhere", "deploy init out --silos ²", "deploy init out --silos 0", "deploy init out --silos a,a",
        "deploy init out --silos a/b", "deploy init out --silos 2 --like pages", "deploy init pages --silos 2",
        "deploy check pages", "deploy check nowhere", "deploy gate nowhere --superlink x", "nothing", "audit --nothing",
        "train", "data", "models nothing", "audit --seed", "audit --seed x",
    ):  # fmt: skip
        yield case(text)
    for command in ("audit", "attack random", "train federated", "reproduce gi-dqa/table1", "defend", "attack cdmi"):
        yield case(command, "--out", "")
    yield case("data make", "")
    yield case("audit --documents", "")
    yield case("audit --documents", "pages\0")
    yield case("audit --out", "x" * 5000)
    yield case("audit --model", "a\0b")
    yield case("train federated --silos", "")
    yield case("deploy init out --silos", "")
    for words in ("--version", "data list", "models list --json", "defend --list", "attack --list", "reproduce --list"):
        if words != "--version":
            yield case(words, accepted=True)


# --- pages.jsonl -----------------------------------------------------------------------------------------------------

WORD = '{"image": "a.png", "words": [{"text": "x", "box": %s}]}'
LINES: dict[str, str] = {
    "empty": "", "text": "hello", "list": "[1]", "null": "null", "number": "3", "cut": '{"image": "a.p', "bom": "\ufeff",
    "no-image": "{}", "image-number": '{"image": 3}', "image-absent": '{"image": "b.png"}', "image-list": '{"image": []}',
    "image-parent": '{"image": "../outside.png"}', "image-absolute": '{"image": "/etc/passwd"}',
    "image-empty": '{"image": ""}', "image-nul": '{"image": "a\\u0000.png"}', "image-long": '{"image": "%s"}' % ("x" * 9000),
    "image-dot": '{"image": "."}', "image-text": '{"image": "pages.jsonl"}', "box-text": WORD % '"x"',
    "box-three": WORD % "[1, 2, 3]", "box-huge": WORD % f"[0, 0, 1{'0' * 400}, 9]", "box-digits": WORD % f"[0, 0, {'9' * 6000}, 9]",
    "box-nan": WORD % "[0, 0, NaN, 9]", "box-infinity": WORD % "[0, 0, Infinity, 9]", "box-1e999": WORD % "[0, 0, 1e999, 9]",
    "box-bool": WORD % "[0, 0, true, 9]", "box-null": WORD % "null", "box-inverted": WORD % "[9, 9, 1, 1]",
    "box-outside": WORD % "[0, 0, 900, 900]", "box-shares": WORD % "[0.1, 0.1, 0.5, 0.9]", "box-negative": WORD % "[-50, 0, 5, 5]",
    "words-text": '{"image": "a.png", "words": "x"}', "words-number": '{"image": "a.png", "words": [3]}',
    "words-keys": '{"image": "a.png", "words": [{"txt": "x"}]}', "unknown-key": '{"image": "a.png", "provder": "x"}',
    "field-word": '{"image": "a.png", "fields": [{"key": "k", "value": "v", "words": [9]}]}',
    "field-number": '{"image": "a.png", "fields": [{"key": 3, "value": "v"}]}',
    "field-private": '{"image": "a.png", "fields": [{"key": "k", "value": "v", "private": "no"}]}',
    "field-both": '{"image": "a.png", "fields": [{"key": "k", "value": "v", "words": [], "box": [0, 0, 1, 1]}]}',
    "question": '{"image": "a.png", "questions": [{"text": "t", "answers": "x"}]}',
    "links": '{"image": "a.png", "links": [[0, 1]]}', "notes": '{"image": "a.png", "notes": "x"}',
    "surrogate-name": '{"image": "a.png", "name": "\\ud800"}',
    "surrogate-value": '{"image": "a.png", "fields": [{"key": "k", "value": "\\udfff"}]}',
    "surrogate-key": '{"image": "a.png", "\\ud800": 1}', "duplicate-key": '{"image": "a.png", "name": "x", "name": "y"}',
    "deep": "[" * 100_000, "deep-inside": '{"image": "a.png", "words": %s%s}' % ("[" * 5000, "]" * 5000),
    "twice": '{"image": "a.png"}\n{"image": "a.png"}', "latin": "\udce9", "nul": '\0{"image": "a.png"}',
    "escape": '{"image": "\\u001b[31m.png"}', "no-fields": '{"image": "a.png"}',
    "image-bomb": '{"image": "bomb.png"}', "image-frames": '{"image": "frames.tif"}', "image-cut": '{"image": "cut.png"}',
    "image-16bit": '{"image": "deep.png"}', "image-link": '{"image": "link.png"}', "image-folder": '{"image": "sub"}',
}  # fmt: skip


def page_folders(root: Path) -> Iterator[Case]:
    """A folder per bad line; every other one is converted, the rest audited."""
    for number, (name, line) in enumerate(LINES.items()):
        folder = root / f"line-{name}"
        folder.mkdir()
        Image.new("RGB", (60, 40), "white").save(folder / "a.png")
        if name == "image-bomb":
            (folder / "bomb.png").write_bytes(png_header(60_000, 60_000))
        elif name == "image-frames":
            frame = Image.new("L", (9, 9))
            frame.save(folder / "frames.tif", save_all=True, append_images=[frame])
        elif name == "image-cut":
            (folder / "cut.png").write_bytes((folder / "a.png").read_bytes()[:40])
        elif name == "image-16bit":
            Image.fromarray(np.zeros((9, 9), np.uint16)).save(folder / "deep.png")
        elif name == "image-link":
            (folder / "link.png").symlink_to(root / "outside.png")
        elif name == "image-folder":
            (folder / "sub").mkdir()
        (folder / "pages.jsonl").write_bytes(line.encode("utf-8", "surrogateescape"))
        if name == "no-fields" or number % 2:
            yield case(f"attack random --documents line-{name} --out run-{name}")
        else:
            yield case(f"data convert line-{name} out-{name}")


def png_header(width: int, height: int) -> bytes:
    """The beginning of a PNG that says it is so large."""
    import zlib

    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))


# --- recipes, models, runs -------------------------------------------------------------------------------------------

ROW = 'title = "t"\n[scales.tiny]\nmodels.donut = "donut-start"\n[[rows]]\nname = "r"\n'
RECIPES: dict[str, str] = {
    "empty": "", "no-toml": "= =", "binary": "\0\1\2", "no-rows": 'title = "t"', "rows-text": 'title = "t"\nrows = "x"',
    "rows-empty": 'title = "t"\nrows = []', "row-number": 'title = "t"\nrows = [3]', "no-name": 'title = "t"\n[[rows]]\nx = 1',
    "pages-text": ROW + 'pages = "1"', "budget-nan": ROW + "budget = nan", "pages-float": ROW + "pages = 1.5",
    "budget-huge": ROW + f"budget = {10**30}", "budget-digits": ROW + f"budget = {'9' * 6000}", "seed": ROW + "seed = -1",
    "seed-huge": ROW + f"seed = {2**64}", "pages-negative": ROW + "pages = -1", "bool": ROW + "pages = true",
    "attack": ROW + 'attack = "nothing"', "attack-number": ROW + "attack = 3", "defense": ROW + 'defense = "magic"',
    "unknown": ROW + "bugdet = 3", "twice": ROW + '[[rows]]\nname = "r"', "models-text": 'models = "donut"\n' + ROW,
    "models-numbers": "models = [3]\n" + ROW, "kind": 'kind = "nothing"\n' + ROW, "kind-number": "kind = 3\n" + ROW,
    "scales-text": 'title = "t"\nscales = "x"\n[[rows]]\nname = "r"', "fixed-text": 'fixed = "x"\n' + ROW,
    "printed": ROW + 'printed.donut = "x"', "printed-text": ROW + 'printed.donut.binary = "x"',
    "printed-nan": ROW + "printed.donut.binary = nan", "printed-unknown": ROW + "printed.donut.nothing = 1",
    "documents-number": ROW + "documents = 3", "stages": ROW + 'stages = "vision"', "stage": ROW + 'stages = ["sound"]',
    "training": 'kind = "trainings"\n' + ROW + 'server = "sgd"', "training-rounds": 'kind = "trainings"\n' + ROW + "rounds = nan",
    "pairs": 'kind = "pairs"\n' + ROW + "count = -4", "pairs-attack": 'kind = "pairs"\n' + ROW + 'attack = "x"',
    "release": 'kind = "answers"\n' + ROW + 'measure = "x"', "release-data": 'kind = "answers"\n' + ROW + "data = 3",
    "extraction": 'kind = "weights"\n' + ROW + 'preset = "x"', "extraction-task": 'kind = "weights"\n' + ROW + 'task = "x"',
    "image-size": ROW + "image_size = [0, -1]", "image-size-text": ROW + 'image_size = ["a", "b"]', "nested": "a." * 3000 + "b = 1",
}  # fmt: skip
MODELS: dict[str, dict[str, bytes]] = {
    "no-config": {}, "config-cut": {"config.json": b'{"model'}, "config-list": {"config.json": b"[]"},
    "config-deep": {"config.json": b"[" * 100_000}, "config-unknown": {"config.json": b'{"model_type": "gpt"}'},
    "config-type": {"config.json": b'{"model_type": ["x"]}'}, "vt5-empty": {"config.json": b'{"model_type": "vt5"}'},
    "layoutlmv3": {"config.json": b'{"model_type": "layoutlmv3", "hidden_size": "x"}'},
    "encoder": {"config.json": b'{"model_type": "docleak-encoder"}'},
    "weights": {"config.json": b'{"model_type": "layoutlmv3"}', "model.safetensors": b"\xff" * 99},
    "card": {"config.json": b'{"model_type": "layoutlmv3"}', "docleak.json": b"{"},
}  # fmt: skip
RUN = {"docleak": "0.1.0", "config": {}, "environment": {}, "created": "x", "info": {}}
RUNS: dict[str, object] = {
    "list": [], "empty": {}, "no-units": RUN, "config": {**RUN, "config": 3}, "kind": {**RUN, "config": {"kind": "cdmi"}},
    "updates": {**RUN, "config": {"updates": "x"}}, "seed": {**RUN, "config": {"seed": "x"}}, "info": {**RUN, "info": []},
    "units": {**RUN, "config": {"models": ["donut-start"]}},
}  # fmt: skip


def other_files(root: Path) -> Iterator[Case]:
    """Recipes, models, runs, gradients, captures and federations that are none."""
    for name, text in RECIPES.items():
        (root / f"{name}.toml").write_text(text)
        yield case(f"reproduce {name}.toml --dry-run --out of-{name}")
    (root / "models").mkdir()
    for name, files in MODELS.items():
        folder = root / "models" / name
        folder.mkdir()
        for file, content in files.items():
            (folder / file).write_bytes(content)
        yield case(f"attack random --model models/{name} --out run-model-{name}")
        yield case(f"attack cdmi --model models/{name} --out run-encoder-{name}")
    for name, manifest in RUNS.items():
        folder = root / f"run-of-{name}"
        (folder / "units" / "one").mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps(manifest))
        if name == "units":
            (folder / "units" / "one" / "unit.json").write_text('{"unit": 3, "images": []}')
        yield case(f"report run-of-{name}")
    for command in ("reproduce gi-dqa/table1", "defend", "train federated", "attack canaries", "attack membership"):
        yield case(f"{command} --out run-of-units")
    save_file({"x": np.zeros(3, np.float32)}, root / "other.safetensors")
    (root / "cut.safetensors").write_bytes(b"\xff" * 40)
    for file in ("other.safetensors", "cut.safetensors", "nowhere.safetensors", "pages", "other.toml"):
        yield case(f"attack random --gradient {file} --out run-gradient")
    for name, text in {"cut": "{", "list": "[]", "format": '{"format": 99}'}.items():
        (root / f"capture-{name}").mkdir()
        (root / f"capture-{name}" / "capture.json").write_text(text)
        yield case(f"audit updates capture-{name} --out run-capture")
        (root / f"federation-{name}").mkdir()
        (root / f"federation-{name}" / "federation.json").write_text(text)
        yield case(f"train federated --out federation-{name}")
        yield case(f"deploy init out-like --silos 2 --like federation-{name}")
        (root / f"blue-red-{name}").mkdir()
        (root / f"blue-red-{name}" / "blue-red.json").write_text(text)
        yield case(f"audit answers --division blue-red-{name} --release vt5-start --out run-blue-red")


def cases(root: Path) -> list[Case]:
    """All of them, with their files written into ``root``."""
    from docleak.documents.folder import save
    from docleak.documents.synthetic import make_pages

    save(make_pages(2, seed=0), root / "pages")
    Image.new("RGB", (60, 40)).save(root / "outside.png")
    return [*numbers(), *combinations(), *page_folders(root), *other_files(root)]


def outcome(found: Case) -> tuple[str, str]:
    """What the command does in this process, and the end of what it says."""
    from docleak.cli import main

    before, said = sys.argv, io.StringIO()
    sys.argv = ["docleak", *found.words]
    code: object = 0
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main()
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        return TRACEBACK, traceback.format_exc()
    finally:
        sys.argv = before
    return judged(code, said.getvalue())


def judged(code: object, text: str) -> tuple[str, str]:
    """The outcome that an exit code and a text are."""
    if "Traceback (most recent call last)" in text or code not in (None, 0, 1, 2):
        return TRACEBACK, text
    return {2: USAGE, 1: REFUSED}.get(code if isinstance(code, int) else 0, ACCEPTED), text


def as_process(found: Case) -> tuple[str, str]:
    """What the command does in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", "from docleak.cli import main; main()", *found.words], capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    return judged(done.returncode, done.stdout + done.stderr)


def main() -> int:
    """Run the cases and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subprocesses", type=int, default=20, help="cases that are run as processes, too")
    parser.add_argument("--only", default="", help="only cases with this word")
    parser.add_argument("--verbose", action="store_true", help="print every message")
    asked = parser.parse_args()
    counts: Counter[str] = Counter()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        every = [command for command in cases(Path(folder)) if asked.only in " ".join(command.words)]
        step = max(1, len(every) // asked.subprocesses) if asked.subprocesses else len(every) + 1
        for number, command in enumerate(every):
            what, said = outcome(command)
            counts[what] += 1
            bad = what == TRACEBACK or (what == ACCEPTED) != command.accepted
            if step <= len(every) and number % step == 0 and not any("\0" in word for word in command.words):
                alone, other = as_process(command)
                counts["as processes"] += 1
                bad, said = bad or alone != what, said if alone == what else f"{said}\nas a process: {other}"
            wrong += bad
            if bad or asked.verbose:
                shown = " ".join(word if len(word) < 99 else word[:99] + "..." for word in command.words)
                print(f"{'WRONG ' * bad}{what}: docleak {shown}\n    {said[-700:].strip()}", flush=True)
        os.chdir("/")
    print(
        f"{len(every)} inputs: {', '.join(f'{count} {what}' for what, count in sorted(counts.items()))}; {wrong} wrong"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
