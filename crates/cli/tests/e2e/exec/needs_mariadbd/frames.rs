//! A client of MySQL's protocol that sends single packets, and frames that few clients send, at a
//! gate of threads that serve one connection each.

use super::gate::gate;
use super::*;
use std::io::{Read, Write};
use std::time::Duration;

const COM_QUERY: u8 = 0x03;
const COM_PREPARE: u8 = 0x16;
const COM_EXECUTE: u8 = 0x17;
const COM_LONG_DATA: u8 = 0x18;
const COM_CLOSE: u8 = 0x19;
const COM_FETCH: u8 = 0x1c;
const COM_RESET: u8 = 0x1f;
const COM_CHANGE_USER: &[u8] = b"\x11root\0\0mysql\0\x21\0mysql_native_password\0";
/// A number that is not a command of MariaDB.
const COM_UNKNOWN: u8 = 0x30;

/// Files of the client, the protocol of 4.1 and its passwords, several statements in a query and
/// several results, names of plug-ins.
const CAPABILITIES: u32 = 1 << 7 | 1 << 9 | 1 << 15 | 1 << 16 | 1 << 17 | 1 << 19;
/// A status: another result follows.
const MORE_RESULTS: u16 = 8;
/// A status: rows are fetched from a cursor.
const CURSOR_EXISTS: u16 = 0x40;
/// The answer to `load data local`: the server waits for the file.
const WANTS_FILE: u8 = 0xfb;

/// A client that sends single packets, and pauses between them.
pub(super) struct Client(TcpStream);

impl Client {
    pub(super) fn connect(database: &Database) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", database.server.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(80))).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut client = Self(stream);
        client.packet();
        let login = [&CAPABILITIES.to_le_bytes()[..], &[0, 0, 0, 1, 33], &[0; 23]].concat();
        client.send(1, &[&login[..], b"root\0\0mysql_native_password\0"].concat());
        assert_eq!(client.packet()[0], 0, "an answer to the login");
        client
    }

    pub(super) fn write(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    fn send(&mut self, sequence: u8, payload: &[u8]) {
        self.write(&packet(sequence, payload));
    }

    fn packet(&mut self) -> Vec<u8> {
        let mut head = [0; 4];
        self.0.read_exact(&mut head).unwrap();
        let mut payload = vec![0; u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize];
        self.0.read_exact(&mut payload).unwrap();
        payload
    }

    /// Sends a command with its arguments.
    fn command(&mut self, command: u8, rest: &[&[u8]]) {
        self.send(0, &[&[command][..], &*rest.concat()].concat());
    }

    pub(super) fn ask(&mut self, sql: &str) {
        self.command(COM_QUERY, &[sql.as_bytes()]);
    }

    /// Reads packets up to one that ends columns or rows. Returns them, and the status in that.
    fn until_end(&mut self) -> (Vec<Vec<u8>>, u16) {
        let mut packets = Vec::new();
        loop {
            let packet = self.packet();
            assert_ne!(packet[0], 0xff, "{}", String::from_utf8_lossy(&packet));
            if packet[0] == 0xfe && packet.len() < 9 {
                return (packets, u16::from_le_bytes([packet[3], packet[4]]));
            }
            packets.push(packet);
        }
    }

    /// Reads a result: one packet, or columns and rows. Returns the status of the server.
    fn result(&mut self) -> u16 {
        let first = self.packet();
        assert_ne!(first[0], 0xff, "{}", String::from_utf8_lossy(&first));
        if first[0] == 0 {
            // The status is behind two numbers of a byte each.
            return u16::from_le_bytes([first[3], first[4]]);
        }
        self.until_end();
        self.until_end().1
    }

    /// Reads all results of an answer. Returns how many there are.
    fn results(&mut self) -> usize {
        let mut results = 1;
        while self.result() & MORE_RESULTS != 0 {
            results += 1;
        }
        results
    }

    pub(super) fn answer(&mut self) {
        self.results();
    }

    pub(super) fn query(&mut self, sql: &str) {
        self.ask(sql);
        self.answer();
    }

    /// Begins the session again, which rolls back.
    pub(super) fn change_user(&mut self) {
        self.send(0, COM_CHANGE_USER);
        let mut answer = self.packet();
        if answer[0] == 0xfe {
            // The server wants the password, which is empty.
            self.send(2, &[]);
            answer = self.packet();
        }
        assert_eq!(answer[0], 0, "{}", String::from_utf8_lossy(&answer));
    }

    /// Prepares a statement with columns. Returns its number as it is sent.
    fn prepare(&mut self, sql: &str) -> [u8; 4] {
        self.command(COM_PREPARE, &[sql.as_bytes()]);
        let first = self.packet();
        assert_eq!(first[0], 0, "{}", String::from_utf8_lossy(&first));
        let parameters = u16::from_le_bytes([first[7], first[8]]);
        if parameters > 0 {
            self.until_end();
        }
        self.until_end();
        [first[1], first[2], first[3], first[4]]
    }

    /// Reads rows by a cursor, one at a time. Returns how many there are.
    fn fetch_by_cursor(&mut self, sql: &str) -> usize {
        let statement = self.prepare(sql);
        let (read_only, once) = (1, 1_u32.to_le_bytes());
        self.command(COM_EXECUTE, &[&statement, &[read_only], &once]);
        self.packet();
        let (_, status) = self.until_end();
        assert_eq!(status & CURSOR_EXISTS, CURSOR_EXISTS, "the rows have come at once");
        let mut rows = 0;
        loop {
            self.command(COM_FETCH, &[&statement, &1_u32.to_le_bytes()]);
            match self.until_end().0.len() {
                0 => break,
                more => rows += more,
            }
        }
        // There is no answer to this.
        self.command(COM_CLOSE, &[&statement]);
        rows
    }

    /// Executes a statement whose parameter is sent in two pieces, to which there is no answer.
    fn execute_with_long_data(&mut self, sql: &str) {
        const BLOB: [u8; 2] = [0xfc, 0];
        let statement = self.prepare(sql);
        for piece in [b"long", b"data"] {
            self.command(COM_LONG_DATA, &[&statement, &[0, 0], piece]);
        }
        let (no_cursor, once) = (0, 1_u32.to_le_bytes());
        let (no_nulls, types_follow) = (0, 1);
        let head = [no_nulls, types_follow];
        self.command(COM_EXECUTE, &[&statement, &[no_cursor], &once, &head, &BLOB]);
        self.answer();
        self.command(COM_CLOSE, &[&statement]);
    }

    /// Loads a file that the client has.
    fn load_file(&mut self, table: &str, file: &[u8]) {
        self.ask(&format!("load data local infile 'none' into table {table}"));
        assert_eq!(self.packet()[0], WANTS_FILE);
        self.send(2, file);
        self.send(3, &[]);
        self.answer();
    }

    /// Sends a packet that is not a command. Returns whether the server refuses it.
    fn is_refused(&mut self, payload: &[u8]) -> bool {
        self.send(0, payload);
        self.packet()[0] == 0xff
    }
}

