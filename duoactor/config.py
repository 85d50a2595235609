"""Options: one description of each, in :mod:`actors.settings`; flags, ``duo.toml`` and the reference come from it."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import inspect

from actors.engines.heads.cached import cached_head, cached_model, same_file, snapshot_of
from actors.engines.heads.kinds import configuration, kind_of, own_layer
from actors.engines.weights.faults import check_checkpoint, check_tokenizer
from actors.settings import (
    AUTO_DRAFT,
    BUNDLED,
    ControllerSettings,
    DrafterSettings,
    LearnerSettings,
    Settings,
    VerifierSettings,
    retrieves,
)
from duoactor.embedded import SMALL, bundled, small
from duoactor.serve.settings import GatewaySettings
from protocols.errors import ConfigError, ModelError

S = TypeVar("S", bound=Settings)
Values = Mapping[str, object]  # option name -> value, for what was given and nothing else

SECTIONS: Mapping[str, type[Settings]] = {
    "verifier": VerifierSettings,
    "drafter": DrafterSettings,
    "controller": ControllerSettings,
    "learner": LearnerSettings,
    "gateway": GatewaySettings,
}


@dataclass(frozen=True, slots=True)
class Option:
    """One field of a settings struct as a flag and a key."""

    name: str
    kind: Literal["text", "integer", "number", "switch", "choice", "token number"]
    default: Any
    description: str = ""
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None
    repeated: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def type_text(self) -> str:
        if self.choices:
            return ", ".join(self.choices)
        if self.at_least is None:
            return self.kind
        return f"{self.kind} from {as_toml(self.at_least)}" + (f" to {as_toml(self.at_most)}" if self.at_most else "")


def options(struct: type[msgspec.Struct]) -> tuple[Option, ...]:
    """The options of a settings struct (or of ``Sampling``): its own in the order of its fields, then the common ones,
    such as keys."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    shared = getattr(struct.__base__, "__struct_fields__", ())
    fields = sorted(info.fields, key=lambda entry: entry.name in shared)
    return tuple(_option(entry) for entry in fields)


def _option(entry: inspect.Field) -> Option:
    kind, description, repeated = entry.type, "", False
    if isinstance(kind, inspect.Metadata):
        description = str((kind.extra_json_schema or {}).get("description", ""))
        kind = kind.type
    if isinstance(kind, inspect.VarTupleType):
        kind, repeated = kind.item_type, True
    common = {"name": entry.name, "default": entry.default, "description": description, "repeated": repeated}
    match kind:
        case inspect.EnumType(cls=cls):
            return Option(kind="choice", choices=tuple(str(member.value) for member in cls), **common)
        case inspect.BoolType():
            return Option(kind="switch", **common)
        case inspect.IntType(ge=ge, le=le):
            return Option(kind="integer", at_least=ge, at_most=le, **common)
        case inspect.FloatType(ge=ge, le=le):
            return Option(kind="number", at_least=ge, at_most=le, **common)
        case inspect.StrType():
            return Option(kind="text", **common)
        case inspect.TupleType(item_types=(inspect.IntType(), inspect.FloatType())):
            return Option(kind="token number", **common)
    raise TypeError(f"no option can be made of the field {entry.name}")


def as_toml(value: object) -> str:
    """A default as TOML writes it; texts, numbers, switches and lists of texts are written as in JSON."""
    return msgspec.json.encode(value).decode()


# --- duo.toml --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class File:
    """The tables of a ``duo.toml``, checked key by key. Several ``[[drafter]]`` tables give several drafters."""

    path: str = ""
    verifier: Values = field(default_factory=dict)
    drafters: tuple[Values, ...] = ()
    controller: Values = field(default_factory=dict)
    learner: Values = field(default_factory=dict)
    gateway: Values = field(default_factory=dict)
    models: Mapping[str, Values] = field(default_factory=dict)  # the verifier's keys and the drafters' draft, by name

    def drafter(self, actor_id: str = "") -> Values:
        """The table for ``duoactor drafter``: the only one, or the one with that ``actor_id``."""
        if len(self.drafters) <= 1:
            return self.drafters[0] if self.drafters else {}
        named = [table for table in self.drafters if actor_id and table.get("actor_id") == actor_id]
        if not named:
            known = ", ".join(str(table.get("actor_id", "(no actor_id)")) for table in self.drafters)
            raise ConfigError(f"{self.path} has several drafters, so choose one with --actor-id: {known}")
        return named[0]


