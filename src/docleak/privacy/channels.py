"""Which channels of a planned training are open to its server, before anything is trained.

Words and pages leave by the span of what was sent (``attacks.gradients.algebra.subspace``), pixels by the position
table (``algebra.tower``). Whether they do is a matter of ranks and widths, which are known beforehand. A foreign vector
has a share k/d of its squared length in a span of k among d dimensions, give or take; one of the T vectors that were
read has k/T. Where nothing but measurements says so, the answer says that; where there are none, it cannot tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from docleak.errors import PrivacyError, refuse, those
from docleak.spec import counted_words

#: Chance of a single false word in a vocabulary, as the attack chooses its cut-off.
CHANCE = 0.01
#: Between these distances (standard deviations of the vectors that were read) from the cut-off, it cannot tell.
SURE = 1.5
#: Vectors per rank of an A that does not move: of 91 no word was read out of B behind rank 8, 17 of 28 behind rank 32
#: (docs/results/ours/adapters.md).
NONE_READ, MOST_READ = 91 / 8, 91 / 32
#: Clients of the sums of which a page was measured, and what was (docs/results/ours/adapters.md).
SUMMED = (4, 16)
SUMS = (
    "sums were measured on one tiny model alone: of 4 clients a share of 0.001 of the page's gradient lay outside of "
    "what was sent, of the nearest other page's 0.007, and of 16 clients 0.003 and 0.004"
)
#: Rounds of one AdamW step each from which most words were read (docs/log.md); fewer were not measured.
ADAMW_ROUNDS = 9
#: Of which models a plan holds, for whoever reads its verdict alone.
HOLDS_FOR = (
    "a decoder of pictures and words (LLaVA, PaliGemma, Qwen2-VL and the like) with adapters (LoRA), or parts of it "
    "trained whole; of encoders (LayoutLMv3, LiLT) and encoder-decoders (VT5, Donut, UDOP) it says nothing: run "
    "`docleak audit gradient` or `docleak audit updates` on those"
)
#: What open and closed mean, likewise.
ASSUMES = "Open or closed is about the exact attacks of docleak: what is closed to them may be open to others."
OPTIMISERS, AGGREGATIONS, PRECISIONS = ("sgd", "adamw"), ("plain", "secure", "dp"), ("float32", "bfloat16")


class State(StrEnum):
    """What can be said of a channel."""

    OPEN = "open"
    CLOSED = "closed"
    UNTOLD = "cannot tell"


@dataclass(frozen=True)
class Channel:
    """``condition`` is what decides, ``basis`` "algebra", "measured" or "nothing known"; ``change`` closes it at least
    cost ("" where it is not open, or nothing here does)."""

    name: str
    state: State
    condition: str
    basis: str
    change: str = ""


@dataclass(frozen=True)
class Shape:
    """What is trained, on what, and what the server gets.

    ``width`` and ``vocabulary`` are the language model's; ``words`` different words and ``patches`` picture vectors a
    page. ``rank`` 0 trains whole weights, of which those of query, key and value alone are counted here: nothing of
    words and pages is closed then; ``adapted`` of the first layer's query, key and value are trained, or carry
    adapters. ``begun``: LoRA's B is not zero where the rounds begin. ``table``: the table of tokens is trained, and not
    tied to the output layer. ``tower_width`` 0: the tower is frozen, or has no table of positions; ``tower_patches``
    are a page's there, in ``tiles`` pictures.
    """

    width: int = 1024
    vocabulary: int = 32_000
    words: int = 200
    patches: int = 100
    rank: int = 16
    adapted: int = 3
    frozen_a: bool = False
    begun: bool = False
    table: bool = False
    tower_width: int = 0
    tower_patches: int = 256
    tiles: int = 1
    pages: int = 1
    local_steps: int = 1
    rounds: int = 10
    clients: int = 10
    optimiser: str = "sgd"
    precision: str = "float32"
    aggregation: str = "plain"

    def __post_init__(self) -> None:
        least = {"width": 8, "vocabulary": 2, "words": 1, "pages": 1, "local_steps": 1, "rounds": 1, "clients": 1,
                 "tiles": 1, "tower_patches": 1}  # fmt: skip
        faults = [f"{name} is {getattr(self, name)}; expected {low} or more" for name, low in least.items()
                  if getattr(self, name) < low]  # fmt: skip
        faults += [f"{name} is {getattr(self, name)}; expected 0 or more" for name in ("patches", "rank", "adapted",
                   "tower_width") if getattr(self, name) < 0]  # fmt: skip
        closed = {"optimiser": OPTIMISERS, "precision": PRECISIONS, "aggregation": AGGREGATIONS}
        faults += [f"{name} is {getattr(self, name)!r}; expected {' or '.join(known)}" for name, known in closed.items()
                   if getattr(self, name) not in known]  # fmt: skip
        faults += those((self.adapted > 3, f"adapted is {self.adapted}; the first layer has query, key and value: 3"))
        refuse(PrivacyError, faults)

    @property
    def together(self) -> int:
        """Pages behind one update, or one sum of a secure aggregation."""
        return self.pages * (self.clients if self.aggregation == "secure" else 1)

    @property
    def read(self) -> int:
        """T: different vectors that the first layer reads, if pages share no word, and are the same each round."""
        return min(self.words * self.together, self.vocabulary) + self.patches * self.together

    @property
    def rows(self) -> int:
        """Vectors of the span that are sent in all rounds: LoRA's A begins to move in the second step."""
        if self.rank == 0:
            return self.adapted * self.width
        still = 1 if self.local_steps == 1 and not self.begun else 0
        return 0 if self.frozen_a else self.adapted * self.rank * max(0, self.rounds - still)


