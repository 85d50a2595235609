"""Command-line flags made from option structs, and flags that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, TypeVar

import click
import msgspec
from click.core import ParameterSource
from msgspec import Meta

from actors.settings import PEER_VARIABLES, DrafterSettings, Settings, VerifierSettings
from duoactor import config
from duoactor.client.options import DESCRIPTIONS
from duoactor.config import options
from duoactor.launch.wanted import Wanted, read_wanted
from protocols.messages import DEFAULTED, Method, Sampling

F = TypeVar("F", bound=Callable[..., Any])

# titles of help screens that several commands share
CONNECTION = "Connection"
SAMPLING = "Sampling"
SPECULATION = "Speculation"
FITTING = "one that fits the target, if any is found"  # what `up` and its like take for a draft
ALL = "duoactor.all"  # key in a context's meta: the help of every option is asked for
LONGEST_METAVAR = 40  # characters: longer lists of choices stand in the text
CONNECTING = ("connect", "bind", "key", "server_key", "allow")  # options that say how actors reach each other

SAMPLING_HELP: Mapping[str, str] = {
    **{name: DESCRIPTIONS[name] for name in Sampling.__struct_fields__},
    "stop": "end before this text; may be repeated",
    "stop_token_ids": "end at this token id; may be repeated",
    "bad_words": "a word that the output never has; may be repeated",
    "seed": "the same seed gives the same text, with any drafter and method",
    "logprobs": "with --json: log-probabilities of each token and of the n most likely; -1: none",
    "logit_bias": "ID:X adds X (-100 to 100) to the logit of token ID; may be repeated",
}


# Flags of other servers, and what is meant by them here
ELSEWHERE: Mapping[str, str] = {
    "--host": "give the address to listen on as --http HOST:PORT",
    **dict.fromkeys(
        ("--ctx-size", "-c", "--max-model-len"),
        "--context is the longest text, --kv-tokens the room of all requests together",
    ),
    "--max-num-seqs": "requests share the room that --kv-tokens says",
    **dict.fromkeys(("--n-gpu-layers", "-ngl"), "--device cuda puts the whole target on the GPU"),
    "--gpu": "--device cuda puts the target on the GPU",
    "--gpus": "--device cuda puts the target on the GPU",
    "--temp": "--temperature is its name here",
    "--n-predict": "--max-tokens is its name here",
    **dict.fromkeys(("--model", "-m"), "name the model without a flag: `duoactor up MODEL`"),
    "--alias": "--served-model-name gives the model another name",
    **dict.fromkeys(("--model-draft", "-md"), "--draft names the draft model"),
    "--speculative-config": "--draft, --method and --num-speculative-tokens say how drafts are made",
    "--tensor-parallel-size": "a target runs on one device",
    "--quantization": "the file says how its weights are quantised; --dtype int8 quantises them on a CPU",
}


class SectionOption(click.Option):
    """An option that ``--help`` lists under ``section``; without one it is under "Options", which come first."""

    def __init__(self, *arguments: Any, section: str = "", **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.section = section

    def get_help_extra(self, ctx: click.Context) -> Any:
        """The default help without the bounds of a number: an error names them."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


