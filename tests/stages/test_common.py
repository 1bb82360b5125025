import pytest

from spaniel.config import Recipe
from spaniel.run import Run
from spaniel.stages.common import open_checkpoints


@pytest.mark.parametrize(("force", "resume", "done"), [(True, False, False), (True, True, True)])
def test_a_training_that_is_made_anew_is_not_done_until_it_ends(tmp_path, force, resume, done):
    run = Run(Recipe(name="x", run_dir=tmp_path), force=force)
    run.stage("rl", settings={}, needs=(), make=lambda: {})
    open_checkpoints(run, "rl", {}, resume=resume)
    assert run.is_done("rl") == done
