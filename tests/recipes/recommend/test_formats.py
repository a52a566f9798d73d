"""Every form is told by its content, or asked for; a bad line is said with its number."""

import pytest

from plimsoll.errors import DataError, RecipeError
from plimsoll.recipes.recommend.formats import form_of, rows
from plimsoll.recipes.recommend.prepare_options import RecommendSet

MOVIELENS = "userId,movieId,rating,timestamp\n7,31,2.5,1260759144\n7,32,4.0,1260759100\n"
MINE = {"user_column": "who", "item_column": "what"}

FILES = {
    "movielens-csv": (MOVIELENS, {}, [(2, "7", "31", 1260759144.0), (3, "7", "32", 1260759100.0)]),
    "movielens-dat": (
        "1::31::4::978300760\n2::3::5::978302109\n",
        {},
        [(1, "1", "31", 978300760.0), (2, "2", "3", 978302109.0)],
    ),
    "pairs": ("1 31\n\n1\t32\n2 31\n", {}, [(1, "1", "31", 0.0), (3, "1", "32", 0.0), (4, "2", "31", 0.0)]),
    "sequences": (
        "1 31 32 31\n2 5\n",
        {},
        [(1, "1", "31", 0.0), (1, "1", "32", 0.0), (1, "1", "31", 0.0), (2, "2", "5", 0.0)],
    ),
    "csv": ('what;who\n"a;b";x\n', MINE, [(2, "x", "a;b", 0.0)]),
    "csv with dates": (
        "who\twhat\twhen\nx\ta\t2024-01-31 00:00\nx\tb\t2024-01-31T01:00+01:00\n",
        MINE | {"time_column": "when"},
        [(2, "x", "a", 1706659200.0), (3, "x", "b", 1706659200.0)],
    ),
    "csv with times": ("who,what,when\nx,c,12.5\n", MINE | {"time_column": "when"}, [(2, "x", "c", 12.5)]),
}


@pytest.mark.parametrize("case", FILES)
def test_a_form_is_told_by_its_content_and_read(case, tmp_path):
    text, options, expected = FILES[case]
    for number, mark in enumerate(("", "\ufeff") if "csv" in case else ("",)):  # which some programs put first
        path = tmp_path / f"file-{number}"
        path.write_text(mark + text, "utf-8")
        made = RecommendSet(interactions=str(path), **options)
        form = form_of(made, path)
        assert form == case.partition(" ")[0]
        assert [row[:4] for row in rows(made, path, form)] == expected


def test_ratings_are_read_where_they_are_asked_for(tmp_path):
    (tmp_path / "r.csv").write_text(MOVIELENS)
    made = RecommendSet(interactions="r.csv", min_rating=3)
    assert [row.rating for row in rows(made, tmp_path / "r.csv", "movielens-csv")] == [2.5, 4.0]


UNCLEAR = {
    "empty": ("\n \n", "is empty: it has no interactions"),
    "another csv": ("who,what,when\nx,a,1\n", "begins with 'who,what,when'.*--user-column and --item-column"),
    "four columns": ("1 31 5 100\n1 32 4 99\n", "has no format .*'1 31 5 100'.*--format movielens-csv, .*csv"),
    "one column": ("1\n2\n", "has no form"),
}


@pytest.mark.parametrize("case", UNCLEAR)
def test_where_the_content_does_not_tell_the_choices_are_said(case, tmp_path):
    text, said = UNCLEAR[case]
    (tmp_path / "file").write_text(text)
    with pytest.raises(DataError, match=said):
        form_of(RecommendSet(interactions="file"), tmp_path / "file")


TIMED = MINE | {"time_column": "when"}
HEAD = "who,what,when\n"
BAD = {
    "no such column": (HEAD, {"user_column": "user", "item_column": "what"}, "no column 'user'; .* who, what, when"),
    "no time column": ("userId,movieId\n1,2\n", {"format": "movielens-csv"}, "no column 'timestamp'"),
    "a time in words": (HEAD + "x,a,1\nx,b,soon\n", TIMED, "line 3, has the time 'soon'"),
    "a time that is NaN": (HEAD + "x,a,nan\n", TIMED, "line 2, has the time 'nan'"),
    "no item": (HEAD + "x,a,1\nx, ,1\n", TIMED, "line 3, has an empty user or item"),
    "a short row": (HEAD + "x,a,1\nx,b\n", TIMED, "line 3, has 2 columns, and the header 3"),
    "a rating in words": (MOVIELENS + "7,33,good,1\n", {"min_rating": 1}, "line 4, has the rating 'good'"),
    "a dat of three": ("1::2::3\n1::2\n", {"format": "movielens-dat"}, "line 1, has 3 fields"),
    "pairs of three": ("1 2\n1 2 3\n", {"format": "pairs"}, "line 2, has 3 fields"),
    "ratings of pairs": ("1 2\n", {"min_rating": 3}, "--min-rating 3: .* --format pairs"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_line_is_said_with_its_number(case, tmp_path):
    text, options, said = BAD[case]
    (tmp_path / "file").write_text(text)
    made = RecommendSet(interactions="file", **options)
    with pytest.raises(DataError, match=said):
        list(rows(made, tmp_path / "file", form_of(made, tmp_path / "file")))


def test_what_is_no_text_and_what_is_not_there_are_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"who,what\n\xff\xfe,1\n")
    made = RecommendSet(interactions="file", **MINE)
    with pytest.raises(DataError, match="is no text in UTF-8"):
        list(rows(made, tmp_path / "file", "csv"))
    with pytest.raises(DataError, match="absent cannot be read: No such file"):
        form_of(RecommendSet(interactions="x"), tmp_path / "absent")


OPTIONS = {
    "one column": ({"user_column": "who"}, "--user-column and --item-column"),
    "columns of pairs": (MINE | {"format": "pairs"}, "--format csv"),
    "a column for nothing": (MINE | {"rating_column": "stars"}, "--min-rating and --rating-column"),
    "a rating of nothing": (MINE | {"min_rating": 3}, "--min-rating and --rating-column"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options_that_contradict_one_another_are_refused(case):
    options, said = OPTIONS[case]
    with pytest.raises(RecipeError, match=said):
        RecommendSet(interactions="x", **options)
