from datetime import UTC, datetime

from plimsoll.report.metrics import LogFile


def noon():
    return datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC)


def test_a_message_of_several_lines_starts_with_a_time_once(tmp_path):
    log = LogFile(tmp_path / "log.txt", now=noon)
    log.write("plan\n  micro-batch 4\n")
    assert (tmp_path / "log.txt").read_text() == ("2026-03-01 12:00:05Z  plan\n                        micro-batch 4\n")


def test_a_resumed_run_appends(tmp_path):
    for text in ("first", "second"):
        log = LogFile(tmp_path / "log.txt", now=noon)
        log.write(text)
        log.close()
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert [line.split()[-1] for line in lines] == ["first", "second"]
