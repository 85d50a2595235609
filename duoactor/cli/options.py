"""Command-line flags made from option structs, and flags that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import click
import msgspec

from actors.settings import AUTO_DRAFT, PEER_VARIABLES, DrafterSettings, VerifierSettings
from duoactor import config
from duoactor.cli.sections import CONNECTION, SAMPLING, SPECULATION, SectionOption
from duoactor.client.options import DESCRIPTIONS
from duoactor.config import options
from protocols.messages import DEFAULTED, Method, Sampling

F = TypeVar("F", bound=Callable[..., Any])

LONGEST_METAVAR = 40  # characters: longer lists of choices are told in the text
CONNECTING = ("connect", "bind", "key", "server_key", "allow")  # options that say how actors reach each other

SAMPLING_HELP: Mapping[str, str] = {
    **{name: DESCRIPTIONS[name] for name in Sampling.__struct_fields__},
    "stop": "end before this text; may be repeated",
    "stop_token_ids": "end at this token id; may be repeated",
    "seed": "the same seed gives the same text, with any drafter and method",
    "logprobs": "with --json: log-probabilities of each token and of the n most likely; -1: none",
    "logit_bias": "ID:X adds X (-100 to 100) to the logit of token ID; may be repeated",
}


def _token_number(text: str) -> tuple[int, float]:
    token, _, number = text.partition(":")
    try:
        return int(token), float(number)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a token id and a number, such as 42:-5") from None


def click_option(option: config.Option, name: str, section: str = "", variable: str | None = None) -> Callable[[F], F]:
    """The flag of one option, listed under ``section``. Not given, its value is None (or an empty tuple), so that it
    hides no value of a file. ``variable``: an environment variable that is read where the flag is not given."""
    bounded = option.at_least is not None or option.at_most is not None
    kind: click.ParamType[Any] = {
        "text": click.STRING,
        "integer": click.IntRange(_whole(option.at_least), _whole(option.at_most)) if bounded else click.INT,
        "number": click.FloatRange(option.at_least, option.at_most) if bounded else click.FLOAT,
        "choice": click.Choice(option.choices),
        "token number": click.types.FuncParamType(_token_number),
        "switch": click.BOOL,
    }[option.kind]
    metavar = {"text": "TEXT", "integer": "N", "number": "X", "token number": "ID:X"}.get(option.kind)
    text = option.description
    if len("|".join(option.choices)) > LONGEST_METAVAR:
        metavar, text = name.upper(), f"{text}: {', '.join(option.choices)}"
    shown = "" if option.default in ("", ()) or option.default is False else f"  [{option.default}]"
    details: dict[str, Any] = {"is_flag": True} if option.kind == "switch" else {"type": kind, "metavar": metavar}
    if variable is not None:
        details |= {"envvar": variable, "show_envvar": True}
    flag = "--" + name.replace("_", "-")
    return click.option(
        flag,
        name,
        cls=SectionOption,
        section=section,
        help=text + shown,
        multiple=option.repeated,
        default=None,
        **details,
    )


def _whole(limit: float | None) -> int | None:
    return None if limit is None else int(limit)


def struct_options(
    struct: type[msgspec.Struct],
    *,
    prefix: str = "",
    section: str = "",
    common: Container[str] = (),
    only: Container[str] | None = None,
    leave_out: Container[str] = (),
) -> Callable[[F], F]:
    """One flag per field of ``struct``, listed under ``section``; but those in ``common`` under "Options", and those
    that say how actors reach each other under "Connection"."""

    def section_of(name: str) -> str:
        return CONNECTION if name in CONNECTING else "" if name in common else section

    def position(option: config.Option) -> int:
        return CONNECTING.index(option.name) if option.name in CONNECTING else -1

    def decorate(command: F) -> F:
        for option in sorted(options(struct), key=position)[::-1]:  # the last decorator is the first option
            if option.name in leave_out or (only is not None and option.name not in only):
                continue
            if struct is Sampling:
                default = f"the model's, or {option.default:g}" if option.name in DEFAULTED else option.default
                option = replace(option, description=SAMPLING_HELP[option.name], default=default)
            variable = PEER_VARIABLES.get(option.name) if "connect" in struct.__struct_fields__ else None
            name = config.prefixed(option, prefix)
            command = click_option(option, name, section_of(option.name), variable)(command)
        return command

    return decorate


def settings_from(struct: type[config.S], file: config.Values, flags: Mapping[str, object]) -> config.S:
    """An actor's settings: what the file says, then what the command line says."""
    return config.build(struct, file, config.given(flags, struct))


# --- options that travel together ------------------------------------------------------------------------------------


