//! The wire format of D-Bus messages, as far as calls to systemd need it.
//!
//! Values are aligned to their size, counted from the start of the message; a body begins at a
//! multiple of 8. Messages have the byte order of this machine, which is also systemd's.
//! Source: D-Bus specification, sections "Marshaling" and "Message Protocol".

/// How the first byte of a message names the byte order of this machine.
const BYTE_ORDER: u8 = if cfg!(target_endian = "little") { b'l' } else { b'B' };
const PROTOCOL: u8 = 1;
/// Bytes before the array of header fields, with its length.
pub(super) const FIXED_BYTES: usize = 16;
/// More than any reply to Lull's calls has.
const BYTES_MAX: usize = 1 << 20;

/// Kinds of messages.
const CALL: u8 = 1;
const REPLY: u8 = 2;
const ERROR: u8 = 3;

/// Header fields.
mod field {
    pub(super) const PATH: u8 = 1;
    pub(super) const INTERFACE: u8 = 2;
    pub(super) const MEMBER: u8 = 3;
    pub(super) const ERROR_NAME: u8 = 4;
    pub(super) const REPLY_SERIAL: u8 = 5;
    pub(super) const DESTINATION: u8 = 6;
    pub(super) const SIGNATURE: u8 = 8;
}

/// A method to call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Method<'a> {
    pub(super) destination: &'a str,
    pub(super) path: &'a str,
    pub(super) interface: &'a str,
    pub(super) name: &'a str,
}

/// A value of one of the types that Lull reads or sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Number(u64),
    Bytes(Vec<u8>),
    Text(String),
}

/// Writes values one after the other.
#[derive(Debug, Default)]
pub(super) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn align(&mut self, to: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(to), 0);
    }

    fn u32(&mut self, value: u32) {
        self.align(4);
        self.bytes.extend(value.to_ne_bytes());
    }

    /// A boolean has four bytes.
    pub(super) fn boolean(&mut self, value: bool) {
        self.u32(u32::from(value));
    }

    /// A string or an object path.
    pub(super) fn text(&mut self, text: &str) {
        self.u32(text.len() as u32);
        self.bytes.extend(text.as_bytes());
        self.bytes.push(0);
    }

    fn signature(&mut self, signature: &str) {
        self.bytes.push(signature.len() as u8);
        self.bytes.extend(signature.as_bytes());
        self.bytes.push(0);
    }

    fn variant(&mut self, value: &Value) {
        match value {
            Value::Number(number) => {
                self.signature("t");
                self.align(8);
                self.bytes.extend(number.to_ne_bytes());
            }
            Value::Bytes(bytes) => {
                self.signature("ay");
                self.u32(bytes.len() as u32);
                self.bytes.extend(bytes);
            }
            Value::Text(text) => {
                self.signature("s");
                self.text(text);
            }
        }
    }

    /// An array of structures that begin at multiples of 8.
    fn array<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.u32(0);
        let length_at = self.bytes.len() - 4;
        self.align(8);
        let begin = self.bytes.len();
        for item in items {
            self.align(8);
            write(self, item);
        }
        let length = (self.bytes.len() - begin) as u32;
        self.bytes[length_at..][..4].copy_from_slice(&length.to_ne_bytes());
    }

    /// An array of names with values, `a(sv)`.
    pub(super) fn properties(&mut self, properties: &[(&str, Value)]) {
        self.array(properties, |out, (name, value)| {
            out.text(name);
            out.variant(value);
        });
    }

    /// A call with this body, whose types are `signature`.
    pub(super) fn into_call(self, serial: u32, method: Method<'_>, signature: &str) -> Vec<u8> {
        let mut out = Self { bytes: vec![BYTE_ORDER, CALL, 0, PROTOCOL] };
        out.u32(self.bytes.len() as u32);
        out.u32(serial);
        let mut fields = vec![
            (field::PATH, "o", method.path),
            (field::INTERFACE, "s", method.interface),
            (field::MEMBER, "s", method.name),
            (field::DESTINATION, "s", method.destination),
        ];
        if !signature.is_empty() {
            fields.push((field::SIGNATURE, "g", signature));
        }
        out.array(&fields, |out, (code, kind, text)| {
            out.bytes.push(*code);
            out.signature(kind);
            match *kind {
                "g" => out.signature(text),
                _ => out.text(text),
            }
        });
        out.align(8);
        out.bytes.extend(self.bytes);
        out.bytes
    }
}

