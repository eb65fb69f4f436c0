//! The lines of processes that register themselves, parsed for the agent.

use lull_host::register::{LINE_DATAGRAM_BYTES, parse_datagram};
use tokio::net::UnixDatagram;

/// Answers each line of the agent with the parsed request, until the process ends.
pub(super) async fn parse_lines(agent: UnixDatagram) {
    let mut line = vec![0; LINE_DATAGRAM_BYTES];
    while let Ok(length) = agent.recv(&mut line).await {
        let Some(request) = parse_datagram(&line[..length]) else { continue };
        if agent.send(&request).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_answered_and_what_is_none_is_passed_over() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (agent, front_end) = UnixDatagram::pair().unwrap();
            tokio::spawn(parse_lines(front_end));
            agent.send(b"short").await.unwrap();
            for (line, kind) in [("{\"v\":1,\"kind\":\"leave\"}", 0), ("nothing", 3)] {
                let datagram = [[7_u8; 8].as_slice(), line.as_bytes()].concat();
                agent.send(&datagram).await.unwrap();
                let mut request = [0_u8; 400];
                let length = agent.recv(&mut request).await.unwrap();
                assert!(length > 8 && request.starts_with(&[7; 8]), "{length}");
                assert_eq!(request[8], kind, "{line}");
            }
        });
    }
}
