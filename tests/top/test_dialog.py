"""Keys become orders only once they are confirmed."""

import pytest

from duoactor.top.dialog import Dialog, Order, keys_in

NAMES = ["a", "b", "c"]


def press(*keys: str, names=NAMES) -> tuple[Dialog, list[Order]]:
    dialog = Dialog()
    return dialog, [order for key in keys if (order := dialog.press(key, names)) is not None]


@pytest.mark.parametrize(
    ("keys", "order"),
    [
        (("s", "enter", "enter", "y"), Order("swap", "a", "b")),
        (("s", "down", "enter", "down", "enter", "y"), Order("swap", "b", "c")),
        (("s", "up", "enter", "2", "enter", "y"), Order("swap", "c", "b")),
        (("d", "3", "enter", "y"), Order("drain", "c")),
        (("d", "9", "enter", "y"), Order("drain", "a")),
    ],
)
def test_a_confirmed_choice_is_an_order(keys, order):
    dialog, orders = press(*keys)
    assert orders == [order] and not dialog.step


@pytest.mark.parametrize("keys", [("d", "enter", "n"), ("d", "enter", "x"), ("d", "escape"), ("s", "enter", "q")])
def test_whatever_is_not_confirmed_does_nothing(keys):
    dialog, orders = press(*keys)
    assert orders == [] and not dialog.step
    assert dialog.press("y", NAMES) is None


def test_what_is_asked_is_said_with_names():
    dialog, _ = press("s", "enter", "enter")
    assert dialog.question == "Move every stream from a to b? y / n"
    dialog, _ = press("d", "enter")
    assert "a" in dialog.question and "service" in dialog.question


def test_without_drafters_there_is_nothing_to_choose():
    assert "no drafter" in press("d", names=[])[0].message
    assert "two drafters" in press("s", names=["a"])[0].message
    assert not press("s", names=["a"])[0].step


def test_drafters_that_leave_while_one_chooses_are_not_chosen():
    dialog, _ = press("d", "3")
    assert dialog.press("enter", ["a", "b"]) is None
    assert dialog.press("y", ["a", "b"]) == Order("drain", "a")
    dialog, _ = press("d")
    dialog.press("down", [])
    assert not dialog.step
    dialog, _ = press("s")
    dialog.press("enter", ["a"])
    assert not dialog.step


def test_a_message_stands_until_another_takes_its_place():
    dialog, _ = press("d", names=[])
    dialog.forget("something else")
    assert dialog.message
    dialog.forget(dialog.message)
    assert not dialog.message


def test_keys_of_a_terminal_have_names():
    assert keys_in(b"\x1b[A\x1bOBs\r\x1b[6~Q") == ["up", "down", "s", "enter", "page down", "q"]
    assert keys_in(b"\x1b") == ["escape"]
    assert keys_in(b"\xff\x1b[") == ["�", "escape", "["]