def read(path: str | Path) -> File:
    """A ``duo.toml``; an empty path is an empty file. ConfigError: one sentence that names file, section and key."""
    if not path:
        return File()
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        document = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): give --config the name of a file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8: save it as such") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_twice(str(path), text, str(error)) or f"{path} is not valid TOML: {error}") from None
    models = _models(str(path), document.pop("models", {}))
    for name in document:
        if name not in SECTIONS:
            raise ConfigError(f"{path}: there is no section [{name}]; {_instead(name, SECTIONS)}")
    tables: dict[str, list[Values]] = {}
    for name, struct in SECTIONS.items():
        content = document.get(name, [])
        listed = content if isinstance(content, list) else [content]
        if not all(isinstance(table, dict) for table in listed):
            raise ConfigError(f"{path}: {name} must be a section; write [{name}] above its keys")
        if len(listed) > 1 and name != "drafter":
            raise ConfigError(f"{path}: there can be only one [{name}]")
        tables[name] = [_check(f"{path}: [{name}]", struct, table) for table in listed]
    drafters = tuple(tables.pop("drafter"))
    single = {name: next(iter(listed), {}) for name, listed in tables.items()}
    return File(path=str(path), drafters=drafters, models=models, **single)


def _twice(path: str, text: str, error: str) -> str:
    """A sentence for a key that stands twice, which Python's reader does not name; empty: the error is another."""
    found = re.search(r"Cannot overwrite a value \(at (?:line (\d+)|end)", error)
    before = text.splitlines()[: int(found[1]) if found[1] else None] if found else []  # the value's end
    line = next((at for at in range(len(before), 0, -1) if "=" in before[at - 1]), 0)
    key = before[line - 1].partition("=")[0].strip() if line else ""
    return f"{path}: {key} stands a second time in line {line}: keep one of the two" if key else ""


def _models(path: str, given: object) -> dict[str, Values]:
    """[models.NAME] of a file."""
    if not isinstance(given, dict) or not all(isinstance(table, dict) for table in given.values()):
        raise ConfigError(f"{path}: models must be sections; write [models.NAME] above the keys of each")
    found: dict[str, Values] = {}
    for name, table in given.items():
        where, own = f"{path}: [models.{name}]", dict(table)
        draft = {"draft": _convert(f"{where} draft", own.pop("draft"), str)} if "draft" in own else {}
        found[name] = {**_check(where, VerifierSettings, own), **draft}
    return found


def _check(where: str, struct: type[Settings], table: Mapping[str, object]) -> Values:
    types = {entry.name: entry.type for entry in msgspec.structs.fields(struct)}
    checked: dict[str, object] = {}
    for key, value in table.items():
        if key not in types:
            raise ConfigError(f"{where} has no key {key}; {_instead(key, types)}")
        checked[key] = _convert(f"{where} {key}", value, types[key])
    return checked


def _convert(where: str, value: object, kind: Any) -> object:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        problem = str(error).replace("`", "")
        if isinstance(cls := getattr(kind, "__origin__", kind), type) and issubclass(cls, Enum):
            problem = "Expected one of " + ", ".join(str(member.value) for member in cls)
    if ", got " not in problem:
        problem += f", got {value!r}"
    raise ConfigError(f"{where}: {problem[0].lower()}{problem[1:]}")