class Command(click.Command):
    """A command with a part of ``--help`` for each section of its options, in the order of their first options. How
    to connect comes last."""

    def __init__(self, *arguments: Any, brief: Mapping[str, str] = MappingProxyType({}), **attributes: Any) -> None:
        """``brief``: the options of ``--help``, where ``--help-all`` shows all, and their help texts; "" is what
        ``--help-all`` says."""
        super().__init__(*arguments, **attributes)
        self._brief = brief
        if brief:
            self.params.append(
                click.Option(
                    ["--help-all"],
                    is_flag=True,
                    is_eager=True,
                    expose_value=False,
                    callback=self._tell_all,
                    help="show every option and exit",
                )
            )

    def _tell_all(self, ctx: click.Context, option: click.Parameter, asked: bool) -> None:
        if asked and not ctx.resilient_parsing:
            ctx.meta[ALL] = True
            click.echo(ctx.get_help())
            ctx.exit()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = tuple(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            for name in (*given, error.option_name):  # click reads -md as -m
                if name.startswith(error.option_name) and name in ELSEWHERE:
                    raise click.UsageError(f"There is no {name}; {ELSEWHERE[name]}", ctx) from None
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self._brief and ALL not in ctx.meta:
            told = {one.name: one.get_help_record(ctx) for one in self.get_params(ctx)}
            brief = [(found[0], text or found[1]) for name, text in self._brief.items() if (found := told[name])]
            others = [found for name in ("help_all", list(told)[-1]) if (found := told[name])]
            with formatter.section("Options"):
                formatter.write_dl([*brief, *others])
            return
        sections: dict[str, list[tuple[str, str]]] = {"": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                sections.setdefault(getattr(parameter, "section", ""), []).append(record)
        if CONNECTION in sections:
            sections[CONNECTION] = sections.pop(CONNECTION)
        for title, records in sections.items():
            with formatter.section(title or "Options"):
                formatter.write_dl(records)


def _token_number(text: str) -> tuple[int, float]:
    token, _, number = text.partition(":")
    try:
        return int(token), float(number)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a token id and a number, such as 42:-5") from None


class WholeRange(click.IntRange):
    name = "whole number"  # click says "x is not a valid integer range"


class NumberRange(click.FloatRange):
    name = "number"


def click_option(
    option: config.Option, name: str, section: str = "", variable: str | None = None, *also: str
) -> Callable[[F], F]:
    """The flag of one option, listed under ``section``. Not given, its value is None (or an empty tuple), so that it
    hides no value of a file. ``variable``: an environment variable that is read where the flag is not given; ``also``:
    other names of the flag."""
    bounded = option.at_least is not None or option.at_most is not None
    kind: click.ParamType[Any] = {
        "text": click.STRING,
        "integer": WholeRange(_whole(option.at_least), _whole(option.at_most)) if bounded else click.INT,
        "number": NumberRange(option.at_least, option.at_most) if bounded else click.FLOAT,
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
        *also,
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
    also: Mapping[str, str] = MappingProxyType({}),
    defaults: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[F], F]:
    """One flag per field of ``struct``, listed under ``section``; but those in ``common`` under "Options", and those
    that say how actors reach each other under "Connection". ``also``: a second name of some flags; ``defaults``: in
    words, where the command has others than the struct."""

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
            if option.name in defaults:
                option = replace(option, default=defaults[option.name])
            variable = PEER_VARIABLES.get(option.name) if "connect" in struct.__struct_fields__ else None
            name = config.prefixed(option, prefix)
            names = (also[option.name],) if option.name in also else ()
            command = click_option(option, name, section_of(option.name), variable, *names)(command)
        return command

    return decorate


def settings_from(struct: type[config.S], file: config.Values, flags: Mapping[str, object]) -> config.S:
    """An actor's settings: what the file says, then what the command line says."""
    return config.build(struct, file, config.given(flags, struct))


def name_target(flags: dict[str, Any], model: str) -> None:
    """Take a positional MODEL for the value of --target."""
    if model and flags.get("target"):
        raise click.UsageError(f"the model is named twice: {model}, and --target {flags['target']}")
    if model:
        flags["target"] = model


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


class Place(Settings, frozen=True, kw_only=True):
    """A client's address and keys. Environment variables may hold them."""

    connect: Annotated[str, Meta(description="the verifier's address; empty: this user's default")] = ""
    key: Annotated[str, Meta(description="your CURVE secret key file")] = ""
    server_key: Annotated[str, Meta(description="the verifier's CURVE public key file")] = ""


place_options = _as_one(
    "place", lambda **said: settings_from(Place, {}, said), Place.__struct_fields__, struct_options(Place)
)


def make_pair(**said: str | None) -> Wanted:
    """A target and its draft, where a command runs both by itself; without a drafter drafts are retrieved."""
    return read_wanted("", said)


# What ``--help`` says of a pair where ``--help-all`` says more
BRIEF_PAIR = {
    "target": "",
    "draft": f"draft model or head: a directory, hub id or GGUF file; pld and sam copy from the text; none: no "
    f"draft model  [{FITTING}]",
    "device": "device of the target: cpu, cuda, cuda:1  [auto]",
    "dtype": "float32, bfloat16, float16, or int8 on a CPU  [auto]",
}

PAIR = ("target", "draft", "draft_device", "tokenizer", "device", "dtype")

pair_options = _as_one(
    "pair",
    make_pair,
    PAIR,
    struct_options(VerifierSettings, only=("target",)),
    struct_options(DrafterSettings, only=("draft",), defaults={"draft": FITTING}),
    struct_options(VerifierSettings, only=("tokenizer", "device", "dtype")),
    struct_options(DrafterSettings, prefix="draft_", only=("device",)),
)


def given_flags(names: Container[str]) -> list[str]:
    """The flags of the command line with these names and their values, as words of a command."""
    context = click.get_current_context()
    given = (
        (one.opts[0], context.params[one.name])
        for one in context.command.params
        if one.name in names and context.get_parameter_source(one.name) is ParameterSource.COMMANDLINE
    )
    return [word for flag, value in given for word in (flag, str(value))]


def pair_is_named() -> bool:
    """Whether the command line names a target or a draft."""
    source = click.get_current_context().get_parameter_source
    return ParameterSource.COMMANDLINE in (source("target"), source("draft"))


class SpeculationOptions(Settings, frozen=True, kw_only=True):
    """A request's way to draft."""

    method: Annotated[Method, Meta(description="how to draft and verify")] = "the verifier's default"  # type: ignore[assignment]
    num_speculative_tokens: Annotated[int, Meta(description="draft length gamma; 0 lets it adapt", ge=0)] = 0
    sequences: Annotated[int, Meta(description="number of draft sequences; 0 lets it adapt", ge=0)] = 0


SCORED = [name for name in Sampling.__struct_fields__ if name != "skip_special_tokens"]  # a flag could not say no
REQUESTED = [name for name in SCORED if name != "logprobs"]  # `generate --json` alone has a place for them


def _request(**values: object) -> dict[str, Any]:
    return {"seed": 0, **config.given(values, Sampling), **config.given(values, SpeculationOptions)}


def _request_options(sampling: Sequence[str]) -> Callable[[F], F]:
    return _as_one(
        "request",
        _request,
        (*sampling, *SpeculationOptions.__struct_fields__),
        struct_options(Sampling, section=SAMPLING, only=sampling),
        struct_options(SpeculationOptions, section=SPECULATION),
    )


# What ``--help`` says of a request's options where ``--help-all`` shows all
BRIEF_REQUEST = dict.fromkeys(("temperature", "max_tokens", "seed", "stop", "method", "color"), "")

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