def plan(shape: Shape) -> tuple[Channel, ...]:
    """Words, page and picture, in that order."""
    return tuple(_cheapest(shape, _channel(shape, name)) for name in ("words", "page", "picture"))


def contrast(shape: Shape, *, chance: float) -> float:
    """By how many of their standard deviations the vectors that were read stand above the cut-off for foreign ones."""
    d, read = shape.width, shape.read
    if read >= d or not shape.rows:
        return -math.inf
    from scipy.special import betainccinv

    k = min(shape.rows, read)
    inside = k / read
    cutoff = float(betainccinv(k / 2, (d - k) / 2, chance))
    spread = math.sqrt(2 * inside * (1 - inside) / read)
    return math.inf if spread == 0 and inside > cutoff else (inside - cutoff) / max(spread, 1e-12)


def _channel(shape: Shape, name: str) -> Channel:
    if shape.aggregation == "dp":
        said = (
            "noise per provider bounds what anyone can tell by epsilon; what these attacks then read depends on the "
            "noise, and is not known: words alone were tried, on one tiny model (none read, multipliers 0.1 and 1)"
        )
        return Channel(name, State.UNTOLD, said, "nothing known")
    return {"words": _words, "page": _page, "picture": _picture}[name](shape)


def _words(shape: Shape) -> Channel:
    if shape.table:
        said = "the rows of the token table that were looked up move, and no others"
        said += " but by weight decay" * (shape.optimiser == "adamw")
        return Channel("words", State.OPEN, said, "algebra")
    return _spanned(shape, "words", CHANCE / shape.vocabulary)


def _page(shape: Shape) -> Channel:
    if shape.aggregation == "secure":
        if shape.clients in SUMMED:
            return Channel("page", State.UNTOLD, SUMS, "measured")
        said = f"a sum over {counted_words(shape.clients, 'client')} was not measured; {SUMS}"
        return Channel("page", State.UNTOLD, said, "nothing known")
    return _spanned(shape, "page", CHANCE)


def _spanned(shape: Shape, name: str, chance: float) -> Channel:
    unless = f" if {shape.together} pages share no word or patch" if shape.together > 1 else ""
    said = f"{shape.rows} vectors sent, {shape.read} read{unless}, width {shape.width}"
    if shape.rank == 0 and (not shape.adapted or shape.read >= shape.width):
        why = "of whole weights more is sent than the first layer's query, key and value: a token table that is tied"
        why += " to the output layer, norms, what lies behind the attention; what those give away is not planned"
        return Channel(name, State.UNTOLD, f"{said}; {why}", "nothing known")
    if not shape.adapted and name == "page":
        said = "what is trained behind the first layer's query, key and value spans the page's own gradient there, too"
        return Channel(name, State.UNTOLD, f"{said}; one model was measured, and open", "nothing known")
    if not shape.adapted:
        return Channel(name, State.CLOSED, "the first layer's query, key and value are frozen", "algebra")
    if shape.rank and not shape.rows:
        still = "A is frozen" if shape.frozen_a else "LoRA's first step moves B alone"
        why = f"{still}: B's gradient tells {shape.rank} numbers of each of {shape.read} vectors"
        return _unmoved(name, why, shape.read / shape.rank)
    if shape.read >= shape.width or shape.rows < shape.read:
        why = f"{said}: some vectors may weigh more than others in what was sent"
        return Channel(name, State.UNTOLD, why, "nothing known")
    untried = [shape.precision] * (shape.precision != "float32")
    untried += ["several steps on whole weights"] * (shape.rank == 0 and shape.local_steps > 1)
    if untried:
        return Channel(name, State.UNTOLD, f"{said}; not measured: {', '.join(untried)}", "nothing known")
    if shape.optimiser == "adamw":
        return _signed(shape, name, said)
    apart = contrast(shape, chance=chance)
    state = State.OPEN if apart > SURE else State.CLOSED if apart < -SURE else State.UNTOLD
    placed = f"{apart:+.1f} standard deviations from the cut-off" if math.isfinite(apart) else "all of them in its span"
    return Channel(name, state, f"{said}: {placed}", "algebra")


