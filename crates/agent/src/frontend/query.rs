//! Queries of Prometheus servers, whose replies the front end parses.

use super::message::shorten;
use crate::prometheus::QueryPurpose;
use lull_host::gauges::reported::Answer;
use lull_measure::Missing;
use std::sync::mpsc::Sender;

/// A query of a Prometheus server.
#[derive(Debug)]
pub(super) struct Query {
    pub(super) server: String,
    pub(super) purpose: QueryPurpose,
    /// Where replies go.
    pub(super) to: Sender<Answer>,
}

/// Checks a number that a front end has parsed.
pub(super) fn answer_to(
    query: &Query,
    generation: u64,
    number: Result<Option<f64>, String>,
) -> Answer {
    let Query { server, purpose, .. } = query;
    let number = number.map_err(|why| Missing::because(format!("{server}: {}", shorten(why))));
    Answer { generation, received_at: lull_host::monotonic(), reply: purpose.reply(number) }
}
