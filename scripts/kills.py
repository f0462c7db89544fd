"""Kill every long command at random times, go on, and compare what it leaves with what an undisturbed run leaves.

    python scripts/kills.py                             30 kills over all kinds, on one core in about half an hour
    python scripts/kills.py --kinds train,audit --kills 8 --seed 3 --folder work

Each kind of command runs once undisturbed. Then, per kill: the same command in a new folder, kill -9 at a random time
of the undisturbed one (every other time of the whole process group, else of the first process alone), and three looks:

- no process that it started is left after 10 seconds;
- no file is half written (JSON, PNG, safetensors, CSV), except those whose name or folder begins with ``.docleak-``;
- the same command again ends with exit code 0 and leaves the same files, byte for byte, and none beginning with
  ``.docleak-``.

What is not compared: how long things took and when (TIMES, PHRASES, COLUMNS), and what each training draws as its own
name and key (DRAWN); the version of Python packages is the same anyhow. Under differential privacy coins and noise come
from the operating system and are kept nowhere, so that no two runs are the same: there, the ledger must count every
round that was ever begun, and the claim must not be smaller than the undisturbed run's (``same_claim``); under secure
aggregation, so do the masks of what clients send, and the sums must be the same (``same_sum``). Commands that
do not resume begin anew, and must leave the same.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import PIL.Image
from safetensors import safe_open

from docleak.documents.blue_red import BlueRedPlan
from docleak.documents.blue_red_files import open_issuers, write_blue_red
from docleak.documents.folder import save
from docleak.documents.synthetic import make_pages
from docleak.files import TEMPORARY
from docleak.models.encoders.loading import load_encoder, save_encoder
from docleak.models.encoders.tasks import classes_of

#: Keys of JSON objects that say how long something took, or when it was.
TIMES = frozenset(
    {"created", "seconds", "seconds_training", "seconds_averaging", "seconds_testing", "minutes",
     "seconds_per_step", "milliseconds", "began", "ended", "Wall time of this call", "Seconds"}
)  # fmt: skip
#: Columns of CSV files that do.
COLUMNS = frozenset({"seconds_training", "seconds_averaging", "seconds"})
#: Where the undisturbed runs are: as long as the names of kills, since a path's length counts in what a run sends.
WHOLE = "whole--"
#: And parts of texts.
PHRASES = (
    r"(?<=, ms\" role=\"cell\"><span>)[\d.,]+", r"/(?:whole--|kill-\d\d)/",
    r"[\d.,]+ ?(?:s|ms|min|h|seconds|minutes)\b", r"Wall time[^|<\n]*",
    r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?",
    r"(?<=<code>results.json</code>: <code>)[0-9a-f]{64}",  # whose content is compared by itself, without its times
)  # fmt: skip
#: Keys of a training's records whose values are drawn from the operating system anew: the name of the training, and the
#: key of the hashes of its providers' names, of which the digest and the hashes' number stay.
DRAWN = frozenset({"identity", "key", "providers"})
RECORDS_OF_TRAININGS = frozenset({"run.json", "unit.json", "docleak.json", "providers.json"})
#: In a recipe's rows: how often each unit was begun where it stands. A kill is to be seen there.
ATTEMPTS = "/attempts/"
#: Seconds in which everything that a killed command started must be gone.
GONE_WITHIN = 10.0
LONGEST = 600.0
ENTRY = "from docleak.cli import main; main()"

PAGE = """# Killed at random, and begun again

