"""The table of a loss by position."""

from plimsoll.recipes.longcontext.tables import positions_table


def test_the_table_has_every_stretch_its_loss_and_the_change():
    assert positions_table({"0 to 63": 4.0, "64 to 127": 3.0, "128 to 255": 2.9}).splitlines() == [
        "  loss by position in the window",
        "     positions    nats   change",
        "       0 to 63  4.0000        -",
        "     64 to 127  3.0000  -1.0000",
        "    128 to 255  2.9000  -0.1000",
    ]
