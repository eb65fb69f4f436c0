//! `tpcc-like`: the five transactions of TPC-C (TPC Benchmark C, revision 5.11, clause 2) in its
//! minimum mix, on tables of a tenth of its size and less.
//!
//! What decides about contention is as in the original: a payment updates the row of its
//! warehouse, an order that of its district, and an order line that of its item in stock. What
//! differs:
//!
//! - A warehouse has 10,000 items in stock and 300 customers in each district, a tenth, and 100
//!   orders in each district, a thirtieth.
//! - An order has ten lines, all from its own warehouse, and no order is rolled back. Its items
//!   are in ascending order, so that no two orders wait for each other.
//! - Customers are chosen by number and evenly, as items are.
//! - A delivery is that of one district; there is no queue for it.
//! - Terminals neither type nor think. Figures are no tpmC.

use super::rows::{empty, insert, insert_in_batches};
use std::fmt::Write as _;

const DISTRICTS: u32 = 10;
const CUSTOMERS: u32 = 300;
const ITEMS: u32 = 10_000;
const ORDERS: u32 = 100;
const LINES: u32 = 10;
/// Orders of a district that are not delivered at the start.
const NEW_ORDERS: u32 = 30;

/// Returns the script.
pub(super) fn script() -> String {
    [new_order().as_str(), PAYMENT, ORDER_STATUS, DELIVERY, STOCK_LEVEL].concat()
}

/// Returns the transaction of ten order lines, each of an item of another tenth.
fn new_order() -> String {
    let mut text = String::from(
        "\\transaction new-order 45
\\set w random(1, :scale)
\\set d random(1, 10)
\\set c random(1, 300)
",
    );
    let tenth = ITEMS / LINES;
    for line in 1..=LINES {
        let (low, high) = ((line - 1) * tenth + 1, line * tenth);
        // Writing into a String cannot fail.
        let _ = writeln!(text, "\\set i{line} random({low}, {high})");
        let _ = writeln!(text, "\\set q{line} random(1, 10)");
    }
    // The update that contends comes first: a snapshot that is older than the update's lock would
    // make it a serialization failure.
    text += "BEGIN;
UPDATE lull_district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = :w AND d_id = :d;
SELECT c_discount, c_balance, w_tax FROM lull_customer, lull_warehouse
  WHERE w_id = :w AND c_w_id = :w AND c_d_id = :d AND c_id = :c;
INSERT INTO lull_orders (o_w_id, o_d_id, o_id, o_c_id, o_carrier_id, o_ol_cnt, o_entry_d)
  SELECT d_w_id, d_id, d_next_o_id - 1, c_id, 0, 10, CURRENT_TIMESTAMP
  FROM lull_district, lull_customer
  WHERE d_w_id = :w AND d_id = :d AND c_w_id = :w AND c_d_id = :d AND c_id = :c;
INSERT INTO lull_new_order (no_w_id, no_d_id, no_o_id)
  SELECT d_w_id, d_id, d_next_o_id - 1 FROM lull_district WHERE d_w_id = :w AND d_id = :d;
";
    for line in 1..=LINES {
        let _ = writeln!(
            text,
            "UPDATE lull_stock SET s_ytd = s_ytd + :q{line}, s_order_cnt = s_order_cnt + 1,
  s_quantity = CASE WHEN s_quantity >= :q{line} + 10 THEN s_quantity - :q{line}
    ELSE s_quantity - :q{line} + 91 END
  WHERE s_w_id = :w AND s_i_id = :i{line};
INSERT INTO lull_order_line
  (ol_w_id, ol_d_id, ol_o_id, ol_number, ol_i_id, ol_quantity, ol_amount, ol_delivered)
  SELECT d_w_id, d_id, d_next_o_id - 1, {line}, i_id, 0 + :q{line}, i_price * :q{line}, 0
  FROM lull_district, lull_item WHERE d_w_id = :w AND d_id = :d AND i_id = :i{line};"
        );
    }
    text += "COMMIT;\n";
    text
}

const PAYMENT: &str = "\
\\transaction payment 43
\\set w random(1, :scale)
\\set d random(1, 10)
\\set c random(1, 300)
\\set amount random(100, 500000)
BEGIN;
UPDATE lull_warehouse SET w_ytd = w_ytd + :amount WHERE w_id = :w;
UPDATE lull_district SET d_ytd = d_ytd + :amount WHERE d_w_id = :w AND d_id = :d;
SELECT c_balance, c_discount FROM lull_customer
  WHERE c_w_id = :w AND c_d_id = :d AND c_id = :c;
UPDATE lull_customer SET c_balance = c_balance - :amount, c_payment_cnt = c_payment_cnt + 1
  WHERE c_w_id = :w AND c_d_id = :d AND c_id = :c;
INSERT INTO lull_payment (p_w_id, p_d_id, p_c_id, p_amount, p_date)
  VALUES (:w, :d, :c, :amount, CURRENT_TIMESTAMP);
