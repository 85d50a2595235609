"""duo.toml, the layers of settings, and the generated reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.settings import DrafterSettings, LearnerSettings, VerifierSettings
from duoactor import config
from duoactor.config_reference import reference
from duoactor.launch.deployment import deploy, flags
from duoactor.launch.wanted import Wanted
from protocols.errors import ConfigError, ModelError

ROOT = Path(__file__).parents[2]


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "duo.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_reference_in_docs_is_up_to_date():
    assert (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8") == reference(), (
        "run: python -m duoactor.config_reference > docs/configuration.md"
    )


def test_the_reference_shows_defaults_and_bounds_as_a_duo_toml_has_them():
    text = reference()
    assert "| `learn_salted` | `--learn-salted` | `false` |" in text
    assert "integer from 0 to 1073741824" in text
    assert "\n    " not in text  # a docstring's indentation would make code of it


def test_every_option_has_a_description():
    for struct in config.SECTIONS.values():
        assert all(option.description for option in config.options(struct))


def test_a_flag_wins_over_the_file_and_the_file_over_the_default(tmp_path: Path):
    file = config.read(write(tmp_path, '[verifier]\nthreads = 3\ndevice = "cuda"\n'))
    settings = config.build(VerifierSettings, file.verifier, {"threads": 5})
    assert (settings.threads, settings.device, settings.dtype) == (5, "cuda", "auto")


def test_several_drafters_are_chosen_by_their_actor_id(tmp_path: Path):
    text = '[[drafter]]\nactor_id = "a"\nthreads = 1\n[[drafter]]\nactor_id = "b"\nthreads = 2\n'
    file = config.read(write(tmp_path, text))
    assert file.drafter("b") == {"actor_id": "b", "threads": 2}
    with pytest.raises(ConfigError, match="choose one with --actor-id: a, b"):
        file.drafter()


def test_several_models_have_a_table_each_and_what_is_wrong_in_one_is_named(tmp_path: Path):
    text = '[verifier]\nthreads = 2\n[models.a]\ntarget = "x"\ndraft = "y"\n[models.b]\ntarget = "z"\n'
    models = config.read(write(tmp_path, text)).models
    assert models == {"a": {"target": "x", "draft": "y"}, "b": {"target": "z"}}
    for wrong, said in (
        ("[models.a]\ntargt = 1\n", r"\[models.a\] has no key targt; did you mean target"),
        ("models = 1\n", "models.NAME"),
    ):
        with pytest.raises(ConfigError, match=said):
            config.read(write(tmp_path, wrong))


def test_one_drafter_needs_no_name(tmp_path: Path):
    assert config.read(write(tmp_path, "[drafter]\nthreads = 2\n")).drafter() == {"threads": 2}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[verifier]\ntraget = "x"\n', r"duo.toml: \[verifier\] has no key traget; did you mean target\?"),
        ("[verifier]\nzzz = 1\n", r"duo.toml: \[verifier\] has no key zzz; it can be one of key, target"),
        ("[verifyer]\n", r"duo.toml: there is no section \[verifyer\]; did you mean verifier\?"),
        ('[drafter]\nthreads = "two"\n', r"duo.toml: \[drafter\] threads: expected int, got str"),
        ("[drafter]\nthreads = 0\n", r"duo.toml: \[drafter\] threads: expected int >= 1, got 0"),
        ('[verifier]\nmethod = "fast"\n', r"duo.toml: \[verifier\] method: expected one of auto, .*, got 'fast'"),
        ("verifier = 3\n", r"duo.toml: verifier must be a section; write \[verifier\] above its keys"),
        ("[[verifier]]\n[[verifier]]\n", r"duo.toml: there can be only one \[verifier\]"),
        ("[verifier\n", r"duo.toml is not valid TOML: .*line 1"),
        ('[verifier]\ntarget = "a"\ntarget = "b"\n', "duo.toml: target stands a second time in line 3: keep one"),
        ("[gateway]\napi_key = []\napi_key = [\n1\n]\n", "duo.toml: api_key stands a second time in line 3: keep one"),
        ('[verifier]\ntarget = "a"\ntarget = "b"', "duo.toml: target stands a second time in line 3: keep one"),
    ],
)
def test_a_mistake_in_the_file_is_named_in_one_sentence(tmp_path: Path, text: str, sentence: str):
    with pytest.raises(ConfigError, match=sentence) as caught:
        config.read(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_sentence():
    with pytest.raises(ConfigError, match=r"nowhere\.toml cannot be read \(No such file or directory\)"):
        config.read("nowhere.toml")


def test_the_bundled_pair_is_found():
    for kind in ("target", "draft"):
        assert (Path(config.resolve_model("bundled", kind)) / "config.json").is_file()


def test_a_hub_id_stays_and_a_path_to_nothing_or_to_no_model_is_refused(tmp_path: Path):
    assert config.resolve_model("meta-llama/Llama-3.1-8B", "target") == "meta-llama/Llama-3.1-8B"
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        config.resolve_model(str(tmp_path), "draft")
    for name in ("./nowhere", "/nowhere", "~nobody-of-that-name/model", "models/of/mine", "~no\0body/m", "no\0body"):
        with pytest.raises(ModelError, match="does not exist: give --target"):
            config.resolve_model(name, "target")


def test_a_tokenizer_is_a_path_or_a_hub_id_and_a_path_to_nothing_is_refused(tmp_path: Path):
    for name in ("", str(tmp_path), "google/gemma-3-1b-it"):
        assert config.resolve_tokenizer(name) == name
    for name in ("./nowhere", "/nowhere", "models/of/mine"):
        with pytest.raises(ModelError, match="does not exist: give --tokenizer"):
            config.resolve_tokenizer(name)


def test_a_target_whose_tokenizer_is_named_needs_none_of_its_own(tmp_path: Path):
    for file in Path(config.resolve_model("bundled", "target")).iterdir():
        if not file.name.startswith("tokenizer"):
            (tmp_path / file.name).symlink_to(file)
    with pytest.raises(ModelError, match="has no tokenizer that can be loaded"):
        config.resolve_model(str(tmp_path), "target")
    assert config.resolve_model(str(tmp_path), "target", tokenizer="bundled") == str(tmp_path)


def test_a_model_that_is_not_there_is_asked_for_by_the_name_it_was_given_with():
    for settings, flag in (
        (VerifierSettings(bind=HERE, inline_draft="/nowhere"), "--inline-draft"),
        (VerifierSettings(bind=HERE, target="/nowhere"), "--target"),
    ):
        with pytest.raises(ModelError, match=f"does not exist: give {flag} a model"):
            made(settings, DrafterSettings())
    with pytest.raises(ModelError, match="does not exist: give --draft a model"):
        made(VerifierSettings(bind=HERE), DrafterSettings(draft="/nowhere"))


def test_only_what_differs_from_the_default_becomes_a_flag():
    settings = DrafterSettings(draft="-odd", threads=3, connect="tcp://h:1")
    assert sorted(flags(settings)) == ["--connect=tcp://h:1", "--draft=-odd", "--threads=3"]
    assert flags(DrafterSettings()) == []


# --- deployment


HERE = "ipc:///tmp/d/v.sock"


def made(verifier: VerifierSettings, *drafters: DrafterSettings, cpus: tuple[int, ...] = (0, 1)):
    return deploy(Wanted(verifier, drafters), cpus=cpus)


def test_all_actors_of_a_deployment_meet_at_one_address():
    deployment = made(VerifierSettings(bind="tcp://0.0.0.0:7601"), DrafterSettings())
    assert deployment.verifier.bind == "tcp://0.0.0.0:7601"
    assert deployment.address == deployment.drafters[0].connect == "tcp://127.0.0.1:7601"
    assert made(VerifierSettings(bind=HERE)).address == HERE


def test_an_open_port_is_refused_where_others_must_know_it():
    with pytest.raises(ConfigError, match="give --bind a port"):
        made(VerifierSettings(bind="tcp://127.0.0.1:0"))


def test_cores_go_to_those_who_were_given_none():
    deployment = made(VerifierSettings(bind=HERE), DrafterSettings(), DrafterSettings(cpus="7"), cpus=(0, 1, 2, 3))
    assert [deployment.verifier.cpus, *(one.cpus for one in deployment.drafters)] == ["0,1", "3", "7"]


def test_drafters_leave_their_cpus_to_the_target_while_they_rest_unless_somebody_chose_its_cpus():
    assert made(VerifierSettings(bind=HERE), DrafterSettings()).verifier.spare_cpus == "1"
    for chosen in (VerifierSettings(bind=HERE, threads=1), VerifierSettings(bind=HERE, cpus="0")):
        assert made(chosen, DrafterSettings()).verifier.spare_cpus == ""
    taught = deploy(Wanted(VerifierSettings(bind=HERE), (DrafterSettings(),), learner=LearnerSettings()), cpus=(0, 1))
    assert taught.verifier.spare_cpus == "1", "a learner gives way"


def test_a_target_without_drafters_has_all_cpus():
    assert made(VerifierSettings(bind=HERE)).verifier.threads == 2


def test_drafters_get_names_and_two_alike_are_refused():
    deployment = made(VerifierSettings(bind=HERE), DrafterSettings(), DrafterSettings())
    assert [plan.name for plan in deployment.plans] == ["verifier", "drafter-1", "drafter-2", "controller"]
    with pytest.raises(ConfigError, match="two drafters have the actor_id a"):
        made(VerifierSettings(bind=HERE), DrafterSettings(actor_id="a"), DrafterSettings(actor_id="a"))


def test_actors_beside_a_verifier_with_a_key_use_that_key():
    deployment = made(VerifierSettings(bind="tcp://0.0.0.0:1", key="k/v.key"), DrafterSettings())
    assert (deployment.drafters[0].key, deployment.controller.server_key) == ("k/v.key", "k/v.pub")


def test_a_file_that_an_editor_began_with_a_mark_of_its_encoding_is_read(tmp_path: Path):
    file = tmp_path / "duo.toml"
    file.write_text('[verifier]\ntarget = "x"\n', encoding="utf-8-sig")
    assert config.read(file).verifier == {"target": "x"}
