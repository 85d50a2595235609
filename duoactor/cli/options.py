"""Command-line flags made from option structs, and flags that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import click
import msgspec

from actors.settings import PEER_VARIABLES
from duoactor import config
from duoactor.client.options import DESCRIPTIONS
from duoactor.config import Option, options
from protocols.messages import Method, Sampling

F = TypeVar("F", bound=Callable[..., Any])

SAMPLING_HELP: Mapping[str, str] = {
    **{name: DESCRIPTIONS[name] for name in Sampling.__struct_fields__},
    "stop": "end before this text; may be repeated",
    "stop_token_ids": "end at this token id; may be repeated",
    "seed": "the same seed gives the same text, whatever drafts",
    "logprobs": "report the n most likely tokens' log-probabilities (with --json); -1 is none",
    "logit_bias": "ID:X adds X (-100 to 100) to the logit of token ID; may be repeated",
}


def _token_number(text: str) -> tuple[int, float]:
    token, _, number = text.partition(":")
    try:
        return int(token), float(number)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a token id and a number, such as 42:-5") from None


def click_option(option: Option, name: str, variable: str | None = None) -> Callable[[F], F]:
    """The flag of one option. Not given, it is None (or an empty tuple), so that it hides nothing below it.
    ``variable``: of the environment, that stands for it."""
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
    shown = "" if option.default in ("", ()) or option.default is False else f"  [{option.default}]"
    details: dict[str, Any] = {"is_flag": True} if option.kind == "switch" else {"type": kind, "metavar": metavar}
    if variable is not None:
        details |= {"envvar": variable, "show_envvar": True}
    flag = "--" + name.replace("_", "-")
    return click.option(flag, name, help=option.description + shown, multiple=option.repeated, default=None, **details)


def _whole(limit: float | None) -> int | None:
    return None if limit is None else int(limit)


def struct_options(
    struct: type[msgspec.Struct], *, prefix: str = "", about: str = "", leave_out: Iterable[str] = ()
) -> Callable[[F], F]:
    """One flag per field of ``struct``; ``about`` goes before each description."""

    def decorate(command: F) -> F:
        for option in reversed(options(struct)):
            if option.name not in leave_out:
                description = SAMPLING_HELP[option.name] if struct is Sampling else about + option.description
                variable = PEER_VARIABLES.get(option.name) if "connect" in struct.__struct_fields__ else None
                decorated = click_option(
                    replace(option, description=description), config.prefixed(option, prefix), variable
                )
                command = decorated(command)
        return command

    return decorate


def settings_from(struct: type[config.S], file: config.Values, flags: Mapping[str, object]) -> config.S:
    """An actor's settings: what the file says, then what the command line says."""
    return config.build(struct, file, config.given(flags, struct))


def sampling_from(values: Mapping[str, object]) -> Sampling:
    return Sampling(**config.given(values, Sampling))  # type: ignore[arg-type]


def connection_options(command: F) -> F:
    """Where a client connects, and with which keys. Whoever types many commands sets the variables once."""
    for name, text in (
        ("server_key", "the verifier's CURVE public key file"),
        ("key", "your CURVE secret key file"),
        ("connect", "the verifier's address  [this user's own]"),
    ):
        flag, variable = "--" + name.replace("_", "-"), PEER_VARIABLES[name]
        command = click.option(flag, default="", metavar="TEXT", help=text, envvar=variable, show_envvar=True)(command)
    return command


method_option = click.option(
    "--method",
    default=None,
    type=click.Choice([str(method) for method in Method]),
    callback=lambda context, parameter, value: value or "",
    help="how to draft and verify  [the verifier's default]",
)


def speculation_options(command: F) -> F:
    """How one request is to be drafted."""
    for decorate in (
        click.option(
            "--sequences", default=0, metavar="N", type=click.IntRange(0), help="draft sequences; 0 is dynamic"
        ),
        click.option(
            "--num-speculative-tokens", default=0, metavar="N", type=click.IntRange(0), help="gamma; 0 is adaptive"
        ),
        method_option,
    ):
        command = decorate(command)
    return command


json_option = click.option("--json", "as_json", is_flag=True, help="print one JSON document on stdout, nothing else")
config_option = click.option(
    "--config", "file", default="", metavar="FILE", help="read options from a duo.toml; flags win"
)


def log_options(command: F) -> F:
    quiet = click.option("--quiet", "-q", is_flag=True, help="log warnings and errors only")
    verbose = click.option("--verbose", "-v", is_flag=True, help="log everything")
    return verbose(quiet(command))