/// Reads values one after the other; `None` where the bytes are not as expected.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn u32(&mut self) -> Option<u32> {
        self.align(4);
        Some(u32::from_ne_bytes(*self.take(4)?.first_chunk()?))
    }

    /// A string or an object path.
    pub(super) fn text(&mut self) -> Option<String> {
        let length = self.u32()? as usize;
        let text = String::from_utf8(self.take(length)?.to_vec()).ok()?;
        self.byte().filter(|end| *end == 0)?;
        Some(text)
    }

    fn signature(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(self.byte()?);
        let signature = self.take(length)?;
        self.byte()?;
        Some(signature)
    }

    /// A value with its type before it; `None` for a type that Lull does not read, too.
    pub(super) fn variant(&mut self) -> Option<Value> {
        Some(match self.signature()? {
            b"t" => {
                self.align(8);
                Value::Number(u64::from_ne_bytes(*self.take(8)?.first_chunk()?))
            }
            b"u" => Value::Number(u64::from(self.u32()?)),
            b"ay" => {
                let length = self.u32()? as usize;
                Value::Bytes(self.take(length)?.to_vec())
            }
            b"s" | b"o" => Value::Text(self.text()?),
            b"g" => Value::Text(String::from_utf8_lossy(self.signature()?).into_owned()),
            _ => return None,
        })
    }
}

/// A message that was received.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Received {
    /// The call that it answers; `None` for a signal, or a call by the other side.
    pub(super) answers: Option<u32>,
    /// The name of the error, if it is one.
    pub(super) error: Option<String>,
    pub(super) body: Vec<u8>,
}

/// How many bytes a message has that begins with these; `None` if it is not a message, or larger
/// than Lull reads.
pub(super) fn length_of(fixed: &[u8; FIXED_BYTES]) -> Option<usize> {
    if fixed[0] != BYTE_ORDER || fixed[3] != PROTOCOL {
        return None;
    }
    let mut reader = Reader { bytes: fixed, at: 4 };
    let (body, _serial, fields) = (reader.u32()?, reader.u32()?, reader.u32()?);
    let head = (FIXED_BYTES + fields as usize).next_multiple_of(8);
    Some(head + body as usize).filter(|length| *length <= BYTES_MAX)
}

