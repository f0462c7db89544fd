"""``docleak attack NAME`` and ``docleak defend``: one attack of any view, and one under several defences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click
from typer.core import TyperGroup, TyperOption

from docleak import spec
from docleak.attacks.registries import ANSWERS, ATTACKS, PAIRS, WEIGHTS, misnamed
from docleak.cli.output import list_all, note
from docleak.cli.studies import PANEL, StudyCommand, Work
from docleak.defenses.registry import DEFENSES
from docleak.errors import AttackError, DocleakError
from docleak.registry import Registry
from docleak.studies.kinds import STUDIES

#: Study -> the attacks that it makes.
VIEWS: dict[str, Registry[Any]] = {"gradient": ATTACKS, "pairs": PAIRS, "weights": WEIGHTS, "answers": ANSWERS}
PANELS = {
    "gradient": "On gradients", "pairs": "On gradients of pictures with texts", "weights": "On weights",
    "answers": "On answers", "canaries": "On trainings",
}  # fmt: skip
#: Other defaults than the study's.
PRESETS: Mapping[str, Mapping[str, Any]] = {"gradient": {"models": ("donut-start",), "budget": 150}}
#: What is no attack of a registry: study, what --list says, what is fixed of the study, and which options are idle.
PARTS: dict[str, tuple[str, str, Mapping[str, Any], tuple[str, ...]]] = {
    "membership": (
        "answers", "which providers were in the training of a released model; Tito et al. (2024), section 5.2",
        {"measures": ("gap", "membership")}, ("members", "non_members", "references"),
    ),
    "memorisation": (
        "answers", "what a released model says that its page no longer shows; Tito et al. (2024), section 5.1",
        {"measures": ("memorisation", "disclosure")},
        ("attacks", "minimum", "seeds", "members", "non_members", "references"),
    ),
    "canaries": ("canaries", "what one private training provably leaks of canary providers; Steinke et al. (2023)", {},
                 ()),
}  # fmt: skip


def attacks() -> dict[str, tuple[str, str]]:
    """Name -> (study, what it does in a line), of every attack."""
    named = {name: (study, about) for study, known in VIEWS.items() for name, about in known.summaries().items()}
    return named | {name: (study, about) for name, (study, about, *_) in PARTS.items()}


class AttackGroup(TyperGroup):
    """Attacks by name, several of one view with commas between them, and options behind a name's colon."""

    def __init__(self) -> None:
        commands: dict[str, click.Command] = {
            name: _command(name, study, about) for name, (study, about) in attacks().items()
        }
        super().__init__(
            name="attack", commands=commands, no_args_is_help=True, rich_help_panel=PANEL,
            help="Make one attack: NAME, NAME:key=value with its own options, NAME,NAME for several of a kind, or "
            "MODULE:OBJECT of your own on gradients (of other kinds: docleak audit pairs, weights or answers).",
            params=[_list_option(), TyperOption(param_decls=["json_output", "--json"], is_flag=True, expose_value=False,
                                                help="With --list: JSON.")],
        )  # fmt: skip

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """``--list`` ends it."""
        for fault in misnamed() if "--list" in args else ():
            note(f"Warning: {fault}.")
        _list_if_asked(ctx, args, lambda: {
            panel: {name: about for name, (study, about) in attacks().items() if study == view}
            for view, panel in PANELS.items()
        })  # fmt: skip
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """The command for these attacks; AttackError for unknown ones, and for attacks of several kinds."""
        return self.commands.get(cmd_name) or _named(cmd_name)


class DefendCommand(StudyCommand):
    """The comparison of defences."""

    def __init__(self) -> None:
        super().__init__("defend", Work(STUDIES["defences"], "docleak-defend"), path="defend", panel=PANEL)

    def made(self) -> list[click.Parameter]:
        """The study's options, and --list."""
        return [*super().made(), _list_option()]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """``--list`` ends it."""
        _list_if_asked(ctx, args, lambda: {"Defences": DEFENSES.summaries()})
        return super().parse_args(ctx, args)


def _named(text: str) -> StudyCommand:
    """The command of one attack with options, of several, or of an object of somebody's own (on gradients)."""
    asked, known = spec.names(text), attacks()
    names = [spec.split_name(one)[0] for one in asked]
    studies = {known[name][0] if name in known else "gradient" for name in names}
    unknown = [name for name, one in zip(names, asked, strict=True) if name not in known and ":" not in one]
    if unknown or not asked:
        raise AttackError(
            spec.unknown("attack", unknown[0] if unknown else "", tuple(known), more=", or MODULE:OBJECT")
        )
    if len(studies) > 1 or (len(names) > 1 and set(names) & PARTS.keys()):
        raise AttackError(f"{text} names attacks on different things; give each a command of its own.")
    return _command(text, studies.pop(), known.get(names[0], ("", ""))[1])


def _command(text: str, study: str, about: str) -> StudyCommand:
    asked = spec.names(text)
    name = spec.split_name(asked[0])[0]
    fixed, without = (
        PARTS[name][2:] if name in PARTS else (_fixed(study, asked), PARTS["membership"][3] * (study == "answers"))
    )
    work = Work(STUDIES[study], f"docleak-{name.lower()}", PRESETS.get(study, {}), fixed, without)
    return StudyCommand(text, work, path=f"attack {name}", panel=PANELS[study], about=about and f"{about}.")


def _fixed(study: str, asked: tuple[str, ...]) -> dict[str, Any]:
    """The configuration's part that says which attacks are made."""
    if study != "weights":
        return {"attacks": asked, **({"measures": ("gap", "membership")} if study == "answers" else {})}
    if len(asked) > 1:
        raise AttackError(f"{', '.join(asked)}: a game on weights takes one attack. Give each a command of its own.")
    return {"attack": asked[0]}


def _list_if_asked(ctx: click.Context, args: list[str], rows: Callable[[], Mapping[str, Mapping[str, str]]]) -> None:
    if "--list" in args and "--help" not in args:
        if idle := [word for word in args if word not in ("--list", "--json")]:
            raise DocleakError(f"{' '.join(idle)} cannot be combined with --list, which only lists. Leave it out.")
        list_all(rows())
        ctx.exit()


def _list_option() -> TyperOption:
    return TyperOption(
        param_decls=["show_list", "--list"], is_flag=True, expose_value=False, help="List what there is."
    )
