//! `client_class` of an app: classes of its clients, and their shares of the slots of its gate.

use lull_host::oncall::{
    BYPASS_MAX, ClientClass, ClientMatch, check_client_classes, default_bypass, user_number,
};
use lull_oncall::{
    AddressPrefix, CLIENT_ORDERS, CLIENT_TURN_WITHIN_MAX, CLIENT_WEIGHT_MAX, ClassShare,
};
use schemars::JsonSchema;
use serde::Deserialize;
use std::net::IpAddr;
use std::str::FromStr;

/// `client_class` of an app: some of its clients, as which they wait at the gate. Slots go to
/// the classes that wait, and within a class to the connection that waits longest.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientClassSection {
    /// Its name, of at most 32 bytes.
    #[schemars(example = &"web")]
    pub name: String,
    /// Its clients: those with all properties of one of these tables. A client belongs to the first
    /// class that fits. Without any, it is the class of all clients that fit no other one, which is
    /// `others` with weight 1 if absent.
    #[serde(rename = "match", default)]
    pub clients: Vec<ClientMatchSection>,
    /// Its turns in proportion to the waiting classes of the same order, 1 to 1000.
    #[serde(default = "one")]
    #[schemars(extend("x-unit" = "none"))]
    pub weight: u32,
    /// Classes of a lower order go first, 0 to 7.
    #[serde(default)]
    #[schemars(extend("x-unit" = "none"))]
    pub order: u32,
    /// While it waits, the class has at least this share of all turns, whatever its order and
    /// weight; the shares of all classes are at most 1 together.
    #[serde(default = "ClientClassSection::least_share")]
    #[schemars(extend("x-unit" = "share"))]
    pub least_share: f64,
}

/// Clients of an app, by all keys that are there; at least one.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientMatchSection {
    /// The user of the server.
    #[schemars(example = &"web")]
    pub user: Option<String>,
    /// The database that was named at the login.
    #[schemars(example = &"shop")]
    pub database: Option<String>,
    /// The application: `application_name` of PostgreSQL, also after `SET`; `program_name`
    /// of MySQL's connection attributes.
    #[schemars(example = &"report")]
    pub application: Option<String>,
    /// The client's address, IPv4 or IPv6, or a prefix of it.
    #[schemars(with = "Option<String>", example = &"2001:db8::/32")]
    pub from: Option<WrittenPrefix>,
    /// The server's port.
    #[schemars(example = 3307, extend("x-unit" = "none"))]
    pub port: Option<u16>,
    /// The user that runs the client, on a unix socket: a name in `/etc/passwd`, or a number.
    #[schemars(example = &"backup")]
    pub unix_user: Option<String>,
}

/// An address or a prefix, as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct WrittenPrefix(pub AddressPrefix);

impl FromStr for WrittenPrefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is not an address or prefix: write 10.0.0.7, 10.0.0.0/8 or 2001:db8::/32"
            )
        };
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), |bits| bits.parse().map_err(|_| wrong()))?;
        AddressPrefix::new(address, bits).map(Self).ok_or_else(wrong)
    }
}

impl TryFrom<String> for WrittenPrefix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

const fn one() -> u32 {
    1
}

impl ClientClassSection {
    const fn least_share() -> f64 {
        0.01
    }

    /// The share of a class in the form of a gate.
    fn share(&self) -> Result<ClassShare, String> {
        let least = 1.0 / f64::from(CLIENT_TURN_WITHIN_MAX);
        let rules = [
            ("weight", f64::from(self.weight), 1.0, f64::from(CLIENT_WEIGHT_MAX)),
            ("order", f64::from(self.order), 0.0, (CLIENT_ORDERS - 1) as f64),
            ("least_share", self.least_share, least, 1.0),
        ];
        for (key, value, low, high) in rules {
            if !(low..=high).contains(&value) {
                return Err(format!("{key} is {value}, not in {low} to {high}"));
            }
        }
        ClassShare::new(self.weight, self.order, self.least_share)
            .ok_or_else(|| "is out of range".to_owned())
    }

    fn class(&self) -> Result<ClientClass, String> {
        let clients = self.clients.iter().map(ClientMatchSection::clients);
        let clients = clients.collect::<Result<_, _>>()?;
        Ok(ClientClass { name: self.name.clone(), share: self.share()?, clients })
    }
}

impl ClientMatchSection {
    /// Returns the clients in the form of a gate.
    ///
    /// # Errors
    /// The invalid key of `match` and the reason.
    fn clients(&self) -> Result<ClientMatch, String> {
        if *self == Self::default() {
            let what = "match has an empty table, which fits every client: name a user, or leave \
                        `match` out";
            return Err(what.to_owned());
        }
        if self.port == Some(0) {
            return Err("match.port is 0, which no server has".to_owned());
        }
        let number = |name: &String| {
            user_number(name).ok_or_else(|| {
                format!("match.unix_user: no user `{name}` in /etc/passwd: write its number")
            })
        };
        Ok(ClientMatch {
            user: self.user.clone(),
            database: self.database.clone(),
            application: self.application.clone(),
            from: self.from.map(|from| from.0),
            port: self.port,
            unix_user: self.unix_user.as_ref().map(number).transpose()?,
        })
    }
}