Written by `scripts/kills.py --out`, a section per call: each kind of command runs once undisturbed; then it is killed
with kill -9 at a random time, begun again, and what it leaves is compared, byte for byte beside times, with what the
undisturbed run left. Private trainings draw secret noise, so that of them the ledger and the claim are compared.
"""

SILOS = "--documents 10 --clients 2 --max-steps 1 --batch-size 2"
RECORDS = "--documents synthetic --pages 8"


@dataclass(frozen=True)
class Kind:
    """One command: its words, where its inputs are ../../inputs and it writes to out; how two results are compared.

    ``finished``: where this is in out, the result is, as a whole, and the command refuses to make it once more.
    """

    words: str
    compare: Callable[[Path, Path, Path], list[str]]
    finished: str = ""


@dataclass(frozen=True)
class Outcome:
    """What became of one kill; no faults: it is as if nothing had happened."""

    kind: str
    seconds: float
    whole_group: bool
    ended_before: bool
    faults: tuple[str, ...]

    @property
    def whom(self) -> str:
        """Who was killed."""
        return "ended before" if self.ended_before else "process group" if self.whole_group else "first process"

    @property
    def became(self) -> str:
        """The first faults, or that there are none."""
        return "; ".join(self.faults[:4]) or "as undisturbed"


def same_files(whole: Path, resumed: Path, killed: Path) -> list[str]:
    """Differences between two folders, beside those of time."""
    names = [
        sorted(f.relative_to(side).as_posix() for f in side.rglob("*") if f.is_file()) for side in (whole, resumed)
    ]
    faults = [f"only undisturbed: {name}" for name in names[0] if name not in names[1]]
    faults += [f"only resumed: {name}" for name in names[1] if name not in names[0]]
    faults = [fault for fault in faults if ATTEMPTS not in fault]
    both = [name for name in names[0] if name in names[1] and ATTEMPTS not in name]
    return faults + [f"differs: {name}" for name in both if timeless(whole / name) != timeless(resumed / name)]


def same_sum(whole: Path, resumed: Path, killed: Path) -> list[str]:
    """Secure aggregation: what a client sends is masked with new keys in every run; all else is the same."""
    faults = []
    for fault in same_files(whole, resumed, killed):
        name = fault.removeprefix("differs: ")
        masked = fault != name and name.startswith("updates/") and name.endswith(".safetensors")
        if not masked or _shapes(whole / name) != _shapes(resumed / name):
            faults.append(fault)
    return faults


def _shapes(file: Path) -> dict[str, tuple[str, list[int]]]:
    with safe_open(file, framework="np") as arrays:
        slices = {name: arrays.get_slice(name) for name in arrays.keys()}  # noqa: SIM118 # not a dict
        return {name: (piece.get_dtype(), piece.get_shape()) for name, piece in slices.items()}


def same_claim(whole: Path, resumed: Path, killed: Path) -> list[str]:
    """Private trainings: each round that was begun is in the ledger, a lost one is not made up for, and the claim is
    for all of them."""
    at_kill = killed / "ledger.json"
    before, done = (json.loads(at_kill.read_text())["begun"] if at_kill.is_file() else 0), _last_round(killed)
    begun = [json.loads((side / "ledger.json").read_text())["begun"] for side in (whole, resumed)]
    faults = []
    if not done <= before <= done + 1:
        faults.append(f"killed after {done} rounds, the ledger had {before} begun")
    if begun[1] != begun[0]:
        faults.append(f"{begun[1]} rounds in the ledger, {begun[0]} without the kill: another claim")
    if _last_round(resumed) != _last_round(whole) - (before - done):
        faults.append(f"{_last_round(resumed)} rounds; {before - done} of {_last_round(whole)} were lost")
    names = [{f.relative_to(side).as_posix() for f in side.rglob("*") if f.is_file()} for side in (whole, resumed)]
    rounds = ("updates/", "units/")  # a lost round leaves none
    return faults + [f"only on one side: {name}" for name in sorted(names[0] ^ names[1]) if not name.startswith(rounds)]


def _last_round(run: Path) -> int:
    states = (run / "units").glob("round-*/state.safetensors")
    return max((int(f.parent.name[-4:]) for f in states if f.with_name("unit.json").is_file()), default=0)


def begins_anew_as_private(whole: Path, resumed: Path, killed: Path) -> list[str]:
    """DP-SGD over records: its noise is secret, so that only what is there can be compared, and what it claims."""
    names = [{f.relative_to(side).as_posix() for f in side.rglob("*") if f.is_file()} for side in (whole, resumed)]
    claims = [
        json.loads((side / "units/training/unit.json").read_text())["epsilon_per_record"] for side in (whole, resumed)
    ]
    faults = [f"only on one side: {name}" for name in sorted(names[0] ^ names[1])]
    return faults + ([f"claims {claims}"] if claims[1] < claims[0] else [])


KINDS: dict[str, Kind] = {
    "train": Kind(f"train federated {SILOS} --rounds 4", same_files),
    "train-secure": Kind(f"train federated {SILOS} --rounds 3 --secure", same_sum),
    "train-private": Kind(
        f"train federated {SILOS} --rounds 4 --epsilon 8 --denominator 2 --delta 1e-3", same_claim
    ),
    "train-central": Kind(f"train central {RECORDS} --batch-size 4 --max-steps 2 --rounds 3", same_files),
    "train-records": Kind(
        f"train central --unit record --noise 1 {RECORDS} --rounds 6 --denominator 4", begins_anew_as_private, "model"
    ),
    "audit": Kind("audit --model layoutlmv3-start --attacks inverting-gradients,random "
                  "--pages 2 --budget 6 --workers 2 --no-compare-defenses", same_files),
    "audit-updates": Kind("audit updates ../../inputs/capture/updates --client synthetic-0 "
                          "--documents ../../inputs/capture/silos", same_files),
    "audit-extraction": Kind("audit weights --target ../../inputs/model --documents ../../inputs/private --seed 5 "
                             "--public-documents ../../inputs/public --workers 2", same_files),
    "audit-blue-red": Kind("audit answers --division ../../inputs/blue-red --release one=vt5-start "
                           "--release two=vt5-released --public vt5-start --seed 5 --workers 2", same_files),
    "attack": Kind("attack inverting-gradients --model layoutlmv3-start --pages 2 --budget 12 --workers 1",
                   same_files),
    "defend": Kind("defend noise:sigma=1e-4 safe-template:epsilon=8/255 --attack inverting-gradients --pages 1 "
                   "--budget 6 --utility-steps 3 "
                   "--workers 2", same_files),
    "reproduce-gradient": Kind("reproduce ../../inputs/gradient.toml --workers 1", same_files),
    "reproduce-trainings": Kind("reproduce ../../inputs/trainings.toml --workers 1", same_files),
    "reproduce-releases": Kind("reproduce ../../inputs/releases.toml --workers 1", same_files),
    "reproduce-extraction": Kind("reproduce ../../inputs/extraction.toml --workers 1 --out out/table", same_files),
    "reproduce-pairs": Kind("reproduce ../../inputs/pairs.toml --workers 1", same_files),
    "reproduce-adapters": Kind("reproduce ../../inputs/adapters.toml --workers 1", same_files),
    "reproduce-attention": Kind("reproduce ../../inputs/attention.toml --workers 1", same_files),
    "audit-presence": Kind("audit presence --pages 8 --batch-size 2 --workers 1", same_files),
    "audit-servers": Kind("audit servers --batch-size 2 --clients 2 --public 4 --workers 1", same_files),
    "cdmi": Kind("attack cdmi:candidates=5 --pages 9 --fields 6 --attempts 1 --epochs 1 --no-calibrate "
                 "--workers 1", same_files),
    "mmgia": Kind("attack mmgia --count 1 --public 4 --budget 12 --workers 1", same_files),
    "membership": Kind("attack membership --release vt5-start --public vt5-start --division ../../inputs/blue-red "
                       "--seeds 1",
                       same_files),
    "memorisation": Kind("attack memorisation --release vt5-start --public vt5-start --division ../../inputs/blue-red "
                         "--keys provider_name", same_files),
    "canaries": Kind("attack canaries --canaries 12 --others 2 --rounds 2 --unit-rate 1", same_files),
    "pretrain": Kind("models pretrain layoutlmv3 out --steps 3", same_files),
    "data": Kind("data make out --blue-red --issuers 30 --per-issuer 4 --partition 2", same_files, "blue-red.json"),
}  # fmt: skip

RECIPES = {
    "gradient": """