def _unmoved(name: str, why: str, filled: float) -> Channel:
    """Where A does not move: ``filled`` vectors behind each of its rows."""
    if name == "page":
        return Channel(name, State.UNTOLD, f"{why}; what that tells of a page was not measured", "nothing known")
    none, most = "of 91 behind rank 8 no word was read", "of 91 behind rank 32 17 of 28 words were read"
    if filled >= NONE_READ:
        return Channel(name, State.CLOSED, f"{why}; {none}, on one model", "measured")
    if filled <= MOST_READ:
        return Channel(name, State.UNTOLD, f"{why}; {most}, on one model", "measured")
    why += f"; {none}, {most}, on one model: nothing was measured between"
    return Channel(name, State.UNTOLD, why, "nothing known")


def _signed(shape: Shape, name: str, said: str) -> Channel:
    enough = shape.local_steps == 1 and shape.rounds >= ADAMW_ROUNDS and contrast(shape, chance=CHANCE) == math.inf
    if name == "words" and shape.rank and enough:
        return Channel(name, State.OPEN, f"{said}; one AdamW step a round is inverted", "measured")
    return Channel(name, State.UNTOLD, f"{said}; AdamW's steps are no gradient, and span more", "nothing known")


def _picture(shape: Shape) -> Channel:
    if not shape.tower_width and shape.rank == 0:
        said = "whole weights are trained, and no tower with a table of positions was described (--tower-width)"
        return Channel("picture", State.UNTOLD, said, "nothing known")
    if not shape.tower_width:
        said = "no tower's table of positions is trained: no closed form; optimisation was not asked"
        return Channel("picture", State.CLOSED, said, "algebra")
    if shape.together > 1 or shape.tiles > 1:
        said = f"{shape.together} pages of {shape.tiles} tiles share one table of positions: they mix"
        return Channel("picture", State.CLOSED, said, "algebra")
    said = f"{shape.tower_patches} patch{'es' * (shape.tower_patches > 1)} of {shape.tower_width} numbers"
    if shape.tower_patches >= shape.tower_width:
        return Channel("picture", State.CLOSED, said, "algebra")
    if shape.precision != "float32":
        return Channel("picture", State.UNTOLD, f"{said}; {shape.precision} was not measured", "nothing known")
    if shape.optimiser == "adamw" and shape.local_steps > 1:
        return Channel("picture", State.CLOSED, f"{said}; several AdamW steps are not inverted", "measured")
    if shape.optimiser == "adamw":
        why = "one AdamW step is inverted where gradients are about as small as its epsilon, which a plan does not know"
        return Channel("picture", State.UNTOLD, f"{said}; {why}", "nothing known")
    steps = f"; {shape.local_steps} steps on one page add up" if shape.local_steps > 1 else ""
    return Channel("picture", State.OPEN, said + steps, "algebra")


def _cheapest(shape: Shape, channel: Channel) -> Channel:
    """With the first change, cheapest first, after which the channel is closed, and why it is."""
    if channel.state is not State.OPEN:
        return channel
    apart = "that share no word or patch"
    first, still = ("freeze the token table", replace(shape, table=False)) if shape.table else ("", shape)
    changes: dict[str, Shape] = {
        "": still,
        "freeze LoRA's A": replace(still, frozen_a=bool(shape.rank)),
        "no adapters on the first layer's query, key and value": replace(still, adapted=0),
        "freeze the tower": replace(shape, tower_width=0),
        **{f"{n} pages a step {apart}": replace(still, pages=n) for n in (2, 4, 8, 16, 32, 64) if n > shape.pages},
        f"secure aggregation of {shape.clients} clients with pages {apart}": replace(still, aggregation="secure"),
    }
    for said, changed in changes.items():
        after = _channel(changed, channel.name)
        if changed != shape and after.state is State.CLOSED:
            change = " and ".join(filter(None, [first if channel.name == "words" else "", said]))
            return replace(channel, change=f"{change} ({after.basis}: {after.condition})")
    return replace(channel, change="nothing here; differential privacy bounds it by epsilon (docleak budget)")


def as_text(channels: tuple[Channel, ...], unsaid: str = "") -> str:
    """Of which models it holds, what it is about and what was taken for granted (``unsaid``, a line), then a line per
    channel, and what closes it."""
    lines = [f"This holds for {HOLDS_FOR}.", ASSUMES, *filter(None, [unsaid])]
    for one in channels:
        lines.append(f"{one.name:8} {one.state.upper():12} {one.condition} ({one.basis})")
        lines += [f"{'':21} closed by: {one.change}"] if one.change else []
    return "\n".join(lines)
