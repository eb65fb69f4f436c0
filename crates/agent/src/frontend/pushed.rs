//! What a front end has received at the push socket, as the plant's source of push messages.

use super::Frontend;
use lull_host::gauges::push::{ClientId, PushSocket, PushSource};
use lull_measure::push::Message;
use std::path::Path;

/// The source, which owns the socket's file.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) frontend: Frontend,
    pub(super) socket: PushSocket,
    /// Names of the apps.
    pub(super) apps: Vec<String>,
}

impl PushSource for Source {
    fn drain(
        &mut self,
        take: &mut dyn FnMut(ClientId, Message) -> Result<(), String>,
        notice: &mut dyn FnMut(String),
    ) {
        let (pushed, notices) = {
            let mut supervisor = self.frontend.lock();
            let pushed = supervisor.drain();
            (pushed, std::mem::take(&mut supervisor.notices))
        };
        notices.into_iter().for_each(&mut *notice);
        for (client, report) in pushed {
            let message = report.check(&self.apps);
            if let Err(why) = message.and_then(|message| take(client, message)) {
                notice(format!("{client} was dropped: {why}"));
                self.frontend.lock().disconnect(client.number);
            }
        }
    }

    fn path(&self) -> &Path {
        self.socket.path()
    }
}
