"""The controller's budgets that are in force."""

from actors.verifier.state import UNSET, Budgets
from protocols.limits import MAX_BUDGETS
from protocols.messages import Budget, Kind


def kind(number: int) -> Kind:
    return Kind("sps", f"drafter-{number}")


def test_a_budget_said_again_takes_its_own_place():
    budgets = Budgets()
    for number in range(MAX_BUDGETS):
        budgets.file(Budget(number, 5000, kind=kind(number)), now=0.0)
    budgets.file(Budget(100, 5000, kind=kind(1)), now=1.0)
    assert len(budgets.said(1.0)) == MAX_BUDGETS and budgets.of(kind(0), 1.0) is not UNSET
    budgets.file(Budget(101, 5000, kind=kind(MAX_BUDGETS)), now=1.0)
    assert budgets.of(kind(0), 1.0) is UNSET and budgets.of(kind(1), 1.0).revision == 100
    budgets.file(Budget(102, 5000, kind=kind(MAX_BUDGETS + 1)), now=1.0)
    assert budgets.of(kind(2), 1.0) is UNSET and budgets.of(kind(1), 1.0) is not UNSET, "the oldest is forgotten"
