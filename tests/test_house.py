"""The program that measures the house: it runs, its structural goals are met, and it would notice if they were not."""

import json

import pytest

from programs import program


@pytest.fixture(scope="module")
def house():
    with program("house") as loaded:
        yield loaded


def test_the_structural_goals_are_met(house, capsys):
    assert house.main(["--json"]) == 0
    counted = json.loads(capsys.readouterr().out)
    assert (counted["circles of imports"], counted["arrows between rooms that are not allowed"]) == (0, 0)
    assert counted["rooms"] == len(house.table_of_rooms().rooms)
    assert counted["lines"] > 10_000


def test_every_room_says_what_it_holds(house):
    table = house.table_of_rooms()
    assert [name for name in [*table.rooms, *table.loose] if not house.first_line(name).strip()] == []
    assert sorted(room for floor in house.floors(table) for room in floor) == sorted(table.rooms)


def test_a_circle_and_an_arrow_up_are_named(house):
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert house.circles(graph) == [["a", "b", "c"]]
    modules = house.modules()
    arrows = {"plimsoll.levers.remat": {"plimsoll.cli.main", "plimsoll.types"}}
    assert house.forbidden_arrows(modules, arrows, house.table_of_rooms()) == [
        "plimsoll.levers.remat -> plimsoll.cli.main"
    ]


def test_a_structural_goal_that_is_missed_is_an_error_and_another_is_not(house, monkeypatch, capsys):
    for row, code in (
        (house.Row("circles of imports", 1, 0, structural=True), 1),
        (house.Row("lines", 40_000, 34_000), 0),
    ):
        monkeypatch.setattr(house, "measured", lambda row=row: ([row], ["a <-> b"]))
        assert house.main([]) == code
        assert "missed" in capsys.readouterr().out