COMMIT;
";

const ORDER_STATUS: &str = "\
\\transaction order-status 4
\\set w random(1, :scale)
\\set d random(1, 10)
\\set c random(1, 300)
BEGIN;
SELECT c_balance FROM lull_customer WHERE c_w_id = :w AND c_d_id = :d AND c_id = :c;
SELECT o_id, o_entry_d, o_carrier_id FROM lull_orders
  WHERE o_w_id = :w AND o_d_id = :d AND o_c_id = :c ORDER BY o_id DESC LIMIT 1;
SELECT ol_i_id, ol_quantity, ol_amount, ol_delivered FROM lull_order_line
  WHERE ol_w_id = :w AND ol_d_id = :d AND ol_o_id =
    (SELECT MAX(o_id) FROM lull_orders WHERE o_w_id = :w AND o_d_id = :d AND o_c_id = :c);
COMMIT;
";

/// The lock of the district keeps a second delivery of it, and new orders, from the oldest order.
const DELIVERY: &str = "\
\\transaction delivery 4
\\set w random(1, :scale)
\\set d random(1, 10)
\\set carrier random(1, 10)
BEGIN;
SELECT d_id FROM lull_district WHERE d_w_id = :w AND d_id = :d FOR UPDATE;
UPDATE lull_orders SET o_carrier_id = :carrier
  WHERE o_w_id = :w AND o_d_id = :d AND o_id =
    (SELECT MIN(no_o_id) FROM lull_new_order WHERE no_w_id = :w AND no_d_id = :d);
UPDATE lull_order_line SET ol_delivered = 1
  WHERE ol_w_id = :w AND ol_d_id = :d AND ol_o_id =
    (SELECT MIN(no_o_id) FROM lull_new_order WHERE no_w_id = :w AND no_d_id = :d);
UPDATE lull_customer SET c_delivery_cnt = c_delivery_cnt + 1
  WHERE c_w_id = :w AND c_d_id = :d AND c_id =
    (SELECT o_c_id FROM lull_orders WHERE o_w_id = :w AND o_d_id = :d AND o_id =
      (SELECT MIN(no_o_id) FROM lull_new_order WHERE no_w_id = :w AND no_d_id = :d));
DELETE FROM lull_new_order WHERE no_w_id = :w AND no_d_id = :d AND no_o_id =
    (SELECT oldest FROM (SELECT MIN(no_o_id) AS oldest FROM lull_new_order
      WHERE no_w_id = :w AND no_d_id = :d) AS first_one);
COMMIT;
";

const STOCK_LEVEL: &str = "\
\\transaction stock-level 4
\\set w random(1, :scale)
\\set d random(1, 10)
\\set threshold random(10, 20)
SELECT COUNT(DISTINCT s_i_id) FROM lull_order_line, lull_stock, lull_district
  WHERE d_w_id = :w AND d_id = :d AND ol_w_id = :w AND ol_d_id = :d
    AND ol_o_id >= d_next_o_id - 20 AND ol_o_id < d_next_o_id
    AND s_w_id = :w AND s_i_id = ol_i_id AND s_quantity < :threshold;
";

/// Returns the statements that create and fill the tables.
pub(super) fn creation(scale: u32) -> impl Iterator<Item = String> {
    let tables = [
        ("lull_warehouse", "w_id int PRIMARY KEY, w_tax int, w_ytd bigint"),
        (
            "lull_district",
            "d_w_id int, d_id int, d_tax int, d_ytd bigint, d_next_o_id int, \
             PRIMARY KEY (d_w_id, d_id)",
        ),
        (
            "lull_customer",
            "c_w_id int, c_d_id int, c_id int, c_discount int, c_balance bigint, \
             c_payment_cnt int, c_delivery_cnt int, c_data char(250), \
             PRIMARY KEY (c_w_id, c_d_id, c_id)",
        ),
        ("lull_item", "i_id int PRIMARY KEY, i_price int, i_data char(50)"),
        (
            "lull_stock",
            "s_w_id int, s_i_id int, s_quantity int, s_ytd bigint, s_order_cnt int, \
             s_data char(250), PRIMARY KEY (s_w_id, s_i_id)",
        ),
        (
            "lull_orders",
            "o_w_id int, o_d_id int, o_id int, o_c_id int, o_carrier_id int, o_ol_cnt int, \
             o_entry_d timestamp NULL, PRIMARY KEY (o_w_id, o_d_id, o_id)",
        ),
        (
            "lull_new_order",
            "no_w_id int, no_d_id int, no_o_id int, PRIMARY KEY (no_w_id, no_d_id, no_o_id)",
        ),
        (
            "lull_order_line",
            "ol_w_id int, ol_d_id int, ol_o_id int, ol_number int, ol_i_id int, \
             ol_quantity int, ol_amount bigint, ol_delivered int, \
             PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number)",
        ),
        (
            "lull_payment",
            "p_w_id int, p_d_id int, p_c_id int, p_amount bigint, p_date timestamp NULL",
        ),
    ];
    let index = "CREATE INDEX lull_orders_customer ON lull_orders (o_w_id, o_d_id, o_c_id, o_id)";
    empty(tables).chain([index.to_owned()]).chain(rows(scale))
}