def _as_one(
    name: str, make: Callable[..., object], fields: Sequence[str], *options: Callable[[F], F]
) -> Callable[[F], F]:
    """A command with these ``options``, which gets their values (``fields``) as one argument that ``make`` makes."""

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def packed(*args: Any, **values: Any) -> Any:
            return command(*args, **{name: make(**{field: values.pop(field) for field in fields})}, **values)

        for option in reversed(options):
            packed = option(packed)
        return packed  # type: ignore[return-value]

    return decorate


class Place(NamedTuple):
    """A client's address and keys. Environment variables may hold them."""

    connect: str
    key: str
    server_key: str


def _peer_option(name: str, text: str) -> Callable[[F], F]:
    flag, variable = "--" + name.replace("_", "-"), PEER_VARIABLES[name]
    return click.option(
        flag,
        cls=SectionOption,
        section=CONNECTION,
        default="",
        metavar="TEXT",
        help=text,
        envvar=variable,
        show_envvar=True,
    )


place_options = _as_one(
    "place",
    Place,
    Place._fields,
    _peer_option("connect", "the verifier's address  [this user's default]"),
    _peer_option("key", "your CURVE secret key file"),
    _peer_option("server_key", "the verifier's CURVE public key file"),
)


class Pair(NamedTuple):
    """A target and its draft, where a command runs both by itself; ``drafters``: one, or none to retrieve drafts."""

    verifier: VerifierSettings
    drafters: tuple[DrafterSettings, ...]
    named: bool = True  # by the command line


def make_pair(target: str | None, draft: str | None, draft_device: str | None = None, **place: str | None) -> Pair:
    said, named = {"target": target, **place}, bool(target or draft)
    verifier = config.build(VerifierSettings, {name: value for name, value in said.items() if value is not None})
    if draft in (None, "", AUTO_DRAFT):
        draft, _ = config.choose_draft(verifier.target)
    drafter = DrafterSettings(draft=draft, device=draft_device or "cpu") if draft else None
    return Pair(verifier, (drafter,) if drafter is not None else (), named)


pair_options = _as_one(
    "pair",
    make_pair,
    ("target", "draft", "draft_device", "tokenizer", "device", "dtype"),
    struct_options(VerifierSettings, only=("target",)),
    struct_options(DrafterSettings, only=("draft",)),
    struct_options(VerifierSettings, only=("tokenizer", "device", "dtype")),
    struct_options(DrafterSettings, prefix="draft_", only=("device",)),
)

method_option = click.option(
    "--method",
    cls=SectionOption,
    section=SPECULATION,
    default=None,
    metavar="METHOD",
    type=click.Choice([str(method) for method in Method]),
    callback=lambda context, parameter, value: value or "",
    help=f"how to draft and verify: {', '.join(Method)}  [the verifier's default]",
)


SCORED = [name for name in Sampling.__struct_fields__ if name != "skip_special_tokens"]  # a flag could not say no
REQUESTED = [name for name in SCORED if name != "logprobs"]  # `generate --json` alone has a place for them


def _request(method: str, num_speculative_tokens: int, sequences: int, **values: object) -> dict[str, Any]:
    how = {"method": method, "num_speculative_tokens": num_speculative_tokens, "sequences": sequences}
    return {"seed": 0, **config.given(values, Sampling), **how}


def _speculation_option(flag: str, text: str) -> Callable[[F], F]:
    whole = click.IntRange(0)
    return click.option(flag, cls=SectionOption, section=SPECULATION, default=0, metavar="N", type=whole, help=text)


def _request_options(sampling: Sequence[str]) -> Callable[[F], F]:
    return _as_one(
        "request",
        _request,
        (*sampling, "method", "num_speculative_tokens", "sequences"),
        struct_options(Sampling, section=SAMPLING, only=sampling),
        method_option,
        _speculation_option("--num-speculative-tokens", "draft length gamma; 0 lets it adapt  [0]"),
        _speculation_option("--sequences", "number of draft sequences; 0 lets it adapt  [0]"),
    )


request_options, scored_request_options = _request_options(REQUESTED), _request_options(SCORED)

json_option = click.option("--json", "as_json", is_flag=True, help="print one JSON document on stdout, nothing else")
config_option = click.option(
    "--config", "file", default="", metavar="FILE", help="read options from this duo.toml; flags win over it"
)


class Logs(NamedTuple):
    verbose: bool
    quiet: bool

    @property
    def flags(self) -> tuple[str, ...]:
        """For the actors that a command starts."""
        return ("--verbose",) if self.verbose else ("--quiet",) if self.quiet else ()


log_options = _as_one(
    "logs",
    Logs,
    Logs._fields,
    click.option("--verbose", "-v", is_flag=True, help="log everything"),
    click.option("--quiet", "-q", is_flag=True, help="log warnings and errors only"),
)
