from pathlib import Path

import pytest

from spaniel.cli.commands import QUICKSTART
from spaniel.cli.common import parse_overrides
from spaniel.config import Recipe, load_recipe, recipe_json, settings
from spaniel.errors import ConfigError

ROOT = Path(__file__).parents[1]
RECIPES = [*sorted(ROOT.glob("recipes/*/*.toml")), QUICKSTART]


def recipe_file(tmp_path, text):
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_every_shipped_recipe_parses(path):
    assert load_recipe(path).name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "x"\n[rl]\ngroupsize = 4', r"rl.groupsize is not a setting; did you mean group_"),
        ('name = "x"\n[sft]\nlearning_rate = 1.0', r"did you mean .*optimizer.learning_rate"),
        ('name = "x"\n[rl]\nsteps = "many"', r"rl.steps: .*got 'many'"),
        ('name = "x"\n[rl]\nclip_low = 0.2\nclip_high = 0.1', "clip_high must be >= clip_low"),
        ("seed = 1", "name must be set"),
        ('name = "x"\n[rl', "not a TOML file"),
        ('name = "x"\n[corpus.source]\ntype = "wiki"', "corpus.source"),
    ],
)
def test_a_mistake_in_a_recipe_is_one_clear_line(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_recipe(recipe_file(tmp_path, text))
    assert "\n" not in str(caught.value)
    assert "recipe.toml" in str(caught.value)


def test_a_missing_recipe_is_named():
    with pytest.raises(ConfigError, match=r"nowhere\.toml: no such recipe"):
        load_recipe(Path("nowhere.toml"))


def test_overrides_win_over_the_file_and_defaults(tmp_path):
    path = recipe_file(tmp_path, 'name = "x"\n[rl]\nsteps = 3')
    overrides = {"rl.steps": "5", "rl.optimizer.learning_rate": "5e-7", "policy.model": "some/name"}
    recipe = load_recipe(path, overrides)
    assert recipe.rl.steps == 5
    assert recipe.rl.optimizer.learning_rate == 5e-7
    assert recipe.policy.model == "some/name"
    assert recipe.rl.group_size == 8


def test_an_unknown_override_is_refused_with_a_suggestion(tmp_path):
    path = recipe_file(tmp_path, 'name = "x"')
    with pytest.raises(ConfigError, match=r"rl\.setps is not a setting; did you mean steps"):
        load_recipe(path, {"rl.setps": "5"})


def test_override_arguments():
    arguments = ["--rl.steps", "5", "--seed=1", "--policy.max-live-episodes", "8"]
    assert parse_overrides(arguments) == {
        "rl.steps": "5",
        "seed": "1",
        "policy.max_live_episodes": "8",
    }


@pytest.mark.parametrize("arguments", [["rl.steps", "5"], ["--rl.steps"], ["--"]])
def test_stray_arguments_are_refused(arguments):
    with pytest.raises(ConfigError):
        parse_overrides(arguments)


def test_the_resolved_recipe_loads_again_as_itself():
    import json

    recipe = load_recipe(QUICKSTART)
    assert Recipe.model_validate(json.loads(recipe_json(recipe))) == recipe


def test_every_setting_says_what_it_does():
    undocumented = {name for name, doc in settings() if not doc}
    assert {name for name in undocumented if not name.endswith(".type")} == set()
