//! The page as the control loop has it: epochs go there, and orders come from there.

use super::Frontend;
use super::message::ToFrontend;
use crate::live::{Command, EpochSnapshot, Facts, LiveError, Token};

/// An order as it arrived, its token not yet checked.
#[derive(Debug)]
pub(super) struct UncheckedOrder {
    pub(super) generation: u32,
    pub(super) number: u32,
    pub(super) token: String,
    pub(super) command: Command,
}

/// The control loop's handle of a page that is served. The page ends when it is dropped.
#[derive(Debug)]
pub struct Live {
    pub(super) description: String,
    pub(super) token: Option<Token>,
    pub(super) frontend: Frontend,
}

impl Live {
    /// Describes for users where the page is.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Whether orders are accepted.
    pub fn takes_orders(&self) -> bool {
        self.token.is_some()
    }

    /// Serves other facts about the run from now on. Viewers are disconnected and connect again,
    /// so that they read them.
    ///
    /// # Errors
    /// If the facts cannot be written as JSON.
    pub fn set_facts(&self, facts: &Facts) -> Result<(), LiveError> {
        let facts = serde_json::to_string(facts)?;
        let mut supervisor = self.frontend.lock();
        if let Some(page) = &mut supervisor.page {
            page.set_facts(facts.clone());
        }
        supervisor.send(&ToFrontend::Facts(facts));
        Ok(())
    }

    /// Sends an epoch to the viewers; drops it if the front end is behind.
    pub fn show(&self, snapshot: EpochSnapshot) {
        if let Some(child) = &mut self.frontend.lock().child {
            child.show(&ToFrontend::Epoch(Box::new(snapshot)));
        }
    }

    /// Returns the operators' orders since the last call, those without the token refused.
    pub fn orders(&self) -> Vec<Order> {
        let mut supervisor = self.frontend.lock();
        supervisor.receive();
        let all = std::mem::take(&mut supervisor.orders);
        drop(supervisor);
        let with_token = |order: UncheckedOrder| {
            let UncheckedOrder { generation, number, token, command } = order;
            let order = Order { command, generation, number, frontend: self.frontend.clone() };
            if self.token.as_ref().is_some_and(|ours| ours.is(&token)) {
                return Some(order);
            }
            order.answer(Err("the token is not that of this run".to_owned()));
            None
        };
        all.into_iter().filter_map(with_token).collect()
    }
}

impl Drop for Live {
    /// Ends every connection.
    fn drop(&mut self) {
        let mut supervisor = self.frontend.lock();
        (supervisor.page, supervisor.listeners.page) = (None, None);
        supervisor.send(&ToFrontend::EndPage);
    }
}

/// An order to the loop, which answers at the end of its epoch.
#[derive(Debug)]
pub struct Order {
    /// The command.
    pub command: Command,
    generation: u32,
    pub(super) number: u32,
    frontend: Frontend,
}

impl Order {
    /// Reports the result of the order, or the reason for its refusal.
    pub fn answer(self, answer: Result<String, String>) {
        self.frontend.lock().answer(self.generation, self.number, answer);
    }
}