/// Splits a whole message into its parts; `None` if it is damaged.
pub(super) fn receive(message: &[u8]) -> Option<Received> {
    let kind = *message.get(1)?;
    let mut reader = Reader { bytes: message, at: 12 };
    let end = FIXED_BYTES + reader.u32()? as usize;
    let (mut answers, mut error) = (None, None);
    while reader.at < end {
        reader.align(8);
        match (reader.byte()?, reader.variant()?) {
            (field::REPLY_SERIAL, Value::Number(serial)) => answers = u32::try_from(serial).ok(),
            (field::ERROR_NAME, Value::Text(name)) => error = Some(name),
            _ => {}
        }
    }
    let body = message.get(end.next_multiple_of(8)..)?.to_vec();
    let answers = answers.filter(|_| matches!(kind, REPLY | ERROR));
    Some(Received { answers, error: error.filter(|_| kind == ERROR), body })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A reply as a service sends it.
    pub(in super::super) fn reply(to: u32, error: Option<&str>, body: Writer) -> Vec<u8> {
        let kind = if error.is_some() { ERROR } else { REPLY };
        let mut out = Writer { bytes: vec![BYTE_ORDER, kind, 0, PROTOCOL] };
        out.u32(body.bytes.len() as u32);
        out.u32(7);
        let mut fields = vec![(field::REPLY_SERIAL, None)];
        fields.extend(error.map(|name| (field::ERROR_NAME, Some(name))));
        out.array(&fields, |out, (code, text)| {
            out.bytes.push(*code);
            match text {
                Some(text) => {
                    out.signature("s");
                    out.text(text);
                }
                None => {
                    out.signature("u");
                    out.u32(to);
                }
            }
        });
        out.align(8);
        out.bytes.extend(body.bytes);
        out.bytes
    }

    /// A body of one variant.
    pub(in super::super) fn of_variant(value: &Value) -> Writer {
        let mut body = Writer::default();
        body.variant(value);
        body
    }

    /// A call's serial, the names of its object and its method, and its body.
    pub(in super::super) fn called(message: &[u8]) -> (u32, String, String, Vec<u8>) {
        let mut reader = Reader { bytes: message, at: 8 };
        let serial = reader.u32().unwrap();
        let end = FIXED_BYTES + reader.u32().unwrap() as usize;
        let (mut path, mut member) = (String::new(), String::new());
        while reader.at < end {
            reader.align(8);
            match (reader.byte().unwrap(), reader.variant().unwrap()) {
                (field::PATH, Value::Text(text)) => path = text,
                (field::MEMBER, Value::Text(text)) => member = text,
                _ => {}
            }
        }
        (serial, path, member, message[end.next_multiple_of(8)..].to_vec())
    }

    /// The arguments of `SetUnitProperties`.
    pub(in super::super) fn set_properties(body: &[u8]) -> (String, bool, Vec<(String, Value)>) {
        let mut reader = Reader::new(body);
        let (unit, runtime) = (reader.text().unwrap(), reader.u32().unwrap() == 1);
        let length = reader.u32().unwrap() as usize;
        reader.align(8);
        let end = reader.at + length;
        let mut properties = Vec::new();
        while reader.at < end {
            reader.align(8);
            properties.push((reader.text().unwrap(), reader.variant().unwrap()));
        }
        (unit, runtime, properties)
    }

    const METHOD: Method<'_> =
        Method { destination: "a.b", path: "/a", interface: "a.b.C", name: "Do" };

    #[test]
    fn a_call_has_the_bytes_of_the_specification() {
        let mut body = Writer::default();
        body.text("x");
        let call = body.into_call(3, METHOD, "s");
        assert_eq!(call.len(), length_of(call.first_chunk().unwrap()).unwrap());
        assert_eq!(&call[1..4], [1, 0, 1], "a call, without flags, of version 1");
        assert_eq!(call[4..8], 6_u32.to_ne_bytes(), "the body: length, text and its end");
        assert_eq!(&call[FIXED_BYTES..][..4], [1, 1, b'o', 0], "the path comes first");
        assert!(call.ends_with(b"x\0") && (call.len() - 6).is_multiple_of(8));
        assert_eq!(called(&call).2, "Do");
    }

    #[test]
    fn properties_are_read_as_they_were_written() {
        let wanted = [
            ("CPUWeight", Value::Number(50)),
            ("AllowedCPUs", Value::Bytes(vec![3, 0, 1])),
            ("CPUQuotaPerSecUSec", Value::Number(u64::MAX)),
        ];
        let mut body = Writer::default();
        body.text("web.service");
        body.boolean(true);
        body.properties(&wanted);
        let (unit, runtime, found) = set_properties(&body.bytes);
        assert_eq!((unit.as_str(), runtime), ("web.service", true));
        let found: Vec<_> = found.iter().map(|(name, value)| (name.as_str(), value)).collect();
        assert_eq!(found, wanted.each_ref().map(|(name, value)| (*name, value)));
    }

    #[test]
    fn replies_and_errors_name_their_call() {
        let message = reply(9, None, of_variant(&Value::Number(5)));
        let received = receive(&message).unwrap();
        assert_eq!((received.answers, received.error), (Some(9), None));
        assert_eq!(Reader::new(&received.body).variant(), Some(Value::Number(5)));
        let received = receive(&reply(9, Some("a.b.Bad"), Writer::default())).unwrap();
        assert_eq!((received.answers, received.error.as_deref()), (Some(9), Some("a.b.Bad")));
        let call = Writer::default().into_call(9, METHOD, "");
        assert_eq!(receive(&call).unwrap().answers, None, "a call answers nothing");
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            cut in 0_usize..120,
        ) {
            let _ = receive(&bytes);
            let whole = reply(1, Some("a.b"), of_variant(&Value::Bytes(bytes)));
            let _ = receive(&whole[..cut.min(whole.len())]);
        }
    }
}
