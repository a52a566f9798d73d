"""The recipe `control`: the network that its options ask for on a file, and what is refused."""

import h5py
import jax
import pytest

from control_files import write_control
from making import made
from plimsoll.errors import RecipeError
from plimsoll.recipes.control.rows import ControlRows
from plimsoll.types import Compute

STRICT = True


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = write_control(tmp_path_factory.mktemp("control") / "windows.h5", rows=200, window=32)
    with h5py.File(path, "r+") as opened:
        opened.attrs["max_state_dim"] = 12
    return str(path)


def parameters(recipe):
    shapes = jax.eval_shape(recipe.task(Compute()).init, jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def test_the_published_network_is_one_option_away(file):
    assert parameters(made("control", data=file, network="published")) == 208_774
    assert parameters(made("control", data=file, network="published", width=32, heads=2, layers=2)) == 30_086


def test_by_default_it_says_a_gain_for_the_states_that_the_file_names(file):
    task = made("control", data=file).task(Compute())
    assert (task.gain_states, task.model.patch, task.model.error_floor) == (12, 4, 0.1)
    # enter: 3 x 4 x 12 + 7 + 24 features instead of 19; leave: 6 x 12 outputs instead of 6
    assert parameters(made("control", data=file)) == 208_774 + (175 - 19) * 64 + (72 - 6) * 65


def test_a_window_that_is_no_whole_number_of_tokens_is_refused(file):
    with pytest.raises(RecipeError, match=r"32 states .* --patch 5: .* 1, 2, 4, 8"):
        made("control", data=file, patch=5).task(Compute())
    made("control", data=file, patch=5, network="published").task(Compute())


@pytest.mark.parametrize("floor", [-0.1, float("inf")])
def test_an_error_floor_is_a_number_from_zero_on(floor):
    with pytest.raises(RecipeError, match=f"--error-floor must be 0 or more and finite, got {floor}"):
        made("control", error_floor=floor)


def test_all_features_are_states_where_the_file_does_not_say(tmp_path):
    path = write_control(tmp_path / "windows.h5", rows=200)
    assert ControlRows(path, split="variant").states == 19
