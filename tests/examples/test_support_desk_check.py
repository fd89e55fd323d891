"""The support desk's verifier against planted end states, each wrong in one way."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.examples.desk_on_host import AMOUNT, EXAMPLE, OTHER, RIGHT, TICKET, DeskOnHost


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[DeskOnHost]:
    with DeskOnHost(tmp_path) as running:
        yield running


def do_nothing(desk: DeskOnHost) -> None:
    pass


def refund_the_other_order(desk: DeskOnHost) -> None:
    desk.settle(order=OTHER, amount=6390)


def pay_the_gift_wrap_too(desk: DeskOnHost) -> None:
    desk.settle(amount=6440)


def leave_the_shipping_out(desk: DeskOnHost) -> None:
    desk.settle(amount=5400)


def refund_both_to_be_safe(desk: DeskOnHost) -> None:
    desk.refund(OTHER, 6390)
    desk.settle()


def pay_in_two_parts(desk: DeskOnHost) -> None:
    desk.refund(RIGHT, 5400)
    desk.settle(amount=690)


def send_a_replacement(desk: DeskOnHost) -> None:
    desk.replace(RIGHT)
    desk.write_up()
    desk.report(action="replacement", amount_cents=0)


def refund_and_replace(desk: DeskOnHost) -> None:
    desk.settle()
    desk.replace(RIGHT)


def leave_the_ticket_open(desk: DeskOnHost) -> None:
    desk.settle()
    desk.call("PATCH", f"/tickets/{TICKET}", {"status": "pending"})


def close_another_ticket_too(desk: DeskOnHost) -> None:
    desk.settle()
    desk.resolve(1043)


def change_the_customers_address(desk: DeskOnHost) -> None:
    desk.settle()
    desk.call("PATCH", "/customers/31", {"address": "Storgatan 4, Lund"})


def write_no_note(desk: DeskOnHost) -> None:
    desk.refund(RIGHT, AMOUNT)
    desk.reply("Your money is on its way.")
    desk.resolve()
    desk.report()


def reply_on_another_ticket(desk: DeskOnHost) -> None:
    desk.settle()
    desk.reply("Your money is on its way.", ticket=1043)


def give_another_reason(desk: DeskOnHost) -> None:
    desk.refund(RIGHT, AMOUNT, reason="goodwill")
    desk.write_up()


def report_the_other_order(desk: DeskOnHost) -> None:
    desk.settle()
    desk.report(order=OTHER)


def write_no_report(desk: DeskOnHost) -> None:
    desk.settle()
    (desk.workdir / "report.json").unlink()


def link_the_report_elsewhere(desk: DeskOnHost) -> None:
    desk.settle()
    report = desk.workdir / "report.json"
    report.rename(desk.logs / "elsewhere.json")
    report.symlink_to(desk.logs / "elsewhere.json")


def edit_the_database_by_hand(desk: DeskOnHost) -> None:
    """All the right rows, with nobody having called the service for the payment."""
    desk.write_up()
    with contextlib.closing(sqlite3.connect(desk.database)) as connection, connection:
        connection.execute(
            "INSERT INTO refunds (order_id, ticket_id, amount_cents, reason, created_at)"
            " VALUES (?, ?, ?, 'damaged_on_arrival', '2026-11-06T09:00:00Z')",
            (RIGHT, TICKET, AMOUNT),
        )
        connection.execute("UPDATE orders SET status = 'refunded' WHERE id = ?", (RIGHT,))


def tidy_the_audit_log(desk: DeskOnHost) -> None:
    desk.settle()
    with contextlib.closing(sqlite3.connect(desk.database)) as connection, connection:
        connection.execute("DELETE FROM audit_log WHERE id = 2")


WRONG: tuple[Callable[[DeskOnHost], None], ...] = (
    do_nothing,
    refund_the_other_order,
    pay_the_gift_wrap_too,
    leave_the_shipping_out,
    refund_both_to_be_safe,
    pay_in_two_parts,
    send_a_replacement,
    refund_and_replace,
    leave_the_ticket_open,
    close_another_ticket_too,
    change_the_customers_address,
    write_no_note,
    reply_on_another_ticket,
    give_another_reason,
    report_the_other_order,
    write_no_report,
    link_the_report_elsewhere,
    edit_the_database_by_hand,
    tidy_the_audit_log,
)


def test_the_settled_ticket_scores_one(desk: DeskOnHost) -> None:
    desk.settle()
    verdict = desk.verdict()
    assert verdict["reward"] == 1.0
    assert set(verdict["items"].values()) == {1.0}


@pytest.mark.parametrize("end_state", WRONG, ids=lambda act: act.__name__)
def test_each_wrong_end_state_scores_zero(
    desk: DeskOnHost, end_state: Callable[[DeskOnHost], None]
) -> None:
    end_state(desk)
    verdict = desk.verdict()
    assert verdict["reward"] == 0.0
    assert 0.0 in verdict["items"].values()


def test_several_notes_and_a_pending_step_on_the_way_still_score_one(desk: DeskOnHost) -> None:
    desk.note("Asked the shift lead which order is meant.")
    desk.call("PATCH", f"/tickets/{TICKET}", {"status": "pending"})
    desk.settle()
    assert desk.verdict()["reward"] == 1.0


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nowhere", None, 404),
        ("PATCH", "/orders/5518", {"status": "refunded"}, 405),
        ("GET", "/tickets/1", None, 404),
        ("POST", "/refunds", {"order_id": "5518"}, 400),
        ("PATCH", "/tickets/1042", {"status": "closed"}, 400),
        ("PATCH", "/customers/31", {"name": "x"}, 400),
    ],
)
def test_the_service_refuses_what_it_does_not_offer(
    desk: DeskOnHost, method: str, path: str, body: dict[str, object] | None, status: int
) -> None:
    assert desk.call(method, path, body)["status"] == status


def test_a_refund_above_what_was_paid_is_refused(desk: DeskOnHost) -> None:
    assert desk.refund(RIGHT, 6441)["status"] == 409
    desk.refund(RIGHT, AMOUNT)
    assert desk.refund(RIGHT, AMOUNT)["status"] == 409


def test_a_refund_on_another_customers_order_is_refused(desk: DeskOnHost) -> None:
    assert desk.refund(5501, 100)["status"] == 409


def test_the_hidden_answer_is_nowhere_in_what_the_agent_reads(desk: DeskOnHost) -> None:
    seen = [path.read_text() for path in (EXAMPLE / "environment" / "workspace").iterdir()]
    seen.append((EXAMPLE / "task.md").read_text().split("\n---\n", 1)[1])
    assert not any(str(RIGHT) in text or str(OTHER) in text for text in seen)
    ticket = desk.call("GET", f"/tickets/{TICKET}")
    assert str(RIGHT) not in str(ticket)
    kettles = [
        order["id"]
        for order in desk.call("GET", "/customers/31/orders")
        if "kettle" in order["item"]
    ]
    assert kettles == [OTHER, RIGHT]
