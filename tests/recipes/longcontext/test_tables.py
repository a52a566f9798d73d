"""The table and the picture of a loss by position."""

from plimsoll.recipes.longcontext.positions import BY_POSITION
from plimsoll.recipes.longcontext.tables import evaluation_picture, positions_table

LOSSES = {"0 to 63": 4.0, "64 to 127": 3.0, "128 to 255": 2.9}


def test_the_table_has_every_stretch_its_loss_and_the_change():
    assert positions_table(LOSSES) == "\n".join(
        [
            "  loss by position in the window",
            "     positions    nats   change",
            "       0 to 63  4.0000        -  " + "#" * 40,
            "     64 to 127  3.0000  -1.0000  " + "#" * 30,
            "    128 to 255  2.9000  -0.1000  " + "#" * 29,
        ]
    )


def test_a_loss_of_nothing_has_no_bars():
    assert "#" not in positions_table({"0 to 0": 0.0})


def test_the_picture_is_drawn(tmp_path):
    path = evaluation_picture({"loss": 3.0, BY_POSITION: LOSSES}, tmp_path / "loss.svg")
    drawn = path.read_text()
    assert "<svg" in drawn
    assert "nats per token" in drawn