title = "Killed"
models = ["layoutlmv3"]
[fixed]
attack = "inverting-gradients"
pages = 1
budget = 6
[scales.tiny]
models = { layoutlmv3 = "layoutlmv3-start" }
[[rows]]
name = "none"
[[rows]]
name = "noise"
defense = "noise:sigma=1e-4"
""",
    "trainings": """
title = "Killed"
kind = "trainings"
models = ["mine"]
[scales.tiny]
models = { mine = "fedocvqa-start" }
pages = 4
test_share = 0.25
validation_share = 0.25
evaluate_every = 1
batch_size = 4
clients = 2
rounds = 2
pretraining_rounds = 1
max_tokens = 60
max_steps = 1
[[rows]]
name = "fine-tuning"
[[rows]]
name = "both"
pretraining = "tlm"
""",
    "releases": """
title = "Killed"
kind = "answers"
models = ["vt5"]
[fixed]
measure = "gap"
[scales.tiny]
models = { vt5 = "vt5-start" }
preset = "tiny"
data = { providers = 16, per_provider = 3.0, plan = { clients = 2, red = 0.4, test = 0.34, validation = 0.0 } }
training = { rounds = 2, epochs = 1, batch_size = 16 }
[[rows]]
name = "VT5_0"
[[rows]]
name = "VT5_FL"
target = "federated"
""",
    "extraction": """
