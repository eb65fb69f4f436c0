//! Rejection of requests from pages of other sites.
//!
//! A browser sends the name in its address bar as `Host`. A hostile page can
//! let its own name resolve to 127.0.0.1 (DNS rebinding) and then read what is
//! served there, but `Host` then contains that name and not an address. So only addresses,
//! `localhost` and the names that the config lists are accepted.

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::IpAddr;
use std::sync::Arc;

/// Headers of every response: other sites may not use it, and the page loads only what this
/// server serves.
const HEADERS: [(HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
         img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-cache"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Whether a text can be a host's name in a config.
pub fn is_hostname(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    text.len() <= 253 && text.split('.').all(is_part)
}

/// Passes requests on whose `Host` names this machine and refuses all others.
pub(super) async fn host(
    State(names): State<Arc<[String]>>,
    request: Request,
    next: Next,
) -> Response {
    let mut response = match check_names(&request, &names) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    for (name, value) in HEADERS {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// Checks the one `Host` of a request, and the host of an absolute address.
fn check_names(request: &Request, names: &[String]) -> Result<(), (StatusCode, &'static str)> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return Err((StatusCode::BAD_REQUEST, "not exactly one Host\n"));
    };
    let in_address = request.uri().authority().map(Authority::as_str);
    let is_ours = |host: Option<&str>| host.is_some_and(|host| is_ours(host, names));
    if is_ours(host.to_str().ok()) && in_address.is_none_or(|host| is_ours(Some(host))) {
        return Ok(());
    }
    let why = "this name is not one of this agent's: use its address or localhost, or list the \
               name in agent.http_names\n";
    Err((StatusCode::MISDIRECTED_REQUEST, why))
}

/// Whether a `Host` names this machine.
fn is_ours(host: &str, names: &[String]) -> bool {
    let name = without_port(host);
    let is_address = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => name.parse::<IpAddr>().is_ok_and(|address| address.is_ipv4()),
    };
    let is_known = || names.iter().any(|known| known.eq_ignore_ascii_case(name));
    is_address || name.eq_ignore_ascii_case("localhost") || is_known()
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Returns the reason why an order is not from this page or from an operator's program.
pub(super) fn foreign_page(headers: &HeaderMap) -> Option<&'static str> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let fetched = text("sec-fetch-site");
    if fetched.is_some_and(|site| !matches!(site, "same-origin" | "none")) {
        return Some("orders are taken from this agent's own page only");
    }
    let host = text("host").unwrap_or_default();
    let is_own = |origin: &str| {
        origin.strip_prefix("http://").or(origin.strip_prefix("https://")) == Some(host)
    };
    if headers.contains_key(header::ORIGIN) && !text("origin").is_some_and(is_own) {
        return Some("orders are taken from this agent's own page only");
    }
    let is_json = text("content-type").is_some_and(|kind| kind.starts_with("application/json"));
    (!is_json).then_some("an order is JSON: send Content-Type: application/json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_listed_names_pass_and_no_name_of_others() {
        let names = ["box.lan".to_owned()];
        let ours = [
            "127.0.0.1:7077",
            "127.0.0.1",
            "localhost:1",
            "LOCALHOST",
            "[::1]:7077",
            "[::1]",
            "192.168.1.5:80",
            "box.lan",
            "Box.LAN:7077",
        ];
        for host in ours {
            assert!(is_ours(host, &names), "{host}");
        }
        let others = [
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example:7077",
            "",
            "::1",
            "127.0.0.1@evil",
            "box.lan.evil",
            "127.0.0.1:80:evil",
        ];
        for host in others {
            assert!(!is_ours(host, &names), "{host}");
        }
    }

    #[test]
    fn a_page_of_another_site_cannot_give_orders() {
        let refused = |lines: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            headers.insert("host", HeaderValue::from_static("127.0.0.1:7077"));
            for (name, value) in lines {
                headers.insert(*name, HeaderValue::from_static(value));
            }
            foreign_page(&headers).is_some()
        };
        let json = ("content-type", "application/json");
        assert!(!refused(&[json]), "a program sends no Origin");
        assert!(!refused(&[json, ("origin", "http://127.0.0.1:7077")]));
        assert!(!refused(&[json, ("sec-fetch-site", "same-origin")]));
        assert!(refused(&[json, ("origin", "http://evil.example")]));
        assert!(refused(&[json, ("origin", "null")]));
        assert!(refused(&[json, ("origin", "http://127.0.0.1:70770")]));
        assert!(refused(&[json, ("sec-fetch-site", "cross-site")]));
        assert!(refused(&[json, ("sec-fetch-site", "same-site")]));
        assert!(refused(&[("content-type", "text/plain")]), "a form can send that");
        assert!(refused(&[]));
    }

    #[test]
    fn a_name_is_letters_digits_dashes_and_dots() {
        assert!(is_hostname("box-1.lan"));
        for wrong in ["", "a..b", "a b", "a:1", "*.lan", "a/b"] {
            assert!(!is_hostname(wrong), "{wrong}");
        }
    }
}
