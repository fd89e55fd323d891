CREATE TABLE customers (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    email TEXT NOT NULL,
    phone TEXT NOT NULL,
    address TEXT NOT NULL
);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    item TEXT NOT NULL,
    placed_on TEXT NOT NULL,
    delivered_on TEXT,
    item_cents INTEGER NOT NULL,
    shipping_cents INTEGER NOT NULL,
    gift_wrap_cents INTEGER NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('placed', 'shipped', 'delivered', 'refunded', 'replaced'))
);
CREATE TABLE tickets (
    id INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    subject TEXT NOT NULL,
    body TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('open', 'pending', 'resolved')),
    opened_at TEXT NOT NULL,
    resolved_at TEXT
);
CREATE TABLE notes (
    id INTEGER PRIMARY KEY,
    ticket_id INTEGER NOT NULL REFERENCES tickets (id),
    body TEXT NOT NULL,
    created_at TEXT NOT NULL
);
CREATE TABLE replies (
    id INTEGER PRIMARY KEY,
    ticket_id INTEGER NOT NULL REFERENCES tickets (id),
    body TEXT NOT NULL,
    created_at TEXT NOT NULL
);
CREATE TABLE refunds (
    id INTEGER PRIMARY KEY,
    order_id INTEGER NOT NULL REFERENCES orders (id),
    ticket_id INTEGER NOT NULL REFERENCES tickets (id),
    amount_cents INTEGER NOT NULL,
    reason TEXT NOT NULL,
    created_at TEXT NOT NULL
);
CREATE TABLE replacements (
    id INTEGER PRIMARY KEY,
    order_id INTEGER NOT NULL REFERENCES orders (id),
    ticket_id INTEGER NOT NULL REFERENCES tickets (id),
    created_at TEXT NOT NULL
);
CREATE TABLE audit_log (
    id INTEGER PRIMARY KEY,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    detail TEXT NOT NULL,
    at TEXT NOT NULL
);

INSERT INTO customers VALUES
    (29, 'Jonas Adeyemi', 'jonas.adeyemi@example.org', '+46 70 155 0142', 'Kungsgatan 12, Uppsala'),
    (30, 'Maria Lindquist', 'maria.lindquist@example.org', '+46 70 155 0177', 'Storgatan 4, Lund'),
    (31, 'Mara Lindqvist', 'mara.lindqvist@example.org', '+46 70 155 0113', 'Hamngatan 9, Kalmar'),
    (32, 'Tomas Okafor', 'tomas.okafor@example.org', '+46 70 155 0198', 'Parkvägen 31, Umeå');

INSERT INTO orders VALUES
    (5467, 31, 'Cast-iron pan 26 cm', '2026-08-14', '2026-08-19', 6900, 590, 0, 'delivered'),
    (5490, 29, 'Pour-over kettle 1.0 l', '2026-10-09', '2026-10-14', 5900, 490, 0, 'delivered'),
    (5501, 30, 'Pour-over kettle 1.0 l', '2026-10-19', '2026-10-23', 5900, 490, 350, 'delivered'),
    (5512, 31, 'Pour-over kettle 1.0 l', '2026-10-24', '2026-10-28', 5900, 490, 0, 'delivered'),
    (5518, 31, 'Pour-over kettle 1.0 l', '2026-10-29', '2026-11-03', 5400, 690, 350, 'delivered'),
    (5520, 32, 'Bread knife', '2026-10-30', NULL, 3400, 490, 0, 'shipped');

INSERT INTO tickets VALUES
    (1036, 29, 'Kettle whistles', 'My kettle whistles although it should not. Is that normal?',
     'resolved', '2026-10-20T09:12:00Z', '2026-10-20T14:03:00Z'),
    (1041, 32, 'Where is my knife?', 'The tracking page has not changed for a week.',
     'open', '2026-11-05T16:40:00Z', NULL),
    (1042, 31, 'Cracked lid', 'Hello, I bought two of your pour-over kettles this autumn. One of them came out of its box with a crack right across the lid. I do not want another one, please just put this right. Mara Lindqvist',
     'open', '2026-11-06T08:05:00Z', NULL),
    (1043, 30, 'Lid does not close', 'The lid of the kettle I got in October sits loose. Can you send me a new one?',
     'open', '2026-11-06T08:31:00Z', NULL);

INSERT INTO notes VALUES
    (1, 1036, 'Told the customer to fill it only to the mark.', '2026-10-20T14:02:00Z'),
    (2, 1042, 'Customer phoned at 08:40, shift lead took the call.', '2026-11-06T08:47:00Z');

INSERT INTO replies VALUES
    (1, 1036, 'Please fill the kettle only to the MAX mark.', '2026-10-20T14:03:00Z');

INSERT INTO audit_log VALUES
    (1, 'note.create', 'ticket:1036', '{}', '2026-10-20T14:02:00Z'),
    (2, 'reply.create', 'ticket:1036', '{}', '2026-10-20T14:03:00Z'),
    (3, 'ticket.status', 'ticket:1036', '{"status": "resolved"}', '2026-10-20T14:03:00Z'),
    (4, 'note.create', 'ticket:1042', '{}', '2026-11-06T08:47:00Z');