title = "Killed"
kind = "weights"
models = ["layoutlm"]
[fixed]
pages = 9
fields = 4
attempts = 1
candidates = 5
epochs_mlm = 2
epochs = 2
public_epochs = 1
learning_rate = 1e-3
dropout = 0.0
shows = "attack"
[scales.tiny]
models = { layoutlm = "layoutlm-tiny" }
[[rows]]
name = "MLM"
[[rows]]
name = "control"
control = true
""",
    "adapters": """
title = "Killed"
kind = "adapters"
models = ["random"]
[fixed]
family = "qwen2_vl"
gradient = false
rounds = 2
unseen = 2
others = 2
[scales.tiny]
models = { random = "spread" }
[[rows]]
name = "no defence"
[[rows]]
name = "rank 4"
rank = 4
""",
    "attention": """
title = "Killed"
kind = "attention"
models = ["start", "trained"]
[fixed]
pages = 6
[scales.tiny]
models = { start = "donut-start", trained = "donut-trained" }
[[rows]]
name = "date"
""",
    "pairs": """
title = "Killed"
kind = "pairs"
models = ["lenet5"]
[fixed]
show = ["ssim", "psnr"]
[scales.tiny]
pairs = "scenes"
count = 1
public = 4
budget = 12
models = { lenet5 = "lenet5+bert-tiny" }
[[rows]]
name = "MMGIA"
attack = "mmgia"
""",
}


def make_inputs(folder: Path, kinds: list[str]) -> None:
    """What the commands read."""
    folder.mkdir(parents=True)
    for name, text in RECIPES.items():
        (folder / f"{name}.toml").write_text(text)
    if "audit-extraction" in kinds:
        private, public = make_pages(3, seed=1), make_pages(5, seed=2, split="train")
        save(private, folder / "private")
        save(public, folder / "public")
        start = load_encoder("layoutlm-tiny")
        save_encoder(start.for_task("ee-bio", classes_of([*private, *public]), seed=3), folder / "model")
    if {"audit-blue-red", "membership", "memorisation"} & set(kinds):
        plan = BlueRedPlan(clients=2, red=0.4, test=0.34, validation=0.0)
        write_blue_red(open_issuers(16, 3.0, plan, seed=0), folder / "blue-red")
    if "audit-updates" in kinds:
        words = f"train federated {SILOS} --rounds 1 --model fedocvqa-start --out {folder / 'capture'}"
        subprocess.run(command_of(words), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def command_of(words: str) -> list[str]:
    """The command as a process."""
    return [sys.executable, "-c", ENTRY, *words.split()]


def started(kind: Kind, place: Path) -> subprocess.Popen[bytes]:
    """The command at work in ``place``, in a session of its own; what it prints goes to ``place``/log."""
    out = "" if " out" in kind.words else " --out out"
    place.mkdir(parents=True, exist_ok=True)
    with (place / "log").open("ab") as log:
        return subprocess.Popen(
            command_of(kind.words + out), cwd=place, stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        )  # fmt: skip


def finish(process: subprocess.Popen[bytes], place: Path) -> list[str]:
    """Wait for the end; what went wrong."""
    try:
        code = process.wait(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return [f"still at work after {LONGEST:.0f} s"]
    if code:
        last = (place / "log").read_text(errors="replace").strip().splitlines()[-1:]
        return [f"exit code {code}: {' '.join(last)}"]
    return []


def survivors(session: int) -> list[str]:
    """The processes of a session that are still there after GONE_WITHIN seconds."""
    deadline = time.monotonic() + GONE_WITHIN
    while (left := list(_of_session(session))) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def _of_session(session: int) -> Iterator[str]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            status = (entry / "stat").read_text().rpartition(")")[2].split()
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if int(status[3]) == session and status[0] not in "ZX":
            yield f"process {entry.name} is left: {words[:80]}"


def half_written(folder: Path) -> list[str]:
    """Files that nobody could read, except drafts."""
    faults = []
    for file in sorted(folder.rglob("*")):
        drafts = [part for part in file.relative_to(folder).parts if part.startswith(TEMPORARY)]
        if drafts or not file.is_file():
            continue
        try:
            _read_whole(file)
        except Exception as fault:
            faults.append(f"half written: {file.relative_to(folder)} ({type(fault).__name__})")
    return faults


def _read_whole(file: Path) -> None:
    if file.suffix == ".json":
        json.loads(file.read_text(encoding="utf-8"))
    elif file.suffix == ".jsonl":
        text = file.read_text(encoding="utf-8")
        assert text.endswith("\n")
        [json.loads(line) for line in text.splitlines()]
    elif file.suffix == ".png":
        with PIL.Image.open(file) as picture:
            picture.load()
        assert file.read_bytes().endswith(b"IEND\xaeB`\x82")
    elif file.suffix == ".safetensors":
        with safe_open(file, framework="np") as arrays:
            [arrays.get_tensor(name) for name in arrays.keys()]  # noqa: SIM118 # not a dict
    elif file.suffix in (".csv", ".html", ".md"):
        assert file.read_text(encoding="utf-8").strip().endswith("</html>") or file.suffix != ".html"


def timeless(file: Path) -> object:
    """The content of a file without what TIMES, COLUMNS and PHRASES say of time."""
    if file.suffix == ".json":
        content = json.loads(file.read_text(encoding="utf-8"))
        return _without_times(_without_drawn(content) if file.name in RECORDS_OF_TRAININGS else content)
    if file.suffix == ".jsonl":
        return [_without_times(json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    if file.suffix == ".csv":
        rows = csv.DictReader(io.StringIO(file.read_text(encoding="utf-8")))
        return [{key: value for key, value in row.items() if key not in COLUMNS} for row in rows]
    if file.suffix in (".html", ".md"):
        return _without_phrases(file.read_text(encoding="utf-8"))
    return file.read_bytes()


def _without_times(value: object) -> object:
    if isinstance(value, dict):
        return {_without_phrases(key): _without_times(inner) for key, inner in value.items() if key not in TIMES}
    if isinstance(value, list):
        return [_without_times(inner) for inner in value]
    return _without_phrases(value) if isinstance(value, str) else value


def _without_drawn(value: object) -> object:
    if isinstance(value, dict):
        drawn = {key for key in DRAWN & value.keys() if re.fullmatch("[0-9a-f]{16,64}", str(value[key]))}
        kept = {key: "(drawn)" if key in drawn else _without_drawn(inner) for key, inner in value.items()}
        for hashed in {"hashes", "idle"} & kept.keys():
            kept[hashed] = [len(names) for names in value[hashed].values()]
        if "sources" in kept:  # a training may go on from another one's model, beside which its drawn name stands
            kept["sources"] = list(value["sources"])
        return kept
    return [_without_drawn(inner) for inner in value] if isinstance(value, list) else value


def _without_phrases(text: str) -> str:
    for phrase in PHRASES:
        text = re.sub(phrase, "(time)", text)
    return text


def disturbed(name: str, kind: Kind, whole: Path, lasted: float, place: Path, rng: random.Random) -> Outcome:
    """Start, kill, look, go on, compare."""
    after, whole_group = rng.uniform(0.1, 1.0) * lasted, rng.random() < 0.5
    began = time.monotonic()
    process = started(kind, place)
    while process.poll() is None and time.monotonic() - began < after:
        time.sleep(0.02)
    ended_before = process.poll() is not None
    faults = []
    if not ended_before:
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGKILL)
        process.wait()
        faults += survivors(process.pid)
    out, killed = place / "out", place / "killed"
    faults += half_written(out)
    if out.is_dir():
        shutil.copytree(out, killed)
    if not (kind.finished and (killed / kind.finished).exists()):
        faults += finish(started(kind, place), place)
    faults += survivors(process.pid)
    if out.is_dir() and not faults:
        faults += [f"left: {f.relative_to(place)}" for f in place.rglob(f"{TEMPORARY}*") if killed not in f.parents]
        faults += kind.compare(whole, out, killed)
    return Outcome(name, after, whole_group, ended_before, tuple(faults))


def kill_all(
    names: list[str], kills: int, seed: int, folder: Path, minutes: float, tell: Callable[[list[Outcome]], None]
) -> list[Outcome]:
    """As many kills, kind by kind in turn, each kind's undisturbed run before its first; stops after so many minutes,
    and says so. One whose command had ended before is none, and another is made in its place, up to twice as many.
    ``tell`` is given all outcomes after each kill."""
    rng, began = random.Random(seed), time.monotonic()
    make_inputs(folder / "inputs", names)
    lasted: dict[str, float] = {}
    outcomes: list[Outcome] = []
    for number in range(2 * kills or len(names)):
        name = names[number % len(names)]
        if kills and sum(not outcome.ended_before for outcome in outcomes) == kills:
            break
        if time.monotonic() - began > 60 * minutes:
            print(f"stopped after {number} kills: {minutes:g} minutes are over", file=sys.stderr)
            break
        if name not in lasted:
            lasted[name], faults = undisturbed(name, folder / WHOLE / name)
            if faults:
                outcomes.append(Outcome(name, 0.0, whole_group=False, ended_before=True, faults=faults))
                continue
        if not kills:
            continue
        place = folder / f"kill-{number:02d}" / name
        outcome = disturbed(name, KINDS[name], folder / WHOLE / name / "out", lasted[name], place, rng)
        outcomes.append(outcome)
        print(f"kill {number + 1}: {name} after {outcome.seconds:.1f} of {lasted[name]:.1f} s ({outcome.whom}): "
              f"{outcome.became}", file=sys.stderr, flush=True)  # fmt: skip
        if not outcome.faults:
            shutil.rmtree(place.parent)
        tell(outcomes)
    return outcomes


def undisturbed(name: str, place: Path) -> tuple[float, tuple[str, ...]]:
    """Run a kind of command without a kill; how many seconds it lasted, and what went wrong."""
    clock, busy = time.monotonic(), _processor_seconds()
    faults = tuple(f"undisturbed: {fault}" for fault in finish(started(KINDS[name], place), place))
    lasted = time.monotonic() - clock
    took = f"{lasted:.0f} s undisturbed, {_processor_seconds() - busy:.0f} s of processor time"
    print(f"{name}: {'; '.join((took, *faults))}", file=sys.stderr, flush=True)
    return lasted, faults


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def as_table(outcomes: list[Outcome]) -> str:
    """Kind, kills, and how many went on as if nothing had happened."""
    lines = ["| kind | kills | first process alone | ended before | as undisturbed |", "|---|---|---|---|---|"]
    for name in dict.fromkeys(outcome.kind for outcome in outcomes):
        of = [outcome for outcome in outcomes if outcome.kind == name]
        alone = sum(not o.whole_group and not o.ended_before for o in of)
        good = sum(not o.faults for o in of)
        lines.append(f"| {name} | {len(of)} | {alone} | {sum(o.ended_before for o in of)} | {good} |")
    good = sum(not o.faults for o in outcomes)
    before = sum(o.ended_before for o in outcomes)
    lines.append(f"| all | {len(outcomes)} | | {before} | {good} |")
    return "\n".join(lines)


def commit_now() -> str:
    """The commit that is checked out, or nothing."""
    words = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip()


def as_page(outcomes: list[Outcome], arguments: list[str], commit: str) -> str:
    """One section of a page of results: command, commit and time, the table, and every kill."""
    now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    lines = [f"## `python scripts/kills.py {' '.join(arguments)}`", ""]
    lines += [f"Commit {commit or 'unknown'}, ended {now}.", "", as_table(outcomes), ""]
    lines += ["| kill | kind | killed after | who was killed | went on |", "|---|---|---|---|---|"]
    for number, outcome in enumerate(outcomes, 1):
        lines.append(f"| {number} | {outcome.kind} | {outcome.seconds:.1f} s | {outcome.whom} | {outcome.became} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Read the options, kill, print the table; exit code 1 if anything was not as undisturbed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS), help="comma-separated")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=35.0, help="begin no further kill after so many")
    parser.add_argument("--folder", type=Path, default=None, help="new folder to work in; it is kept. Empty: temporary")
    parser.add_argument(
        "--out", type=Path, default=None, help="page to which command, commit, time and table are added"
    )
    options = parser.parse_args()
    names = options.kinds.split(",")
    if unknown := [name for name in names if name not in KINDS]:
        parser.error(f"unknown {', '.join(unknown)}; known: {', '.join(KINDS)}")
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="docleak-kills-"))).absolute()
    arguments = [f"--kinds {options.kinds}"] if options.kinds != ",".join(KINDS) else []
    arguments += [f"--kills {options.kills}", f"--seed {options.seed}"]
    commit = commit_now()
    before = options.out.read_text() if options.out and options.out.is_file() else PAGE

    def tell(outcomes: list[Outcome]) -> None:
        if options.out:
            options.out.write_text(f"{before}\n{as_page(outcomes, arguments, commit)}")

    outcomes = kill_all(names, options.kills, options.seed, folder, options.minutes, tell)
    print(as_table(outcomes))
    if options.folder is None and not any(outcome.faults for outcome in outcomes):
        shutil.rmtree(folder)
    sys.exit(any(outcome.faults for outcome in outcomes))


if __name__ == "__main__":
    main()
