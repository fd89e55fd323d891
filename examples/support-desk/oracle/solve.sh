#!/bin/bash
# The reference solution. It knows what an agent has to ask for: order 5518 is meant.
set -euo pipefail
python3 - <<'PY'
import json
import urllib.request

DESK = "http://localhost:8080"
TICKET, ORDER = 1042, 5518


def call(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(DESK + path, data=data, method=method)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


order = call("GET", f"/orders/{ORDER}")
amount = order["item_cents"] + order["shipping_cents"]
call(
    "POST",
    "/refunds",
    {
        "order_id": ORDER,
        "ticket_id": TICKET,
        "amount_cents": amount,
        "reason": "damaged_on_arrival",
    },
)
paid = f"{amount // 100}.{amount % 100:02}"
call("POST", f"/tickets/{TICKET}/notes", {"body": f"Refunded {paid} on order {ORDER}, lid cracked on arrival."})
call("POST", f"/tickets/{TICKET}/replies", {"body": f"We are sorry. {paid} for order {ORDER} is on its way back to you."})
call("PATCH", f"/tickets/{TICKET}", {"status": "resolved"})
with open("report.json", "w") as file:
    json.dump({"ticket": TICKET, "order": ORDER, "action": "refund", "amount_cents": amount}, file)
PY