/// A packet of at most 255 bytes.
pub(super) fn packet(sequence: u8, payload: &[u8]) -> Vec<u8> {
    [&[payload.len() as u8, 0, 0, sequence], payload].concat()
}

/// A number of `lull gate status`.
pub(super) fn number(scene: &Scene, database: &Database, of: &str) -> u64 {
    gate(scene, "status", &database.pid().to_string())[of].as_u64().unwrap()
}

/// Sends each kind of frame, most of them while another client wants the only slot.
fn send_all(client: &mut Client) {
    client.query("use sbtest");
    client.query("create table f (a int)");
    client.ask("begin; update t set b = b + 1 where a = 1; select b from t; commit");
    assert_eq!(client.results(), 4);
    let sql = |sql: &str| packet(0, &[&[COM_QUERY], sql.as_bytes()].concat());
    // A transaction that is sent at once, and a query in pieces of which the first is not a header.
    client.write(&["begin", "update t set b = b + 1 where a = 2", "commit"].map(sql).concat());
    (0..3).for_each(|_| client.answer());
    let one = sql("select 1");
    for piece in [&one[..3], &one[3..6], &one[6..]] {
        client.write(piece);
        std::thread::yield_now();
    }
    client.answer();
    assert_eq!(client.fetch_by_cursor("select a from t"), 2);
    client.execute_with_long_data("select length(?)");
    client.load_file("f", b"1\n2\n3\n");
    assert!(client.is_refused(&[COM_UNKNOWN]) && client.is_refused(&[]));
    // Both of these end a transaction without a commit.
    client.query("begin; update t set b = 7 where a = 1");
    client.command(COM_RESET, &[]);
    client.answer();
    client.query("use sbtest");
    client.query("begin; update t set b = 7 where a = 2");
    client.change_user();
}

#[test]
fn frames_that_few_clients_send_pass_a_gate_of_one_and_leave_no_slot_behind() {
    for mode in ["post", "epoll"] {
        let scene = Scene::new();
        let options = ["--mode", mode, "--concurrency", "1", "--slot-lease", "1s"];
        let database = Database::start(&scene, &options);
        let other = database.client(&"begin; select b from t; commit;".repeat(100));
        let mut client = Client::connect(&database);
        send_all(&mut client);
        ended(other);
        wait_for("the end of all transactions", || {
            ["under_way", "waiting"].iter().all(|of| number(&scene, &database, of) == 0)
        });
        client.query("select 1");
        let sums = "select sum(b), (select sum(a) from sbtest.f) from sbtest.t";
        assert_eq!(database.admin(sums).trim(), "2\t6", "{mode}");
        let seen = database.server.seen();
        assert_eq!(seen["gate"]["waited_too_long"], 0, "{mode}: {seen}");
        assert!(of_class(&seen, "opaque").is_empty(), "{mode}: {seen}");
        assert!(of_class(&seen, "gated").iter().any(|queries| *queries >= 10), "{mode}: {seen}");
    }
}