def _instead(name: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else "it can be one of " + ", ".join(known)


def check_new(file: str) -> None:
    """ConfigError where a file exists that :func:`write_new` is to write, before what it will hold is measured."""
    if Path(file).exists():
        raise ConfigError(f"{file} exists already: name another file, or remove it first")


def write_new(file: str, text: str) -> None:
    """Write a new file, as a whole or not at all. ConfigError where it exists, or cannot be written."""
    check_new(file)
    try:
        with Path(file).open("x", encoding="utf-8") as out:
            try:
                out.write(text)
                out.flush()
            except OSError:
                Path(file).unlink(missing_ok=True)
                raise
    except FileExistsError:
        raise ConfigError(f"{file} exists already: name another file, or remove it first") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be written ({error.strerror}): name another file") from None


# --- settings --------------------------------------------------------------------------------------------------------


def build(struct: type[S], *layers: Values) -> S:
    """A settings struct from layers of values; a later layer wins (the file, then the flags)."""
    types = {entry.name: entry.type for entry in msgspec.structs.fields(struct)}
    merged = {key: value for layer in layers for key, value in layer.items()}
    flags = {option.name: option.flag for option in options(struct)}
    return struct(**{key: _convert(flags[key], value, types[key]) for key, value in merged.items()})


def prefixed(option: Option, prefix: str) -> str:
    """An option's name with a prefix. With ``draft_`` ``threads`` is ``draft_threads``, but ``draft`` stays
    ``draft``."""
    return option.name if option.name + "_" == prefix else prefix + option.name


def given(
    values: Values, struct: type[msgspec.Struct], *, prefix: str = "", leave_out: Iterable[str] = ()
) -> dict[str, object]:
    """The values of ``struct``'s fields that were given on the command line."""
    found = {o.name: values.get(prefixed(o, prefix)) for o in options(struct) if o.name not in leave_out}
    return {name: value for name, value in found.items() if value not in (None, ()) and value is not False}


def resolve_model(
    name: str, kind: Literal["target", "draft", "inline draft"], given_as: str = "", tokenizer: str = ""
) -> str:
    """``bundled`` becomes the directory of the pair that ships with duoactor, and ``smollm2`` the file of an installed
    package, else SmolLM2-135M-Instruct's hub id. A hub id stays as it is, and so does a draft that is no model
    (``pld``, ``sam``, ``rest:DIR``). ``given_as``: the argument that names it; empty: the flag of its kind.
    ``tokenizer``: where the target's lies; empty: in the checkpoint.

    Raises :class:`protocols.errors.ModelError` for a path to nothing, for a checkpoint that cannot be whole, and for an
    inline draft that is no model.
    """
    given_as = given_as or f"--{kind.replace(' ', '-')}"
    if name == BUNDLED:
        return bundled(kind.removeprefix("inline "))
    if name == SMALL:
        name = small()
    if kind != "target" and name == AUTO_DRAFT:
        return name
    if kind == "inline draft" and retrieves(name):
        raise ModelError(
            f"{name} is no draft model, and method auto looks text up by itself: give {given_as} a model directory, "
            f"a hub id, '{BUNDLED}' or 'none'"
        )
    if kind == "draft" and retrieves(name):
        return name
    if not name:
        raise ModelError(f"no {kind} model is named: give {given_as} a directory, a hub id or '{BUNDLED}'")
    missing = ModelError(f"{name} does not exist: give {given_as} a model directory, a hub id or '{BUNDLED}'")
    if "\0" in name:  # no path may hold it
        raise missing
    path = Path(os.path.expanduser(name))  # leaves ~NAME where there is no such user
    if path.is_dir():
        head = kind != "target" and bool(kind_of(configuration(str(path))))
        check_checkpoint(str(path), head)
        if not tokenizer and not head:  # a head has its target's tokenizer
            check_tokenizer(str(path))
        return str(path)
    if path.suffix == ".gguf" and path.is_file():
        check_checkpoint(str(path))
        return str(path)
    if path.exists():
        raise ModelError(f"{name} is a file: give {given_as} the directory of the model, or a .gguf file")
    if name.startswith(("/", ".", "~")) or name.count("/") > 1 or (path.suffix == ".gguf" and ":" not in name):
        raise missing
    return name


def resolve_tokenizer(name: str) -> str:
    """A path that exists, or a hub id as it is. Raises :class:`protocols.errors.ModelError` for a path to nothing."""
    path = Path(os.path.expanduser(name))
    if not name or path.exists():
        return name and str(path)
    if name.startswith(("/", ".", "~")) or name.count("/") > 1:
        raise ModelError(f"{name} does not exist: give --tokenizer a directory, a hub id or a tokenizer.json")
    return name


def choose_draft(target: str) -> tuple[str, str]:
    """The draft for a target where none is named, and a sentence that says why; "": drafts are retrieved."""
    target = small() if target == SMALL else target
    path = Path(os.path.expanduser(target))
    names = f"{path.stem}-draft", f"{path.stem}-draft.gguf", f"{path.name}-assistant", f"mtp-{path.name}"
    for beside in (path / "draft", *map(path.with_name, names)):
        if target != BUNDLED and (beside.is_file() or (beside / "config.json").is_file()):
            return str(beside), f"by {beside}, which lies beside the target"
    if own_layer(str(snapshot_of(str(path)))):
        return AUTO_DRAFT, "by the target's own layer for more tokens, which its checkpoint holds"
    if target == BUNDLED or same_file(path / "tokenizer.json", Path(bundled("target"), "tokenizer.json")):
        return BUNDLED, "by the bundled draft model, which has the target's tokenizer"
    if head := cached_head(target):
        return AUTO_DRAFT, f"by {head}, a head of such a target in the hub's cache"
    if model := cached_model(target):
        return model, f"by {model}, a smaller model with the target's tokenizer in the hub's cache"
    return "", "copied from earlier text; `duoactor distill` makes a draft model, `--draft` names one"
