"""Training scripts are run as they are, watched, and ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from raysim.errors import CalibrationError  # noqa: E402
from raysim.measure import scripts  # noqa: E402
from raysim.measure.script_watch import LEAST, STEPS  # noqa: E402
from raysim.measure.session import Budget, Session  # noqa: E402
from raysim.measure.table import read_rows  # noqa: E402

ENDLESS = """
import sys, torch
net = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
next(iter(torch.utils.data.DataLoader([torch.ones(4)], num_workers=1)))
for _ in range(int(sys.argv[1])):
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
if sys.argv[1] == "1":
    raise RuntimeError("as scripts do")
"""


def session(folder: Path, cases: list[dict[str, str]] | None) -> Session:
    path = None
    if cases is not None:
        path = folder / "cases.json"
        path.write_text(json.dumps(cases))
        (folder / "endless.py").write_text(ENDLESS)
    return Session(folder=folder / "found", budget=Budget(120), command="", cases=path)


def case(name: str, steps: int) -> dict[str, str]:
    return {"name": name, "command": f"endless.py {steps}", "role": "validation"}


def test_enough_steps_are_timed_and_what_fails_says_why(tmp_path: Path) -> None:
    asked = session(tmp_path, [case("long", 10**9), case("short", 12), case("fails", 1)])
    scripts.measure(asked)
    rows = {
        (row.parameters["case"], row.parameters["quantity"]): row
        for row in read_rows(tmp_path / "found" / "script_steps_validation.csv")
    }
    assert rows["long", "step"].repetitions == STEPS
    assert LEAST <= rows["short", "step"].repetitions < STEPS
    assert rows["long", "step"].value > 0
    (left,) = asked.left_out
    assert "as scripts do" in left
    again = session(tmp_path, [case("long", 10**9)])
    scripts.measure(again)
    assert (again.measured, again.kept) == (0, 1)


@pytest.mark.parametrize(
    ("cases", "said"),
    [(None, "--cases FILE says which"), ([{"name": "a"}], "a lacks command, role")],
)
def test_cases_that_cannot_be_read_are_named(
    tmp_path: Path, cases: list[dict[str, str]] | None, said: str
) -> None:
    with pytest.raises(CalibrationError, match=said):
        scripts.measure(session(tmp_path, cases))
