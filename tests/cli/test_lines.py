"""An actor's log says equal lines once a minute, with their number."""

import io
import logging

import pytest

from duoactor.cli.lines import EVERY_S, MOST_LINES, Lines


class Log:
    def __init__(self):
        self.now, self.stream = 100.0, io.StringIO()
        self.handler = Lines(self.stream, lambda: self.now)

    def say(self, words, *args, level=logging.WARNING, name="duoactor", exc_info=None):
        self.handler.handle(logging.LogRecord(name, level, "", 1, words, args, exc_info))

    @property
    def lines(self):
        return self.stream.getvalue().splitlines()


@pytest.fixture
def log():
    made = Log()
    yield made
    made.handler.close()


def test_a_long_line_is_folded_on_a_terminal_and_whole_in_a_pipe(log, monkeypatch):
    words = "ready at ipc:///run/user/1000/duoactor/verifier.ipc: " + "; ".join(["2.1 ms for a token"] * 9)
    log.say(words)
    assert log.lines == [words]
    monkeypatch.setattr(log.stream, "isatty", lambda: True)
    log.say("%s", f"{words}.")
    shown = log.lines[1:]
    assert len(shown) > 2 and max(map(len, shown)) <= 80
    assert " ".join(line.strip() for line in shown) == f"{words}."


def test_a_line_that_comes_300_times_is_said_once_and_counted_when_its_minute_is_over(log):
    for _ in range(300):
        log.say("client %d has left", 7)
        log.now += EVERY_S / 1000
    assert log.lines == ["client 7 has left"]
    log.now += EVERY_S
    log.handler.tell()
    assert log.lines[1:] == ["client 7 has left (and 299 more within 60 s)"]


def test_a_line_of_the_next_minute_is_said_after_the_count_of_the_last(log):
    for _ in range(3):
        log.say("full")
    log.now += EVERY_S
    log.say("full")
    assert log.lines == ["full", "full (and 2 more within 60 s)", "full"]


def test_different_lines_names_and_levels_are_all_said(log):
    for words, level, name in (("a", 30, "x"), ("b", 30, "x"), ("a", 40, "x"), ("a", 30, "y")):
        log.say(words, level=level, name=name)
    assert log.lines == ["a", "b", "a", "a"]


def test_a_traceback_is_written_once(log):
    for _ in range(3):
        try:
            raise ValueError("no such thing")
        except ValueError as error:
            log.say("broken", exc_info=(ValueError, error, error.__traceback__))
    assert sum("Traceback" in line for line in log.lines) == 1


def test_what_was_not_counted_yet_is_counted_at_the_end(log):
    for _ in range(3):
        log.say("full")
    log.handler.close()
    assert log.lines == ["full", "full (and 2 more within 60 s)"]


def test_ever_new_lines_are_written_and_not_remembered(log):
    for number in range(2 * MOST_LINES):
        log.say("request %d", number)
    assert len(log.lines) == 2 * MOST_LINES and len(log.handler._said) == MOST_LINES


def test_the_count_comes_also_if_nothing_else_is_said(log, monkeypatch):
    started = []
    monkeypatch.setattr("threading.Timer.start", lambda timer: started.append(timer))
    for _ in range(3):
        log.say("full")
    log.now += EVERY_S
    (timer,) = started
    timer.function()
    assert log.lines == ["full", "full (and 2 more within 60 s)"]
