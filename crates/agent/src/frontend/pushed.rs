//! The messages that a front end received at the push socket, as the plant's source of them.

use super::Frontend;
use super::message::ToFrontend;
use lull_host::gauges::push::{ClientId, PushSocket, PushSource};
use lull_measure::push::Message;
use std::path::Path;

/// The source, which owns the socket's file.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) frontend: Frontend,
    pub(super) socket: PushSocket,
}

impl Frontend {
    /// Continues with these apps, by number; one that was removed has no name.
    pub(crate) fn set_apps(&self, apps: Vec<String>) {
        let mut supervisor = self.lock();
        supervisor.send(&ToFrontend::Apps(apps.clone()));
        supervisor.apps = apps;
    }
}

impl PushSource for Source {
    fn drain(
        &mut self,
        take: &mut dyn FnMut(ClientId, Message) -> Result<(), String>,
        notice: &mut dyn FnMut(String),
    ) -> bool {
        let (pushed, notices, apps, has_answered) = {
            let mut supervisor = self.frontend.lock();
            let pushed = supervisor.drain();
            let apps = if pushed.is_empty() { Vec::new() } else { supervisor.apps.clone() };
            let has_answered = supervisor.has_answered();
            (pushed, std::mem::take(&mut supervisor.notices), apps, has_answered)
        };
        let is_well = has_answered && notices.is_empty();
        notices.into_iter().for_each(&mut *notice);
        for (client, report) in pushed {
            let message = report.check(&apps);
            if let Err(why) = message.and_then(|message| take(client, message)) {
                notice(format!("{client} was dropped: {why}"));
                self.frontend.lock().disconnect(client.number);
            }
        }
        is_well
    }

    fn path(&self) -> &Path {
        self.socket.path()
    }
}