/// Returns the clients that bypass a gate with these classes: the listed ones, and the default ones
/// with `has_default`.
///
/// # Errors
/// The fault.
pub fn bypass(
    written: &[ClientMatchSection],
    has_default: bool,
    classes: &[ClientClass],
) -> Result<Vec<ClientMatch>, String> {
    if written.len() > BYPASS_MAX {
        return Err(format!("has {} clients, more than {BYPASS_MAX}", written.len()));
    }
    let written = written.iter().map(|one| {
        let clients = one.clients();
        clients.map_err(|message| message.replace("match", "bypass"))
    });
    let default = if has_default { default_bypass(classes) } else { Vec::new() };
    written.chain(default.into_iter().map(Ok)).collect()
}

/// Returns the classes of clients in the form of a gate.
///
/// # Errors
/// The fault, with the index of the class.
pub fn client_classes(
    sections: &[ClientClassSection],
) -> Result<Vec<ClientClass>, (usize, String)> {
    let class = |(at, section): (usize, &ClientClassSection)| {
        section.class().map_err(|message| (at, message))
    };
    let classes: Vec<_> = sections.iter().enumerate().map(class).collect::<Result<_, _>>()?;
    check_client_classes(&classes)?;
    let least: f64 = sections.iter().map(|section| section.least_share).sum();
    if least > 1.0 {
        let message = format!("least_share of all classes is {least} together, more than 1");
        return Err((sections.len() - 1, message));
    }
    Ok(classes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(text: &str) -> ClientClassSection {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_class_is_written_as_tables_and_numbers() {
        let text = "name = \"web\"\nweight = 4\norder = 1\nleast_share = 0.05\n\
                    match = [{ user = \"web\", from = \"10.0.0.0/8\" }, { unix_user = \"0\" }]";
        let classes = client_classes(&[section(text)]).unwrap();
        let share = ClassShare { weight: 4, order: 1, turn_within: 20 };
        assert_eq!((classes[0].share, classes[0].clients.len()), (share, 2));
        assert_eq!(classes[0].clients[1].unix_user, Some(0));
        let third = client_classes(&[section("name = \"a\"\nleast_share = 0.36")]).unwrap();
        assert_eq!(third[0].share.turn_within, 2, "not 3, which is less than 36 %");
        let all = client_classes(&[section("name = \"a\"\nleast_share = 1.0")]).unwrap();
        assert_eq!(all[0].share.turn_within, 1);
        let root = section("name = \"admin\"\nmatch = [{ unix_user = \"root\" }]");
        assert_eq!(client_classes(&[root]).unwrap()[0].clients[0].unix_user, Some(0));
        let usual = client_classes(&[section("name = \"rest\"")]).unwrap();
        assert_eq!(usual[0].share, ClassShare::default());
    }

    #[test]
    fn a_bypass_has_what_is_written_and_the_default_list_unless_that_is_off() {
        let ops: ClientMatchSection = toml::from_str("user = \"ops\"").unwrap();
        let all = bypass(std::slice::from_ref(&ops), true, &[]).unwrap();
        let has = |user: &str| all.iter().any(|one| one.user.as_deref() == Some(user));
        assert!(has("ops") && has("monitor") && has("haproxy"));
        assert_eq!(bypass(&[ops], false, &[]).unwrap().len(), 1);
        assert_eq!(bypass(&[], false, &[]).unwrap(), []);
        let empty = bypass(&[ClientMatchSection::default()], true, &[]).unwrap_err();
        assert!(empty.contains("bypass has an empty table"), "{empty}");
        let many = vec![ClientMatchSection::default(); BYPASS_MAX + 1];
        assert!(bypass(&many, true, &[]).unwrap_err().contains("more than"));
    }

    #[test]
    fn classes_that_make_no_sense_are_refused_with_the_reason() {
        for (text, why) in [
            ("name = \"a\"\nweight = 0", "weight is 0"),
            ("name = \"a\"\norder = 8", "order is 8"),
            ("name = \"a\"\nleast_share = 0.0", "least_share is 0"),
            ("name = \"a\"\nmatch = [{}]", "empty table"),
            ("name = \"a\"\nmatch = [{ port = 0 }]", "port is 0"),
            ("name = \"a\"\nmatch = [{ unix_user = \"no such user\" }]", "no user"),
            ("name = \"\"", "name"),
        ] {
            let (at, message) = client_classes(&[section(text)]).unwrap_err();
            assert!(at == 0 && message.contains(why), "{message}");
        }
        let half = |name: &str| {
            section(&format!("name = \"{name}\"\nleast_share = 0.6\nmatch = [{{ user = \"a\" }}]"))
        };
        assert!(client_classes(&[half("a"), half("b")]).unwrap_err().1.contains("together"));
        for prefix in ["10.0.0", "10.0.0.0/33", "::1/129", "::1/", "web"] {
            assert!(
                prefix.parse::<WrittenPrefix>().unwrap_err().contains("not an address"),
                "{prefix}"
            );
        }
    }
}