fn rows(scale: u32) -> impl Iterator<Item = String> {
    let warehouses = insert("lull_warehouse", 1, scale, |w| format!("({w}, 10, 0)"));
    let items =
        insert_in_batches("lull_item", ITEMS, |i| format!("({i}, {}, '')", 100 + i % 9_900));
    let districts = insert("lull_district", 1, DISTRICTS * scale, |number| {
        let (warehouse, district) = place(number, DISTRICTS);
        format!("({warehouse}, {district}, 10, 0, {})", ORDERS + 1)
    });
    let customers = insert_in_batches("lull_customer", CUSTOMERS * DISTRICTS * scale, |number| {
        let (of_district, customer) = place(number, CUSTOMERS);
        let (warehouse, district) = place(of_district, DISTRICTS);
        format!("({warehouse}, {district}, {customer}, 10, 0, 0, 0, '')")
    });
    let stock = insert_in_batches("lull_stock", ITEMS * scale, |number| {
        let (warehouse, item) = place(number, ITEMS);
        format!("({warehouse}, {item}, {}, 0, 0, '')", 10 + item % 91)
    });
    let all = [warehouses, districts].into_iter();
    all.chain(items).chain(customers).chain(stock).chain(orders(scale))
}

fn orders(scale: u32) -> impl Iterator<Item = String> {
    let all = ORDERS * DISTRICTS * scale;
    let split = |number: u32| {
        let (of_district, order) = place(number, ORDERS);
        let (warehouse, district) = place(of_district, DISTRICTS);
        (warehouse, district, order)
    };
    let orders = insert_in_batches("lull_orders", all, move |number| {
        let (warehouse, district, order) = split(number);
        let carrier = u32::from(order + NEW_ORDERS <= ORDERS);
        let customer = order % CUSTOMERS + 1;
        format!("({warehouse}, {district}, {order}, {customer}, {carrier}, {LINES}, NULL)")
    });
    let lines = insert_in_batches("lull_order_line", LINES * all, move |number| {
        let (of_order, line) = place(number, LINES);
        let (warehouse, district, order) = split(of_order);
        let item = (order * 7 + line * 997) % ITEMS + 1;
        let delivered = u32::from(order + NEW_ORDERS <= ORDERS);
        format!("({warehouse}, {district}, {order}, {line}, {item}, 5, 500, {delivered})")
    });
    let new_orders =
        insert_in_batches("lull_new_order", NEW_ORDERS * DISTRICTS * scale, |number| {
            let (of_district, order) = place(number, NEW_ORDERS);
            let (warehouse, district) = place(of_district, DISTRICTS);
            format!("({warehouse}, {district}, {})", ORDERS - NEW_ORDERS + order)
        });
    orders.chain(lines).chain(new_orders)
}

/// Splits a number from 1 on into that of a group of this size and that within it, both from 1.
const fn place(number: u32, size: u32) -> (u32, u32) {
    ((number - 1) / size + 1, (number - 1) % size + 1)
}

#[cfg(test)]
mod tests {
    use super::super::script::Script;
    use super::*;

    #[test]
    fn every_row_of_two_warehouses_is_inserted_once() {
        let rows = |table: &str| {
            let into = format!("INSERT INTO {table} VALUES ");
            let mut all: Vec<String> = creation(2)
                .filter_map(|one| one.strip_prefix(&into).map(str::to_owned))
                .flat_map(|rows| rows.split("), ").map(str::to_owned).collect::<Vec<_>>())
                .map(|row| row.trim_end_matches(')').to_owned())
                .collect();
            let count = all.len();
            all.sort();
            all.dedup();
            assert_eq!(all.len(), count, "{table}");
            count
        };
        let wanted = [
            ("lull_warehouse", 2),
            ("lull_district", 20),
            ("lull_customer", 6_000),
            ("lull_item", 10_000),
            ("lull_stock", 20_000),
            ("lull_orders", 2_000),
            ("lull_order_line", 20_000),
            ("lull_new_order", 600),
        ];
        for (table, count) in wanted {
            assert_eq!(rows(table), count, "{table}");
        }
    }

    #[test]
    fn the_mix_has_the_five_transactions() {
        let script = Script::parse("tpcc-like", &script(), 1).unwrap();
        let names: Vec<String> =
            script.transactions.iter().map(|one| one.name.unwrap().to_string()).collect();
        let wanted = ["new-order", "payment", "order-status", "delivery", "stock-level"];
        assert_eq!(names, wanted);
    }
}
